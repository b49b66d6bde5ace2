"""What the end of a process group means, who has to be ended, what is taken over from a dead scheduler."""

from types import SimpleNamespace

import pytest
from airflow.models.taskinstancekey import TaskInstanceKey

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import JobRecord, ProcessState
from airflow_provider_eaco.dispatch.process_group import ProcessReference
from airflow_provider_eaco.provider import groups
from airflow_provider_eaco.provider.adoption import adoption_of
from airflow_provider_eaco.provider.groups import EXTERNAL_END_S, OWN_END_S, GroupTable
from airflow_provider_eaco.provider.running import Event, RunningGroup, ending_of
from airflow_provider_eaco.provider.task_instances import TaskFacts
from tests.unit.provider.executor.lane_rig import FakeDispatcher

KEY = TaskInstanceKey("dag", "task", "run", 1, -1)


@pytest.mark.parametrize(
    ("state", "exit_code", "requeued", "phase", "event"),
    [
        pytest.param("success", 0, False, JobPhase.FINISHED, Event.SUCCESS, id="finished"),
        pytest.param("success", None, False, JobPhase.FINISHED, Event.SUCCESS, id="finished, adopted"),
        pytest.param("skipped", 0, False, JobPhase.REMOVED, Event.SUCCESS, id="skipped"),
        pytest.param("failed", 0, False, JobPhase.FAILED, Event.SUCCESS, id="failed by itself"),
        pytest.param("up_for_retry", 0, False, JobPhase.FAILED, Event.SUCCESS, id="will be retried"),
        pytest.param("up_for_reschedule", 0, False, JobPhase.YIELDED, Event.NONE, id="gave way"),
        pytest.param("scheduled", 0, False, JobPhase.YIELDED, Event.NONE, id="gave way, scheduled again"),
        pytest.param("queued", 0, True, JobPhase.YIELDED, Event.NONE, id="gave way, handed over again"),
        pytest.param("queued", 0, False, JobPhase.YIELDED, Event.NONE, id="gave way, queued elsewhere"),
        pytest.param("deferred", 0, False, JobPhase.YIELDED, Event.NONE, id="deferred"),
        pytest.param("queued", 1, False, JobPhase.FAILED, Event.FAILURE, id="never started"),
        pytest.param("queued", None, False, JobPhase.YIELDED, Event.NONE, id="nobody knows"),
        pytest.param("running", 137, False, JobPhase.FAILED, Event.FAILURE, id="killed from outside"),
        pytest.param("running", None, False, JobPhase.FAILED, Event.FAILURE, id="died while adopted"),
        pytest.param("restarting", 143, False, JobPhase.REMOVED, Event.SUCCESS, id="cleared while running"),
    ],
)
def test_airflows_state_decides_what_an_end_means(state, exit_code, requeued, phase, event):
    """The task's state decides; the exit code only where Airflow has not heard of the process."""
    ending = ending_of(state, known=True, exit_code=exit_code, requeued=requeued)
    assert (ending.phase, ending.event) == (phase, event)


def test_an_end_of_a_cleared_task_lets_the_next_try_start():
    """A cleared task has a new id; the end of the old process is reported as success, never as failure."""
    ending = ending_of(None, known=False, exit_code=1, requeued=False)
    assert (ending.phase, ending.event) == (JobPhase.REMOVED, Event.SUCCESS)


