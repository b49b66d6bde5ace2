"""GPU tasks on a node with a worker: held until it has begun, placed anew when it never does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import ProcessState
from airflow_provider_eaco.provider.adoption import adoption_of
from airflow_provider_eaco.provider.gpu_lane import GpuLane
from airflow_provider_eaco.provider.housekeeping import Housekeeper
from tests.builders import make_request
from tests.unit.provider.executor.lane_rig import START_S, FakeDispatcher, LaneRig, make_workload


class FarDispatcher(FakeDispatcher):
    """Sends orders to a node whose answers the test gives."""

    def start(self, order: Any) -> str:
        super().start(order)
        reference = f"node:far:{order.token}:{order.job_id}"
        self.states[reference] = ProcessState(alive=True, begun=False)
        return reference

    def answer(self, **state: Any) -> None:
        """Let this be what is known of the last run that was sent."""
        self.states[list(self.states)[-1]] = ProcessState(**state)


class FakeWorkers:
    """One node, far, has a worker."""

    def __init__(self) -> None:
        self.sent = True
        self.withdrawn: list[int] = []
        self.may_withdraw = False

    def has_worker(self, node: str) -> bool:
        return node == "far"

    def reference_of(self, lease: Lease) -> str | None:
        return f"node:far:{lease.token}:{lease.job_id}" if self.sent else None

    def withdraw(self, lease: Lease) -> bool:
        self.withdrawn.append(lease.token)
        return self.may_withdraw


class Rig(LaneRig):
    """A lane on a machine without GPUs, beside a node with a worker."""

    def __init__(self, monkeypatch: Any) -> None:
        super().__init__(monkeypatch)
        self.meter.inventory = list
        self.dispatcher = FarDispatcher()
        self.workers = FakeWorkers()
        self.services = replace(self.services, dispatcher=self.dispatcher, workers=self.workers)
        self.lane = GpuLane(self.host, self.services, self.plain)
        gpus = tuple(Gpu(f"GPU-{index}", "far", index, "V100", 16384) for index in range(2))
        self.ledger.save_nodes([Node("far", gpus, last_report_s=START_S)])


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    made = Rig(monkeypatch)
    made.queue("a", "first")
    made.beat()
    return made


def test_a_granted_task_is_sent_to_its_node_with_its_gpus(rig: Rig) -> None:
    """The order names node, GPUs and fencing token; Airflow hears nothing before the node has begun it."""
    [order] = rig.dispatcher.orders
    [lease] = rig.ledger.view().leases
    assert (order.placement, order.token) == (lease.placement, lease.token)
    assert rig.host.running == {}
    assert rig.phase("a") == "leased"
    assert "a" in rig.lane.holding


def test_it_is_announced_once_its_node_has_begun_it(rig: Rig) -> None:
    """From then on it runs like any other: known to Airflow and to the ledger, held no longer."""
    rig.beat()
    assert len(rig.dispatcher.orders) == 1, "sent once"
    rig.dispatcher.answer(alive=True)
    rig.beat()
    assert list(rig.host.running.values()) == [f"node:far:{rig.dispatcher.orders[0].token}:a"]
    assert rig.phase("a") == "running"
    assert "a" not in rig.lane.holding
    assert rig.host.tasks == {}
    rig.become("a", "success")
    rig.dispatcher.answer(alive=False, exit_code=0)
    rig.beat()
    assert [(task, event) for task, event, _ in rig.host.ended] == [("first", "success")]
    assert (rig.phase("a"), rig.ledger.view().leases) == ("finished", ())


def test_c51_one_that_never_began_waits_again_and_is_placed_anew(rig: Rig) -> None:
    """A refused or lost start costs no try: the lease falls, and the task is granted a new token (C51)."""
    [first] = rig.dispatcher.orders
    rig.dispatcher.answer(alive=False, begun=False, cause="no such GPU")
    rig.beat()
    second = rig.dispatcher.orders[-1]
    assert second.token > first.token
    assert rig.phase("a") == "leased"
    assert (rig.host.ended, rig.host.failed) == ([], [])


def test_c19_one_that_could_not_be_started_fails_with_the_cause(rig: Rig) -> None:
    """What its node could not start is failed with that machine's words, and gives its GPUs back (C19)."""
    rig.dispatcher.answer(alive=False, exit_code=1, begun=False, cause="No space left on device")
    rig.beat()
    [(task, text)] = rig.host.failed
    assert task == "first"
    assert "No space left on device" in text
    assert (rig.phase("a"), rig.ledger.view().leases) == ("failed", ())


