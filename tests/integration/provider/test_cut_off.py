"""A node whose network is gone for six minutes: lane, dispatcher, store and agent on virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.dispatch.celery import CeleryDispatcher
from airflow_provider_eaco.provider.gpu_lane import GpuLane
from airflow_provider_eaco.provider.node_wiring import KnownWorkers, make_node_door
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import NodeApiError
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_runs import SqlNodeRuns
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.unit.provider.executor.lane_rig import START_S, FakeMeter, LaneRig, Parts
from tests.unit.provider.worker.worker_rig import FakeMachine, FakeRegister, NoBoards

NODE = "gpu-1"
#: As long as the admission loop waits for a node if nothing else is said.
SILENT_S = 120.0
STEP_S = 5
CUT_OFF_S = 360
#: Airflow's default for a task that is not heard of.
AIRFLOW_GIVES_UP_S = 300
#: From there to the end that Airflow is told; before, a supervisor is given time to end its task itself.
GONE_WITHIN_S = 40


class FarMachine(FakeMachine):
    """One GPU; a process that is to end does so when the test says, or at once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stubborn = False

    def start(self, order: LaunchOrder) -> str:
        self.started.append(order)
        reference = f"{len(self.started)}:2:host:boot:{order.token}:{order.job_id}"
        self.alive[reference] = None
        return reference

    def kill(self, reference: str, grace_s: float) -> None:
        super().kill(reference, grace_s)
        if not self.is_stubborn:
            self.alive[reference] = 137

    def find(self, job_id: str, token: int) -> str | None:
        return next((each for each in self.alive if each.endswith(f":{token}:{job_id}")), None)

    @property
    def living(self) -> list[str]:
        """The job ids of the processes that live."""
        return [each.rsplit(":", 1)[1] for each, code in self.alive.items() if code is None]


class CutOff:
    """A scheduler's lane and one node with a worker over one store; the network between them may be gone.

    It is the node's API, too. Airflow's side is what the test says of its task instances.
    """

    interval_s = float(STEP_S)

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(START_S)
        database = database_on(sqlite_store(folder / "store.db"), self.clock)
        credentials, self.runs = SqlNodeCredentials(database), SqlNodeRuns(database)
        credentials.add(NODE)
        self._door = make_node_door(EacoSettings(node_timeout_s=SILENT_S), database)
        self.is_cut = False
        parts = Parts(
            ledger=SqlLedger(database),
            profiles=SqlProfileStore(database, ProfileBook()),
            decisions=SqlDecisionLog(database),
            planner=SqlPlannerLock(database),
            energy=SqlEnergyLog(database),
            meter=NodeMeter(FakeMeter(gpus=0)),
        )
        self.ledger, self.rig = parts.ledger, LaneRig(monkeypatch, parts=parts)
        self.rig.meter.inventory = list
        celery = CeleryDispatcher(self.runs, self._send, timeout_s=SILENT_S, monotonic=self.clock.now_s)
        workers = KnownWorkers(credentials.nodes, self.runs, self.clock.now_s)
        self.rig.services = replace(self.rig.services, dispatcher=celery, workers=workers)
        self.rig.lane = GpuLane(self.rig.host, self.rig.services, self.rig.plain, self.clock.now_s)
        self.machine = FarMachine()
        meter = NodeMeter(self.machine, runs=self.machine, memory=self.machine)
        machine = Machine(NODE, "host", meter, self.machine, _order, self.machine.find, limiter=NoBoards())
        self.agent = NodeAgent(machine, self, FakeRegister(), self.clock.now_s)
        self.pass_s(STEP_S, steps=1)

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        self._check_network()
        return self._door.claim(NODE, "host", token, job_id)

    def report(self, report: NodeReport) -> NodeAnswer:
        self._check_network()
        return self._door.take(report)

    def queue(self, job_id: str, try_number: int = 1) -> None:
        """Have Airflow hand a try of the task over."""
        request = GpuRequest(1, "family", gpu_memory_mib=4096, share=Share.NEVER)
        self.rig.queue(job_id, "task", try_number=try_number, request=request)

    def begin(self, job_id: str) -> None:
        """Have the first try run, and Airflow know of it."""
        self.queue(job_id)
        self.pass_s(3 * STEP_S, steps=3)
        assert self.machine.living == [job_id]
        self.rig.become(job_id, "running")

    def pass_s(self, seconds: int, steps: int = 4) -> None:
        """Let time pass; scheduler and worker do their part in turn, and no GPU ever has two processes."""
        for _ in range(steps):
            self.clock.advance(seconds / steps)
            self.rig.beat()
            self.agent.step()
            assert len(self.machine.living) <= 1, "a GPU was granted again while its process lived"

    @property
    def ended(self) -> list[tuple[str, str]]:
        """What Airflow was told of ended tasks."""
        return [(task_id, event) for task_id, event, _ in self.rig.host.ended]

    def _check_network(self) -> None:
        if self.is_cut:
            raise NodeApiError("away", is_refusal=False)

    def _send(self, queue: str, task: str, message: Mapping[str, Any]) -> None:
        self.agent.take(message)


