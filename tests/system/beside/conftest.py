"""EacoExecutor beside LocalExecutor, on PostgreSQL, with pools that are switched off or only observe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings
from tests.databases import postgres_server
from tests.system.rig import QUIET_LOOP, Rig, quiet_afterwards

POOLS = {
    "eaco": {"mode": "share", "nodes": ["small"]},
    "off": {"mode": "off", "nodes": ["none"]},
    "observed": {"mode": "observe", "nodes": ["small"]},
    "turns": {"mode": "exclusive", "nodes": ["single"]},
}


@pytest.fixture(scope="package")
def airflow_beside(tmp_path_factory: pytest.TempPathFactory, system_dags: Path) -> Iterator[Airflow]:
    """An Airflow whose default executor is LocalExecutor, and which has EacoExecutor for GPU tasks."""
    with postgres_server() as url:
        settings = AirflowSettings(
            tmp_path_factory.mktemp("beside"),
            system_dags,
            executor="LocalExecutor,airflow_provider_eaco.EacoExecutor",
            database_url=url,
            options={
                **QUIET_LOOP,
                "core.parallelism": "8",
                "scheduler.job_heartbeat_sec": "2",
                "scheduler.scheduler_health_check_threshold": "15",
                "scheduler.orphaned_tasks_check_interval": "3",
                "eaco.pools": json.dumps(POOLS),
                "eaco.simulated_nodes": json.dumps(
                    [{"name": "small", "gpus": 4}, {"name": "single", "gpus": 1}]
                ),
                "eaco.backfill_priority": "-1000",
            },
        )
        with Airflow(settings) as airflow:
            yield airflow


@pytest.fixture(scope="package")
def beside(airflow_beside: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig of that Airflow, once its pools are made."""
    rig = Rig(airflow_beside, tmp_path_factory.mktemp("told"))
    pools = "SELECT pool FROM slot_pool"
    rig.wait_for(lambda: {*POOLS} <= {row["pool"] for row in airflow_beside.query(pools)}, "the GPU pools")
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def quiet_rig(request: pytest.FixtureRequest, beside: Rig) -> Iterator[Rig]:
    """The rig, watched: after the module everything is quiet. The module names tracebacks it provokes."""
    with quiet_afterwards(beside, getattr(request.module, "EXPECTED_TRACEBACKS", ())) as rig:
        yield rig


@pytest.fixture
def rig(quiet_rig: Rig) -> Iterator[Rig]:
    """The rig for one test; what the test has started is over before the next one."""
    yield quiet_rig
    quiet_rig.end_runs()
