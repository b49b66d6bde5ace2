"""EacoExecutor alone, with the example DAGs as they are and the options that their docstrings name.

An Airflow of its own: the examples ask for whole nodes of the first pool, and what their sets teach would
change what the other system tests see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings
from tests.system.rig import QUIET_LOOP, Rig, quiet_afterwards

DAGS = Path(__file__).parents[3] / "dags"
NODES = [{"name": "first", "gpus": 8}, {"name": "second", "gpus": 8}]
RULES = [{"match": {"dag_id": "unannotated"}, "request": {"gpus": 8, "gpu_memory": "3GiB"}}]
TRUTH = [{"families": ["J2", "J3"], "slowdowns": [1.4, 1.4]}]


@pytest.fixture(scope="package")
def airflow_examples(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Airflow]:
    """An Airflow with the examples' folder, whose only executor is EacoExecutor."""
    settings = AirflowSettings(
        tmp_path_factory.mktemp("examples"),
        DAGS,
        executor="airflow_provider_eaco.EacoExecutor",
        migrated=migrated,
        options={
            **QUIET_LOOP,
            "core.parallelism": "8",
            "scheduler.job_heartbeat_sec": "2",
            "scheduler.scheduler_health_check_threshold": "15",
            "eaco.pools": json.dumps({"eaco": {"mode": "share"}}),
            "eaco.rules": json.dumps(RULES),
            "eaco.simulated_nodes": json.dumps(NODES),
            "eaco.simulated_truth": json.dumps(TRUTH),
            "eaco.simulated_time_scale": "3600",
        },
    )
    with Airflow(settings) as airflow:
        yield airflow


@pytest.fixture(scope="package")
def examples(airflow_examples: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig of that Airflow, once its GPU pool is made."""
    rig = Rig(airflow_examples, tmp_path_factory.mktemp("told"))
    pools = "SELECT pool FROM slot_pool WHERE pool = 'eaco'"
    rig.wait_for(lambda: airflow_examples.query(pools), "the GPU pool")
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def quiet_rig(examples: Rig) -> Iterator[Rig]:
    """The rig, watched: after the module everything is quiet."""
    with quiet_afterwards(examples) as rig:
        yield rig


@pytest.fixture
def rig(quiet_rig: Rig) -> Iterator[Rig]:
    """The rig for one test; what the test has started is over before the next one."""
    yield quiet_rig
    quiet_rig.end_runs()