def _order(claim: RunClaim, payload: str) -> LaunchOrder:
    return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CutOff:
    made = CutOff(tmp_path, monkeypatch)
    made.begin("try-1")
    return made


@pytest.mark.parametrize("has_retry", [True, False], ids=["a retry", "no retry left"])
def test_c26_a_run_on_a_node_that_is_cut_off_is_lost_once_and_never_doubled(
    has_retry: bool, site: CutOff
) -> None:
    """Six minutes without the node: Airflow gives the task up, and is told of its end once. Its GPU is
    granted to nobody before the network is back and the old process, which lives all the while, was ended;
    then the next try starts, if the user's setting gives one.
    """
    site.is_cut, site.machine.is_stubborn = True, True
    site.pass_s(AIRFLOW_GIVES_UP_S)
    assert (site.ended, site.rig.phase("try-1")) == ([], "running")
    site.rig.become("try-1", "up_for_retry" if has_retry else "failed")
    site.pass_s(GONE_WITHIN_S)
    assert (len(site.ended), site.rig.phase("try-1")) == (1, "failed")
    assert site.ledger.view().leases == ()
    if has_retry:
        site.queue("try-2", try_number=2)
    site.pass_s(CUT_OFF_S - AIRFLOW_GIVES_UP_S - GONE_WITHIN_S, steps=2)
    assert (site.machine.living, site.machine.killed) == (["try-1"], [])
    assert site.ledger.view().leases == ()

    site.is_cut = False
    site.pass_s(60)
    assert {reference.rsplit(":", 1)[1] for reference, _ in site.machine.killed} == {"try-1"}
    assert site.ledger.view().leases == (), "granted while the old process lives"
    assert len(site.machine.started) == 1

    site.machine.is_stubborn = False
    site.pass_s(60)
    assert site.machine.living == (["try-2"] if has_retry else [])
    assert [order.job_id for order in site.machine.started] == ["try-1", "try-2"][: 1 + has_retry]
    assert [lease.job_id for lease in site.ledger.view().leases] == (["try-2"] if has_retry else [])
    assert len(site.ended) == 1


def test_c26_a_run_that_airflow_still_counts_on_goes_on_after_the_cut(site: CutOff) -> None:
    """Where the user's time-outs are longer than the cut, nothing is lost: the process is left alone, holds
    its GPU all the while, and its end is told once.
    """
    site.queue("other", try_number=1)
    [lease] = site.ledger.view().leases
    site.is_cut = True
    site.pass_s(CUT_OFF_S)
    site.is_cut = False
    site.pass_s(60)
    assert site.ledger.view().leases == (lease,)
    assert (site.machine.living, site.machine.killed, site.ended) == (["try-1"], [], [])
    site.rig.become("try-1", "success")
    site.machine.alive[f"1:2:host:boot:{lease.token}:try-1"] = 0
    site.pass_s(60)
    assert site.ended == [("task", "success")]
    assert site.machine.living == ["other"]


def test_c26_an_order_that_the_cut_kept_from_beginning_is_placed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent as the network went, and not begun, is taken back; it starts once the node is there."""
    site = CutOff(tmp_path, monkeypatch)
    site.is_cut = True
    site.queue("try-1")
    site.pass_s(CUT_OFF_S)
    assert (site.machine.started, site.ended, site.rig.host.failed) == ([], [], [])
    site.is_cut = False
    site.pass_s(60)
    assert [order.job_id for order in site.machine.started] == ["try-1"]
    [lease] = site.ledger.view().leases
    assert site.machine.started[0].token == lease.token
