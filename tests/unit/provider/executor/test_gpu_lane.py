"""The GPU lane's heartbeat over the real engine, a ledger in memory and processes that the test ends."""

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Finding, Reason
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.provider.services import NodeMeter
from tests.unit.provider.executor.lane_rig import FakeMeter, LaneRig, parts_in_memory


@pytest.fixture
def rig(monkeypatch):
    return LaneRig(monkeypatch)


def started(rig):
    return [order.job_id for order in rig.dispatcher.orders]


def test_a_queued_task_is_granted_and_started_in_one_heartbeat(rig):
    """A task that fits free GPUs runs after one heartbeat, with exactly its GPUs in its environment."""
    rig.queue("a", "first")
    rig.beat()
    assert rig.phase("a") == "running"
    assert rig.dispatcher.orders[0].environment["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert not rig.host.tasks
    assert [each.job_id for each in rig.meter.occupants] == ["a"]
    told = {"v": 1, "token": 1, "set_version": 1, "yield": False, "residents": 1}
    assert rig.instructions == [("first", told)]


def test_a_jobs_bundle_is_the_one_that_airflow_loads_its_dag_from(rig):
    """It comes with the workload, so that nothing which an author writes can name another."""
    rig.queue("a", "first")
    rig.beat()
    assert [record.job.bundle for record in rig.ledger.view().jobs] == ["dags-folder"]


def test_the_next_task_waits_until_the_processes_are_gone(rig):
    """A state in Airflow's database does not free a GPU; the end of the last process does (C27)."""
    rig.queue("a", "first")
    rig.queue("b", "second")
    rig.beat()
    rig.become("a", "success")
    rig.beat()
    assert started(rig) == ["a"]
    rig.dispatcher.end("a")
    rig.beat()
    assert started(rig) == ["a", "b"]
    assert rig.phase("a") == "finished"
    assert rig.host.ended == [("first", "success", rig.host.ended[0][2])]


def test_c17_a_token_is_minted_when_a_task_starts_and_not_before(rig):
    """Airflow's own would be out of date after a long wait; one of the wait's begin would be as well."""
    rig.queue("a", "first")
    rig.queue("b", "second")
    rig.beat()
    assert rig.host.renewed == ["first"]
    rig.become("a", "success")
    rig.dispatcher.end("a")
    rig.beat()
    assert rig.host.renewed == ["first", "second"]
    assert [order.payload for order in rig.dispatcher.orders] == ['"a" renewed', '"b" renewed']


def test_a_waiting_task_is_told_why_once(rig):
    """The audit log gets one line when the reason changes and none while it stays."""
    rig.queue("a", "first")
    rig.queue("b", "second")
    for _ in range(4):
        rig.beat()
    assert [(task, event) for task, event, _ in rig.host.told] == [
        ("first", "eaco admit"),
        ("second", "eaco hold"),
    ]


def test_c63_a_task_that_comes_to_a_reason_which_stands_is_told_it_too(rig):
    """Whoever joins those who wait gets a line of its own, with the reason that they have."""
    for number, name in enumerate(("first", "second", "third")):
        rig.queue(f"{number}", name)
        rig.beat()
    assert [(task, event) for task, event, _ in rig.host.told] == [
        ("first", "eaco admit"),
        ("second", "eaco hold"),
        ("third", "eaco hold"),
    ]
    assert rig.host.told[1][2] == rig.host.told[2][2]


@pytest.mark.parametrize(
    "state", ["cleared", None, "scheduled", "running", "failed", "up_for_retry", "success"]
)
def test_c20_a_task_that_was_taken_back_before_its_dispatch_is_not_started(rig, state):
    """A lease for a task instance that is no longer queued falls at once, and nothing is started."""
    rig.queue("a", "first")
    rig.lane.report_nodes()
    rig.lane.hold()
    rig.lane.admit()
    assert rig.phase("a") == "leased"
    if state == "cleared":
        del rig.facts["a"]
    else:
        rig.become("a", state)
    rig.lane.launch()
    assert not rig.dispatcher.orders
    assert not rig.ledger.view().leases
    assert rig.phase("a") == "removed"


def test_c20_a_task_that_is_cleared_and_queued_again_has_one_place(rig):
    """Of several ids of one try only the last one keeps its place in the queue."""
    rig.queue("blocker", "first")
    rig.beat()
    for number in range(10):
        rig.queue(f"b{number}", "second")
        rig.facts.pop(f"b{number - 1}", None)
        rig.beat()
    waiting = [record.job.job_id for record in rig.ledger.view().jobs if record.phase.value == "waiting"]
    assert waiting == ["b9"]


def test_c19_a_task_that_cannot_be_started_fails_with_the_cause(rig):
    """A refused start fails the task with the operating system's words, and gives the GPUs back."""
    rig.queue("a", "first")
    rig.dispatcher.refuse = "No space left on device"
    rig.beat()
    assert rig.host.failed[0][0] == "first"
    assert "No space left on device" in rig.host.failed[0][1]
    assert not rig.ledger.view().leases
    assert rig.phase("a") == "failed"


@pytest.mark.parametrize("is_ready", [True, False], ids=["prepared", "just started"])
def test_c25_twenty_tasks_with_room_for_twenty_run_after_two_heartbeats(monkeypatch, is_ready):
    """All are granted in the first one; they start there, or in the second where the forkserver is new."""
    parts = parts_in_memory()
    rig = LaneRig(monkeypatch, parts=replace(parts, meter=NodeMeter(FakeMeter(gpus=20))))
    alone = GpuRequest(gpus=1, family="small", gpu_memory_mib=1000, share=Share.NEVER)
    for number in range(20):
        rig.queue(f"j{number}", f"task-{number}", request=alone)
    rig.dispatcher.is_ready = is_ready
    rig.beat()
    assert len({lease.placement for lease in rig.ledger.view().leases}) == 20
    rig.dispatcher.is_ready = True
    rig.beat()
    assert [rig.phase(f"j{number}") for number in range(20)] == ["running"] * 20
    assert len(rig.host.running) == 20


def test_c24_a_granted_task_keeps_its_lease_while_the_dispatcher_is_not_ready(rig):
    """A start that has to wait fails nothing and gives no GPU back; a later heartbeat makes it."""
    rig.queue("a", "first")
    rig.dispatcher.is_ready = False
    rig.beat()
    [lease] = rig.ledger.view().leases
    rig.beat()
    assert (rig.host.failed, rig.phase("a")) == ([], "leased")
    rig.dispatcher.is_ready = True
    rig.beat()
    assert rig.phase("a") == "running"
    assert [order.token for order in rig.dispatcher.orders] == [lease.token]


def test_a_hand_over_without_our_tables_is_made_good_later(rig, monkeypatch):
    """When the row cannot be written at the hand-over, the workload stays and the heartbeat writes it."""

    def refuse(session, job, owner):
        raise StoreUnavailableError("no such table")

    working = rig.services.enqueue
    object.__setattr__(rig.services, "enqueue", refuse)
    rig.queue("a", "first", session=object())
    assert rig.phase("a") is None
    object.__setattr__(rig.services, "enqueue", working)
    rig.beat()
    assert rig.phase("a") == "running"


def test_a_rolled_back_hand_over_is_forgotten(rig):
    """A workload whose task is scheduled again was never committed; it leaves memory and queue."""
    rig.queue("a", "first", state="scheduled")
    rig.beat()
    assert not rig.dispatcher.orders
    assert not len(rig.lane.holding)
    assert not rig.host.tasks


def test_a_task_that_gives_way_waits_again_with_its_progress(rig):
    """A reschedule with the same id brings the same job back, and no event that reads like a death."""
    workload = rig.queue("a", "first")
    rig.beat()
    rig.progress[workload.key] = {
        "v": 1,
        "try_number": 1,
        "token": 1,
        "unit": "epoch",
        "units_done": 3,
        "units_total": 9,
        "checkpoint": "/c",
        "can_yield": True,
        "recent": [],
    }
    rig.become("a", "up_for_reschedule")
    rig.dispatcher.end("a")
    rig.beat()
    assert rig.phase("a") == "yielded"
    assert [event for _, event, _ in rig.host.ended] == ["none"]
    rig.queue("a", "first")
    rig.beat()
    record = rig.ledger.record_of("a")
    assert (record.phase.value, record.job.progress.units_done) == ("running", 3)
    assert [order.token for order in rig.dispatcher.orders] == [1, 2]


@pytest.mark.parametrize(("ended", "teaches"), [(False, False), (True, True)])
def test_c62_a_run_marked_a_success_from_outside_teaches_nothing(rig, ended, teaches):
    """Airflow says success either way; only a training that came to its own end is a complete run."""
    workload = rig.queue("a", "first")
    rig.beat()
    rig.progress[workload.key] = {
        "v": 1,
        "try_number": 1,
        "token": 1,
        "unit": "epoch",
        "units_done": 3,
        "units_total": 9,
        "ended": ended,
        "recent": [[0, 10.0, 1, 1], [1, 10.0, 1, 1], [2, 10.0, 1, 1]],
    }
    rig.beat()
    rig.become("a", "success")
    rig.dispatcher.end("a")
    rig.beat()
    assert rig.phase("a") == "finished"
    assert any(key.families == ("first",) for key in rig.services.profiles.book().solo) is teaches


def test_a_request_that_nothing_fits_fails_its_task(rig):
    """What the engine rejects is failed in Airflow with the engine's sentence (C09)."""
    workload = rig.queue("a", "first")
    task = rig.lane.holding.get("a")
    task.request = task.request.__class__(gpus=8, family="first", gpu_memory_mib=1000)
    rig.beat()
    rig.beat()
    assert rig.host.failed[0][0] == "first"
    assert "never fits" in rig.host.failed[0][1]
    assert workload.key not in rig.host.tasks


@pytest.mark.parametrize("mode", [PoolMode.OFF, PoolMode.OBSERVE])
def test_a_pool_that_does_not_act_lets_tasks_pass(monkeypatch, mode):
    """With ``off`` and ``observe`` no GPU is granted and the task goes to the plain lane untouched."""
    rig = LaneRig(monkeypatch, mode)
    workload = rig.queue("a", "first")
    rig.beat()
    assert not rig.ledger.view().leases
    assert not rig.lane.holding.holds_key(workload.key)
    assert rig.plain.start(workload)
    assert "CUDA_VISIBLE_DEVICES" not in rig.dispatcher.orders[0].environment
    assert bool(rig.host.told) is (mode is PoolMode.OBSERVE)


def test_an_unrecorded_start_is_recorded_later(rig):
    """A process whose lease row could not be written is not lost and is not started again."""
    rig.queue("a", "first")
    real = rig.ledger.set_running
    rig.ledger.set_running = lambda token, process: (_ for _ in ()).throw(StoreUnavailableError("down"))
    rig.beat()
    assert rig.phase("a") == "leased"
    rig.ledger.set_running = real
    rig.beat()
    assert rig.phase("a") == "running"
    assert started(rig) == ["a"]


def test_c67_nothing_is_granted_beside_a_process_whose_lease_the_ledger_has_lost(rig):
    """After trouble with the tables a GPU that looks free waits for the end of the process that is on it."""
    rig.queue("a", "first")
    rig.beat()
    rig.ledger.release(1, JobPhase.REMOVED)
    rig.queue("b", "second")
    rig.lane.note_trouble(Finding(Reason.MISCONFIGURED, {"problem": "the tables are gone"}))
    rig.beat()
    assert started(rig) == ["a"]
    rig.become("a", "success")
    rig.dispatcher.end("a")
    rig.beat()
    assert started(rig) == ["a", "b"]


def test_a_revoked_task_leaves_the_queue_or_is_ended(rig):
    """Revoking drops a waiting task and begins to end a running one; rows follow at the heartbeat."""
    rig.queue("a", "first")
    rig.queue("b", "second")
    rig.beat()
    rig.lane.revoke("a")
    rig.lane.revoke("b")
    rig.beat()
    assert rig.phase("b") == "removed"
    assert [reference.rsplit(":", 1)[1] for reference in rig.dispatcher.killed] == ["a"]
