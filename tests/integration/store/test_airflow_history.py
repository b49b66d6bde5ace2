"""Airflow's history as a trace: read from tables that Airflow itself defines, in SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.convert import AIRFLOW_DATABASE
from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.airflow_history import read_history
from airflow_provider_eaco.store.ledger import SqlLedger
from tests.contract.parts import make_job
from tests.databases import database_on

START = datetime(2026, 11, 2, 8, tzinfo=UTC)
RUN = {"dag_id": "train", "run_id": "r1"}


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@pytest.fixture
def airflow_engine(own_engine: Engine) -> Engine:
    """A database with Airflow's own tables and one DAG run, without tasks."""
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dagrun import DagRun

    import_all_models()
    Base.metadata.create_all(own_engine)
    with own_engine.begin() as connection:
        connection.execute(
            sa.insert(DagRun.__table__).values(
                **RUN, run_type="manual", state="success", run_after=START, span_status="ended"
            )
        )
    return own_engine


def add_task(engine: Engine, task_id: str, **changed: Any) -> str:
    """Store a task that was queued at 0 min, ran from 5 to 65 min; return its id."""
    from airflow.models.taskinstance import TaskInstance

    values = {
        "id": uuid.uuid4(),
        **RUN,
        "task_id": task_id,
        "state": "success",
        "pool": "gpus",
        "pool_slots": 2,
        "queue": "default",
        "priority_weight": 3,
        "queued_dttm": at(0),
        "start_date": at(5),
        "end_date": at(65),
        "map_index": -1,
        "try_number": 1,
        "max_tries": 0,
        "span_status": "ended",
        "executor_config": {},
        **changed,
    }
    with engine.begin() as connection:
        connection.execute(sa.insert(TaskInstance.__table__).values(**values))
    return str(values["id"])


def add_earlier_try(engine: Engine, task_id: str, **changed: Any) -> str:
    from airflow.models.taskinstancehistory import TaskInstanceHistory

    values = {
        "task_instance_id": uuid.uuid4(),
        **RUN,
        "task_id": task_id,
        "state": "failed",
        "pool": "gpus",
        "pool_slots": 2,
        "map_index": -1,
        "try_number": 1,
        "start_date": at(1),
        "end_date": at(2),
        "span_status": "ended",
        **changed,
    }
    with engine.begin() as connection:
        connection.execute(sa.insert(TaskInstanceHistory.__table__).values(**values))
    return str(values["task_instance_id"])


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def test_a_task_that_ran(airflow_engine: Engine) -> None:
    """A task's instants, pool, slots, queue and priority are read as Airflow stored them."""
    job_id = add_task(airflow_engine, "fit")
    [task] = read_history(url_of(airflow_engine))
    assert (task.job_id, task.dag_id, task.task_id) == (job_id, "train", "fit")
    assert (task.pool, task.pool_slots, task.queue, task.priority) == ("gpus", 2, "default", 3)
    assert (task.queued_s, task.started_s, task.ended_s) == (
        at(0).timestamp(),
        at(5).timestamp(),
        at(65).timestamp(),
    )
    assert (task.gpus, task.family) == (None, None)


def test_only_what_ran_to_an_end(airflow_engine: Engine) -> None:
    """Tasks that run, wait or were skipped are not in the history; earlier tries and failed ones are."""
    for state in ("running", "queued", "skipped", "upstream_failed", "removed", None):
        add_task(airflow_engine, f"task-{state}", state=state)
    add_task(airflow_engine, "no-end", end_date=None)
    failed = add_task(airflow_engine, "failed", state="failed")
    earlier = add_earlier_try(airflow_engine, "failed")
    assert [task.job_id for task in read_history(url_of(airflow_engine))] == [earlier, failed]


def test_what_our_provider_knows_comes_with_it(airflow_engine: Engine) -> None:
    """Where our tables know the job, its GPUs, family and first queueing are read from there."""
    schema.metadata.create_all(airflow_engine)
    known = add_task(airflow_engine, "fit")
    add_task(airflow_engine, "other")
    first = at(-30).timestamp()
    job = make_job(known, gpus=4, family="resnet50", queued_s=first)
    SqlLedger(database_on(airflow_engine)).add_waiting(job, "executor")
    tasks = {task.task_id: task for task in read_history(url_of(airflow_engine))}
    assert (tasks["fit"].gpus, tasks["fit"].family) == (4, "resnet50")
    assert tasks["fit"].queued_s == first
    assert tasks["other"].gpus is None
    assert tasks["other"].queued_s == at(0).timestamp()


def test_nothing_is_written(airflow_engine: Engine) -> None:
    """Reading the history makes no table and changes no row."""
    add_task(airflow_engine, "fit")
    before = sorted(sa.inspect(airflow_engine).get_table_names())
    read_history(url_of(airflow_engine))
    assert sorted(sa.inspect(airflow_engine).get_table_names()) == before


def test_convert_makes_a_trace(
    airflow_engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`eaco-sim convert --airflow` writes pool, queue, DAG, duration and wait of one pool's tasks."""
    add_task(airflow_engine, "fit")
    add_task(airflow_engine, "elsewhere", pool="default_pool")
    add_task(airflow_engine, "late", queued_dttm=at(30), start_date=at(45), end_date=at(50), pool_slots=1)
    monkeypatch.setenv(AIRFLOW_DATABASE, url_of(airflow_engine))
    out = tmp_path / "trace.csv"
    assert main(["convert", "--airflow", "--pool", "gpus", "--gpus-per-slot", "4", "--out", str(out)]) == 0
    first, second = read_trace(out).jobs
    assert (first.family, first.gpus, first.submit_s, first.work_s, first.wait_s) == (
        "train.fit",
        8,
        0.0,
        3600.0,
        300.0,
    )
    assert (first.pool, first.queue, first.dag_id, first.priority) == ("gpus", "default", "train", 3)
    assert (second.gpus, second.submit_s, second.work_s, second.wait_s) == (4, 1800.0, 300.0, 900.0)
    assert "2 jobs; left out: 1 not asked for" in capsys.readouterr().err


def test_a_database_that_is_not_airflows(own_engine: Engine) -> None:
    """A database without Airflow's tables is named as that."""
    schema.metadata.create_all(own_engine)
    with pytest.raises(StoreUnavailableError, match="no table 'task_instance'; is it Airflow's"):
        read_history(url_of(own_engine))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/file.db", "no database file '/no/such/file.db'"),
        ("nonsense", "cannot be used"),
        ("oraclex://host/db", "cannot be used"),
        ("postgresql+psycopg2://user:secret@127.0.0.1:1/db", "cannot be used now"),
    ],
)
def test_a_database_out_of_reach(url: str, message: str) -> None:
    """A URL that leads nowhere gets one message, without the password, and makes no file."""
    with pytest.raises(StoreUnavailableError, match=message) as caught:
        read_history(url)
    assert "secret" not in str(caught.value)
