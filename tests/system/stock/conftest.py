"""The stock LocalExecutor on SQLite, with the provider installed and its executor not configured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings


@pytest.fixture(scope="package")
def stock_airflow(
    tmp_path_factory: pytest.TempPathFactory, system_dags: Path, migrated: Path
) -> Iterator[Airflow]:
    """An Airflow with its stock LocalExecutor and SQLite, shared by the tests that need no more."""
    pools = {"eaco": {}, "default_pool": {"mode": "observe"}}
    settings = AirflowSettings(
        tmp_path_factory.mktemp("stock"),
        system_dags,
        # Samplers report every fifth of the time-out.
        options={"eaco.pools": json.dumps(pools), "eaco.node_timeout": "10"},
        migrated=migrated,
    )
    with Airflow(settings) as airflow:
        yield airflow
    assert airflow.processes() == []