class Clock:
    """A monotonic clock that the test moves."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def facts(state):
    return {"a": TaskFacts("a", KEY, state, "eaco", 1, 1, 0.0, 1)}


@pytest.mark.parametrize(
    ("known", "patience_s"),
    [
        pytest.param({}, EXTERNAL_END_S, id="cleared"),
        pytest.param(facts("failed"), EXTERNAL_END_S, id="marked failed"),
        pytest.param(facts("skipped"), EXTERNAL_END_S, id="its run is over its time"),
        pytest.param(facts("success"), OWN_END_S, id="ended, uploading its log"),
    ],
)
def test_c27_processes_of_a_task_that_is_over_are_ended_after_a_bound(known, patience_s):
    """A group that Airflow no longer wants is ended by us once its own supervisor had its time."""
    dispatcher, clock = FakeDispatcher(), Clock()
    table = GroupTable(dispatcher, 10.0, clock)
    table.add(RunningGroup(KEY, "a", "ref"))
    assert not table.kill_unwanted(known)
    clock.now_s = patience_s - 0.1
    assert not table.kill_unwanted(known)
    clock.now_s = patience_s
    assert [group.job_id for group in table.kill_unwanted(known)] == ["a"]
    assert not table.kill_unwanted(known)
    assert dispatcher.killed == ["ref"]


def test_processes_of_a_running_task_are_left_alone():
    """A state that comes and goes starts the patience anew."""
    dispatcher, clock = FakeDispatcher(), Clock()
    table = GroupTable(dispatcher, 10.0, clock)
    table.add(RunningGroup(KEY, "a", "ref"))
    table.kill_unwanted({})
    clock.now_s = EXTERNAL_END_S
    assert not table.kill_unwanted(facts("running"))
    assert not table.kill_unwanted({})
    assert groups.EXTERNAL_END_S < 30 - 10  # C27: thirty seconds in all, the kill grace included


def ti(state, external_id=None):
    return SimpleNamespace(id="a", key=KEY, state=state, external_executor_id=external_id)


def reference(job_id="a", token=7):
    return str(ProcessReference.here(1, 1, token, job_id))


def record(phase, process=None):
    return {"a": JobRecord(None, phase, "9@gone", process)}


LEASE = {"a": Lease(7, "a", Placement("n1", ("GPU-0",)), LeaseState.EXCLUSIVE, 1, 0.0)}


RUNNING, HELD, ANEW = frozenset({"running"}), frozenset({"held"}), frozenset()


class Poll:
    """A dispatcher whose groups are all alive, or all gone."""

    def __init__(self, alive):
        self.alive = alive

    def poll(self, text):
        return ProcessState(self.alive)


@pytest.mark.parametrize(
    ("task", "rows", "alive", "taken"),
    [
        pytest.param(ti("queued"), ({}, {}), False, HELD, id="held, never written"),
        pytest.param(ti("queued"), (record(JobPhase.WAITING), {}), False, HELD, id="held"),
        pytest.param(ti("queued"), (record(JobPhase.LEASED), LEASE), False, HELD, id="granted, not started"),
        pytest.param(
            ti("queued"), (record(JobPhase.RUNNING, reference()), LEASE), True, RUNNING, id="just started"
        ),
        pytest.param(
            ti("running"), (record(JobPhase.RUNNING, reference()), LEASE), True, RUNNING, id="running"
        ),
        pytest.param(
            ti("running"),
            (record(JobPhase.RUNNING, reference()), LEASE),
            False,
            RUNNING,
            id="died meanwhile",
        ),
        pytest.param(
            ti("queued"),
            (record(JobPhase.RUNNING, reference()), LEASE),
            False,
            RUNNING | HELD,
            id="died before Airflow heard of its start",
        ),
        pytest.param(
            ti("queued", reference("old-id")), (record(JobPhase.WAITING), {}), False, HELD, id="cleared since"
        ),
        pytest.param(ti("running", reference(token=0)), ({}, {}), True, RUNNING, id="running without a GPU"),
        pytest.param(
            ti("restarting", reference("old-id")), ({}, {}), True, RUNNING, id="cleared while running"
        ),
        pytest.param(ti("running", "celery-id"), ({}, {}), False, ANEW, id="of another executor"),
    ],
)
def test_c21_tasks_of_a_dead_scheduler_are_taken_over(task, rows, alive, taken):
    """A process that is known is taken over, a queued task without one is held, the rest starts anew."""
    adoption = adoption_of(task, *rows, Poll(alive))
    assert (adoption.group is not None, adoption.hold) == (taken >= RUNNING, taken >= HELD)


def test_c21_an_adopted_process_keeps_its_lease():
    """The token of the reference is that of the lease, also when the task instance has a new id by now."""
    adoption = adoption_of(ti("restarting", reference("old-id", 7)), {}, {}, Poll(True))
    assert (adoption.group.job_id, adoption.group.token) == ("old-id", 7)
