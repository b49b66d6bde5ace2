"""One Airflow with four users of different roles and simulated nodes, for all tests of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Airflow, AirflowSettings
from tests.system.rig import Rig

USERS = {"viewer": "viewer", "user": "user", "op": "op", "admin": "admin"}
POOLS = {
    "eaco": {"mode": "exclusive", "nodes": ["small"]},
    "sharing": {"mode": "share", "nodes": ["shared-*"]},
}
NODES = [{"name": "shared-1", "gpus": 8}, {"name": "shared-2", "gpus": 8}, {"name": "small", "gpus": 4}]


@pytest.fixture(scope="package")
def airflow_page(tmp_path_factory: pytest.TempPathFactory, system_dags: Path) -> Iterator[Airflow]:
    """An Airflow with EacoExecutor alone, in which nobody is an administrator by default."""
    settings = AirflowSettings(
        tmp_path_factory.mktemp("page"),
        system_dags,
        executor="airflow_provider_eaco.EacoExecutor",
        options={
            "eaco.pools": json.dumps(POOLS),
            "eaco.simulated_nodes": json.dumps(NODES),
            "eaco.simulated_time_scale": "3600",
            "eaco.kill_grace": "1",
        },
        users=USERS,
    )
    with Airflow(settings) as airflow:
        yield airflow


@pytest.fixture(scope="package")
def rig(airflow_page: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig of that Airflow, once its pools are made."""
    rig = Rig(airflow_page, tmp_path_factory.mktemp("told"))
    rig.wait_for(
        lambda: {*POOLS} <= {row["pool"] for row in airflow_page.query("SELECT pool FROM slot_pool")},
        "the GPU pools",
    )
    yield rig
    rig.end_runs()
    rig.close()