def test_one_that_ends_before_anybody_looked_is_told_as_ended(rig: Rig) -> None:
    """A short task may have begun and ended between two heartbeats."""
    rig.become("a", "success")
    rig.dispatcher.answer(alive=False, exit_code=0)
    rig.beat()
    assert [(task, event) for task, event, _ in rig.host.ended] == [("first", "success")]
    assert rig.phase("a") in {"finished", "failed"}
    assert rig.ledger.view().leases == ()


def test_c20_one_that_was_cleared_before_it_began_is_taken_back(rig: Rig) -> None:
    """A task that Airflow no longer wants is not begun any more, and its lease falls."""
    rig.lane.revoke("a")
    del rig.facts["a"]
    rig.beat()
    assert rig.dispatcher.killed == [f"node:far:{rig.dispatcher.orders[0].token}:a"]
    rig.dispatcher.answer(alive=False, begun=False)
    rig.beat()
    assert rig.ledger.view().leases == ()
    assert len(rig.dispatcher.orders) == 1


def _ti(state: str) -> Any:
    key = TaskInstanceKey("dag", "first", "run", 1, -1)
    return SimpleNamespace(id="a", key=key, state=state, external_executor_id=None)


@pytest.mark.parametrize(
    ("state", "known", "adopted", "holds"),
    [
        pytest.param("queued", ProcessState(alive=True, begun=False), True, True, id="sent, not begun"),
        pytest.param("queued", ProcessState(alive=False, begun=False), True, True, id="came to nothing"),
        pytest.param("queued", ProcessState(alive=True), True, False, id="begun"),
        pytest.param("running", ProcessState(alive=True), True, False, id="running"),
        pytest.param("running", ProcessState(alive=False, exit_code=1), True, False, id="ended meanwhile"),
    ],
)
def test_c21_a_dead_schedulers_run_on_a_node_is_adopted(
    state: str, known: ProcessState, adopted: bool, holds: bool, rig: Rig
) -> None:
    """Another scheduler, on any machine, goes on with a run by its lease and what its node says (C21)."""
    view = rig.ledger.view()
    rig.dispatcher.states[list(rig.dispatcher.states)[-1]] = known
    adoption = adoption_of(
        _ti(state),
        {record.job.job_id: record for record in view.jobs},
        {lease.job_id: lease for lease in view.leases},
        rig.dispatcher,
        rig.workers,
    )
    assert (adoption.group is not None, adoption.hold) == (adopted, holds)
    if adoption.group is not None:
        assert adoption.group.announced is not holds


def test_a_lease_that_was_never_sent_is_held_anew(rig: Rig) -> None:
    """A scheduler that died between grant and message leaves a task that only has to wait again."""
    rig.workers.sent = False
    view = rig.ledger.view()
    leases = {lease.job_id: lease for lease in view.leases}
    adoption = adoption_of(_ti("queued"), {}, leases, rig.dispatcher, rig.workers)
    assert (adoption.group, adoption.hold) == (None, True)


@pytest.mark.parametrize(
    ("may_withdraw", "alive", "phase"),
    [
        pytest.param(True, False, "removed", id="never begun: the lease falls"),
        pytest.param(False, True, "leased", id="lives on its node: left alone"),
        pytest.param(False, False, "removed", id="gone: the lease falls"),
    ],
)
def test_an_orphan_on_a_node_is_withdrawn_before_its_lease_falls(
    may_withdraw: bool, alive: bool, phase: str, rig: Rig
) -> None:
    """A scheduler may be late and not dead: its lease falls only once it can no longer be begun."""
    rig.workers.may_withdraw = may_withdraw
    rig.dispatcher.answer(alive=alive, begun=alive)
    housekeeper = Housekeeper(rig.ledger, rig.dispatcher, 1.0, rig.workers)
    housekeeper.tidy(rig.ledger.view(), ["a"], rig.facts)
    assert rig.phase("a") == phase
    assert rig.workers.withdrawn == [rig.dispatcher.orders[0].token]


@pytest.mark.parametrize(("begun", "leases"), [(True, 1), (False, 0)], ids=["begun", "not begun"])
def test_c22_what_another_scheduler_has_begun_keeps_its_lease(begun: bool, leases: int, rig: Rig) -> None:
    """Of two schedulers that hold one task the later one does not end what the other has begun (C22)."""
    rig.workers.may_withdraw = not begun
    [lease] = rig.ledger.view().leases
    other = GpuLane(rig.host, rig.services, rig.plain)
    other.accept(make_workload("a", "first"), make_request(gpus=2), START_S, None)
    rig.become("a", "running")
    other.launch()
    assert len(rig.ledger.view().leases) == leases
    assert rig.workers.withdrawn == [lease.token]
    assert "a" not in other.holding
    assert len(rig.dispatcher.orders) == 1
