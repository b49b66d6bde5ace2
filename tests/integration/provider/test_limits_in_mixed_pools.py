"""A pool of which some GPUs are the scheduler's own and some have a worker: limits on both, or on none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitRequest
from airflow_provider_eaco.core.model.gpu import Gpu
from airflow_provider_eaco.core.model.gpu import Node as Machine
from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.dispatch.celery import NodeDispatcher
from airflow_provider_eaco.provider.limit_requests import Limiter
from airflow_provider_eaco.telemetry.limit_process import LimitProcess
from tests.integration.provider.limit_site import DEADLINE_S, NODE, SET_TO, Scheduler, Site
from tests.nvml.machine import CONTROL_VARIABLE, FakeMachine, gpu_values

OWN = "own"
JOBS = ("j1", "j2", "j3", "j4")


class MixedSite(Site):
    """A site whose scheduler has two V100 of its own, of another machine's NVML."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus = {index: gpu_values(index, uuid=f"GPU-own-{index}") for index in range(2)}
        self.own_machine = FakeMachine(folder / "own.txt", gpus)
        self.own_machine.write()
        super().__init__(folder, monkeypatch)
        told = tuple(
            Gpu(values["uuid"], OWN, index, "V100", 16384) for index, values in self.own_machine.gpus.items()
        )
        self.own_meter.inventory = lambda: [Machine(OWN, told)]

    def own_limiter(self) -> Limiter:
        return OwnBoards(self)

    def dispatcher(self, elsewhere: Any, here: Any) -> Any:
        return NodeDispatcher(here, elsewhere, lambda node: node == NODE)

    def all_watts(self) -> list[float]:
        """The limits of the own boards and of the node's."""
        return [machine.limit_w(index) for machine in (self.own_machine, self.machine) for index in range(2)]

    def end_all(self) -> None:
        for job_id in JOBS:
            self.end(job_id)
            self.rig.dispatcher.end(job_id)

    @contextmanager
    def own_nvml(self) -> Iterator[None]:
        """Be on the scheduler's machine."""
        before = os.environ[CONTROL_VARIABLE]
        os.environ[CONTROL_VARIABLE] = str(self.own_machine.path)
        try:
            yield
        finally:
            os.environ[CONTROL_VARIABLE] = before


class OwnBoards(LimitProcess):
    """What sets limits on the scheduler's machine."""

    def __init__(self, site: MixedSite) -> None:
        super().__init__(site.folder / "eaco" / "power_limits.json")
        self._site = site

    def begin(self, request: LimitRequest) -> None:
        with self._site.own_nvml():
            super().begin(request)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MixedSite]:
    made = MixedSite(tmp_path, monkeypatch)
    yield made
    made.rig.limits.close(DEADLINE_S)
    made.close()


def all_running(rig: Scheduler) -> bool:
    return {rig.phase(job_id) for job_id in JOBS} == {"running"}


def test_all_boards_of_the_pool_are_held_and_given_back(site: MixedSite) -> None:
    """Each by whoever can: the scheduler its own, the worker those of its node; each task is told."""
    site.ready()
    for job_id in JOBS:
        site.queue(job_id)
    site.until(lambda: all_running(site.rig) and site.all_watts() == [200.0] * 4)
    site.settle()
    assert {lease.placement.node for lease in site.rig.ledger.view().leases} == {OWN, NODE}
    assert list(site.rig.seen().power_limits_w.values()) == [200.0] * 4
    assert [site.stories(job_id) for job_id in JOBS] == [[SET_TO]] * 4
    site.end_all()
    site.until(lambda: site.all_watts() == [300.0] * 4)
    site.settle()
    assert {site.rig.phase(job_id) for job_id in JOBS} == {"finished"}
    assert not site.rig.seen().power_limits_w


@pytest.mark.parametrize("denied", ["own", "node"])
def test_one_side_that_may_not_makes_the_whole_pool_advise(site: MixedSite, denied: str) -> None:
    """A plan weighs all sets of a pool alike, so it counts a limit for all or for none."""
    machine = site.own_machine if denied == "own" else site.machine
    machine.errors = {"nvmlDeviceSetPowerManagementLimit": 4}
    machine.write()
    for job_id in JOBS:
        site.queue(job_id)
    site.until(lambda: all_running(site.rig) and all(site.stories(job_id) for job_id in JOBS))
    site.settle()
    assert site.setting() is PowerLimits.ADVISE
    assert site.all_watts() == [300.0] * 4
    assert all("no permission to set power limits" in site.stories(job_id)[0] for job_id in JOBS)


def test_a_scheduler_that_leaves_lifts_its_own_and_leaves_the_nodes_to_itself(site: MixedSite) -> None:
    """Another scheduler may plan for the node, whose worker lifts its limits with its tasks."""
    site.ready()
    for job_id in JOBS:
        site.queue(job_id)
    site.until(lambda: all_running(site.rig) and site.all_watts() == [200.0] * 4)
    site.settle()
    site.rig.limits.close(DEADLINE_S)
    site.is_scheduled = False
    for _ in range(3):
        site.beat()
    assert site.all_watts() == [300.0, 300.0, 200.0, 200.0]
    for job_id in JOBS:
        site.node.processes.end(job_id)
    site.until(lambda: site.all_watts() == [300.0] * 4)
