"""EacoExecutor alone, on SQLite, on simulated GPUs: whose turn it is, how tasks are held, live and share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings
from tests.system.rig import QUIET_LOOP, Rig, quiet_afterwards, user_path

POOLS = {
    "eaco": {"mode": "exclusive", "nodes": ["small"]},
    "impatient": {"mode": "exclusive", "nodes": ["small"], "reject_after_s": 1},
    "sharing": {"mode": "share", "nodes": ["shared"]},
    "wide": {"mode": "exclusive", "nodes": ["wide"]},
    "moody": {"mode": "share", "policy": "moody", "nodes": ["moody"]},
    "ordered": {"mode": "exclusive", "nodes": ["pair"]},
    "turns": {"mode": "exclusive", "nodes": ["single"]},
    "fair": {
        "mode": "exclusive",
        "nodes": ["pair"],
        "rules": ["fair_share"],
        "fair_share": {"by": "dag"},
    },
    "rationed": {
        "mode": "exclusive",
        "nodes": ["ration"],
        "rules": ["fair_share"],
        # About one second of one GPU.
        "fair_share": {"by": "bundle", "quotas_gpu_h": {"dags-folder": 0.0003}, "borrowing": False},
    },
}
NODES = [
    {"name": "small", "gpus": 4},
    {"name": "shared", "gpus": 8},
    {"name": "wide", "gpus": 24},
    {"name": "moody", "gpus": 2},
    {"name": "pair", "gpus": 2},
    {"name": "single", "gpus": 1},
    {"name": "ration", "gpus": 1},
]
# Slower together than anybody would estimate.
TRUTH = [{"families": ["J2", "J3"], "gpu_model": "V100", "gpu_count": 8, "slowdowns": [1.6, 1.6]}]


@pytest.fixture(scope="package")
def alone(tmp_path_factory: pytest.TempPathFactory, system_dags: Path, migrated: Path) -> Iterator[Rig]:
    """The rig of an Airflow whose only executor is EacoExecutor, and whose patience with queued tasks is
    short, once its pools are made.
    """
    home = tmp_path_factory.mktemp("alone")
    settings = AirflowSettings(
        home,
        system_dags,
        executor="airflow_provider_eaco.EacoExecutor",
        migrated=migrated,
        options={
            **QUIET_LOOP,
            "core.parallelism": "8",
            "scheduler.task_queued_timeout": "10",
            "scheduler.task_queued_timeout_check_interval": "2",
            "scheduler.num_stuck_in_queued_retries": "0",
            "scheduler.job_heartbeat_sec": "2",
            "scheduler.scheduler_health_check_threshold": "15",
            "scheduler.orphaned_tasks_check_interval": "3",
            "eaco.pools": json.dumps(POOLS),
            "eaco.simulated_nodes": json.dumps(NODES),
            "eaco.simulated_truth": json.dumps(TRUTH),
            "eaco.simulated_time_scale": "3600",
            "eaco.kill_grace": "3",
            "eaco.rules": json.dumps([{"match": {"dag_id": "plain"}, "request": {"gpus": 1}}]),
        },
        environment={"PYTHONPATH": user_path(), "EACO_MOODY_FILE": str(home / "bad-day")},
    )
    with Airflow(settings) as airflow:
        rig = Rig(airflow, tmp_path_factory.mktemp("told"))
        rig.wait_for(
            lambda: {*POOLS} <= {row["pool"] for row in airflow.query("SELECT pool FROM slot_pool")},
            "the GPU pools",
        )
        yield rig
        rig.close()


@pytest.fixture(scope="module")
def quiet_rig(request: pytest.FixtureRequest, alone: Rig) -> Iterator[Rig]:
    """The rig, watched: after the module everything is quiet. The module names tracebacks it provokes."""
    with quiet_afterwards(alone, getattr(request.module, "EXPECTED_TRACEBACKS", ())) as rig:
        yield rig


@pytest.fixture
def rig(quiet_rig: Rig) -> Iterator[Rig]:
    """The rig for one test; what the test has started is over before the next one."""
    yield quiet_rig
    quiet_rig.end_runs()
