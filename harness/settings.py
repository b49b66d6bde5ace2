"""What one Airflow of the harness is made of, and the options that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """What one Airflow of the harness is made of.

    :param home: its ``AIRFLOW_HOME``, created if need be; logs and the SQLite file lie there.
    :param dags_folder: where its DAG files lie.
    :param executor: value of ``[core] executor``.
    :param database_url: SQLAlchemy URL of an empty or earlier database; SQLite in ``home`` if ``None``.
    :param options: Airflow options by ``section.name``, ``eaco.pools`` for example; they win over the
        harness's own.
    :param environment: further variables of every component.
    :param migrated: a SQLite file that ``airflow db migrate`` has made; a copy of it is the database in
        ``home``, which saves a start 10 seconds.
    :param users: the role of each user by name, ``viewer`` for example; each one's password is its name, and
        the harness logs in as the last. Without any, everybody is an administrator.
    """

    home: Path
    dags_folder: Path
    executor: str = "LocalExecutor"
    database_url: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    migrated: Path | None = None
    users: Mapping[str, str] = field(default_factory=dict)


# One process of each kind, no examples, no telemetry, no health server, and short pauses.
OPTIONS: Mapping[str, str] = {
    "core.load_examples": "False",
    "core.dags_are_paused_at_creation": "False",
    "core.parallelism": "8",
    "api.workers": "1",
    "scheduler.enable_health_check": "False",
    "scheduler.scheduler_idle_sleep_time": "0.2",
    "scheduler.min_heartbeat_interval": "1",
    "dag_processor.parsing_processes": "1",
    "dag_processor.refresh_interval": "5",
    "dag_processor.min_file_process_interval": "60",
    "usage_data_collection.enabled": "False",
}


def variable(option: str) -> str:
    """Return the environment variable of an option that is named ``section.name``."""
    section, _, name = option.partition(".")
    if not section or not name:
        raise ValueError(f"options: {option!r} is not of the form section.name")
    return f"AIRFLOW__{section.upper()}__{name.upper()}"
