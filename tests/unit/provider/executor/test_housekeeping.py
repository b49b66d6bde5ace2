"""Rows of dead schedulers and of tasks that are over are brought in line with Airflow and the processes."""

from types import SimpleNamespace

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.ports import ProcessState
from airflow_provider_eaco.dispatch.process_group import ProcessReference
from airflow_provider_eaco.provider.housekeeping import FORGET_NODE_AFTER_S, Housekeeper
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.unit.provider.executor.lane_rig import START_S

KEY = TaskInstanceKey("dag", "task", "run", 1, -1)
PLACE = Placement("n1", ("GPU-0",))


class Clock:
    """A clock that stands."""

    def now_s(self):
        return START_S


class Processes:
    """A dispatcher whose groups are all alive, or all gone."""

    def __init__(self, alive):
        self.alive = alive
        self.killed = []

    def poll(self, reference):
        return ProcessState(self.alive)

    def kill(self, reference, grace_s):
        self.killed.append(reference)


def ledger_with(phase):
    """Return a ledger with one job of a dead scheduler in this phase."""
    ledger = MemoryLedger(Clock())
    ledger.save_nodes([Node("n1", (Gpu("GPU-0", "n1", 0, "V100", 16384),))])
    request = GpuRequest(gpus=1, family="f")
    job = Job("a", request, "eaco", START_S, OrderKey(START_S, "dag", "task", -1, "a"))
    ledger.add_waiting(job, "9@gone")
    if phase is JobPhase.WAITING:
        return ledger
    launch = Launch(job, PLACE, ())
    lease = ledger.grant(launch, LeaseState.EXCLUSIVE, ledger.view().gpu_versions, "9@gone")
    if phase is not JobPhase.LEASED:
        ledger.set_running(lease.token, str(ProcessReference.here(1, 1, lease.token, "a")))
    if phase is JobPhase.YIELDED:
        ledger.release(lease.token, JobPhase.YIELDED)
    return ledger


def facts(state):
    return {} if state is None else {"a": TaskFacts("a", KEY, state, "eaco", 1, 1, 0.0, 1)}


@pytest.mark.parametrize(
    ("phase", "state", "alive", "after"),
    [
        pytest.param(JobPhase.WAITING, "queued", False, "removed", id="held by nobody, until adopted"),
        pytest.param(JobPhase.WAITING, None, False, "removed", id="cleared"),
        pytest.param(JobPhase.YIELDED, "up_for_reschedule", False, "yielded", id="comes back by itself"),
        pytest.param(JobPhase.YIELDED, "failed", False, "removed", id="never comes back"),
        pytest.param(JobPhase.LEASED, "queued", False, "removed", id="granted to a dead scheduler"),
        pytest.param(JobPhase.RUNNING, "running", True, "running", id="runs on"),
        pytest.param(JobPhase.RUNNING, "success", False, "finished", id="ended unseen"),
        pytest.param(JobPhase.RUNNING, "failed", False, "failed", id="failed unseen"),
        pytest.param(JobPhase.RUNNING, None, False, "removed", id="cleared and gone"),
    ],
)
def test_c28_orphaned_rows_follow_the_processes(phase, state, alive, after):
    """A lease falls only when its process is gone, and what nobody looks after leaves the queue."""
    ledger = ledger_with(phase)
    Housekeeper(ledger, Processes(alive), 10.0).tidy(ledger.view(), {"a"}, facts(state))
    assert ledger.record_of("a").phase.value == after
    assert bool(ledger.view().leases) is (after == "running")


def test_an_orphaned_process_of_a_task_that_is_over_is_ended():
    """A process that nobody adopted and Airflow no longer wants is ended; its lease falls after it."""
    ledger, processes = ledger_with(JobPhase.RUNNING), Processes(alive=True)
    Housekeeper(ledger, processes, 10.0).tidy(ledger.view(), {"a"}, facts("failed"))
    assert len(processes.killed) == 1
    assert len(ledger.view().leases) == 1


def test_rows_of_a_living_executor_are_left_to_it():
    """Only jobs named as orphans are touched."""
    ledger = ledger_with(JobPhase.WAITING)
    assert Housekeeper(ledger, Processes(alive=False), 10.0).tidy(ledger.view(), set(), {}) == ()
    assert ledger.record_of("a").phase is JobPhase.WAITING


@pytest.mark.parametrize(("silent_s", "kept"), [(FORGET_NODE_AFTER_S, ["n1"]), (FORGET_NODE_AFTER_S + 1, [])])
def test_a_node_that_is_away_for_a_day_is_forgotten(silent_s, kept):
    """A machine that was renamed leaves no node behind for ever, and a restart of an hour forgets none."""
    clock = SimpleNamespace(now_s=lambda: START_S)
    ledger = MemoryLedger(clock)
    ledger.save_nodes([Node("n1", (Gpu("GPU-0", "n1", 0, "V100", 16384),))])
    clock.now_s = lambda: START_S + silent_s
    Housekeeper(ledger, Processes(False), 10.0).forget_nodes(ledger.view())
    assert [node.name for node in ledger.view().nodes] == kept
