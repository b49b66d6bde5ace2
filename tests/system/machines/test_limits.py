"""Power limits by real workers, on NVML's test library: with `make soak`, since it starts another Airflow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_provider_eaco.core.model.profile import PowerLevel, SoloProfile
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.servers import Postgres, Redis
from tests.system.machines.site import FAMILY, GPUS_PER_NODE, Site
from tests.system.rig import is_alive

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.postgres,
    pytest.mark.skipif("EACO_SOAK_S" not in os.environ, reason="runs with `make soak`"),
]

POOL = {"policy": "frontier", "prices": "greedy", "mean_stretch": 1.2, "power_limits": "apply"}
# Held to 200 W a board it draws half and takes 4 % longer.
PROFILE = SoloProfile(
    FAMILY, "V100", 1, unit_s=1000.0, samples=5, power_w=280.0, utilisation_pct=80.0, units_total=1,
    levels=(PowerLevel(200.0, 1.04, 0.5),),
)  # fmt: skip


@dataclass
class LimitedSite(Site):
    """A site whose pool applies power limits."""

    @staticmethod
    def more_options() -> dict[str, str]:
        return {"eaco.pools": json.dumps({"eaco": {"mode": "share", **POOL}})}

    def watts_of(self, node: str) -> list[float]:
        """The limits of the node's boards, least first."""
        return sorted(self.boards[node].limit_w(index) for index in range(GPUS_PER_NODE))

    def wait_reports(self, node: str) -> None:
        """Return when the node's present worker has reported for some seconds."""
        [now] = self.airflow.query("SELECT now() AS at")
        query = "SELECT 1 FROM eaco_node WHERE name = :node AND last_report_at > :at + interval '5 seconds'"
        self.wait(lambda: self.airflow.query(query, node=node, at=now["at"]), f"reports of {node}")

    def are_applied(self) -> bool:
        """Tell whether each node has told that its boards take limits."""
        told = [
            json.loads(row["told"]) for row in self.airflow.query("SELECT told FROM eaco_node_limit_report")
        ]
        permits = [cause for each in told for cause in each["permits"].values()]
        return permits == [None] * GPUS_PER_NODE * len(self.boards)


@pytest.fixture
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedSite]:
    """The site, with every part up."""
    folder = tmp_path_factory.mktemp("limited")
    with (
        Redis(tmp_path_factory.mktemp("redis")) as redis,
        Postgres() as postgres,
        LimitedSite.make(folder, redis, postgres) as made,
    ):
        assert isinstance(made, LimitedSite)
        yield made


def test_a_real_worker_sets_limits_before_tasks_begin_and_after_kill_9_puts_them_back(
    limited: LimitedSite,
) -> None:
    """A task finds its board limited; a worker that is killed and started again leaves it so while the task
    lives, and puts back what a task left that ended while no worker was there.
    """
    SqlProfileStore(limited.rig.database, built_in_book()).save_solo(PROFILE)
    limited.wait(limited.are_applied, "the permission to set limits")
    run = limited.rig.run("machine_one", held=1)
    [note] = run.wait_started()
    node = note["node"]
    # A worker whose limit takes more than 10 s to be set says so among these lines.
    assert limited.watts_of(node) == [200.0, 300.0], limited.airflow.component(node).last_lines()
    stories = "SELECT text FROM eaco_event WHERE event = 'power_limit'"
    limited.wait(lambda: limited.airflow.query(stories), "the task's story")
    assert [row["text"] for row in limited.airflow.query(stories)] == ["held to 200 W a board, of 300 W"]
    changes = limited.boards[node].limits_set()
    limited.restart(node)
    limited.wait_reports(node)
    # It has asked its boards anew whether they take limits, by setting what they have.
    asked = limited.boards[node].limits_set()[len(changes) :]
    assert all(limited.boards[node].limit_w(index) == watts for index, watts in asked)
    assert limited.watts_of(node) == [200.0, 300.0]
    limited.airflow.kill_component(node)
    run.end()
    limited.rig.wait_for(lambda: not is_alive(note["pid"]), "the end of the task")
    assert limited.watts_of(node) == [200.0, 300.0]
    limited.start_worker(node)
    limited.wait(lambda: limited.watts_of(node) == [300.0, 300.0], "the limit that the board had before")
    limited.wait_end(run)
