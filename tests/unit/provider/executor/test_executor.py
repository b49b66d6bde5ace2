"""EacoExecutor as Airflow's scheduler sees it: whatever breaks in it, stays in it."""

import socket
from types import SimpleNamespace
from uuid import UUID

import pytest
from airflow.models.callback import CallbackKey
from airflow.models.connection_test import ConnectionTestKey
from airflow.models.taskinstancekey import TaskInstanceKey

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.provider.audit import text_of
from airflow_provider_eaco.provider.executor import EacoExecutor
from airflow_provider_eaco.provider.plain_lane import PlainLane
from airflow_provider_eaco.provider.running import Event
from tests.unit.provider.executor.lane_rig import FakeDispatcher


def make_task(task_id="task", config=None):
    ti = SimpleNamespace(
        id=f"id-{task_id}",
        key=TaskInstanceKey("dag", task_id, "run", 1, -1),
        dag_id="dag",
        task_id=task_id,
        executor_config=config,
        priority_weight=1,
    )
    return SimpleNamespace(ti=ti, key=ti.key, log_path=f"{task_id}.log")


class FakeLanes:
    """Lanes that remember what they were given, or break."""

    def __init__(self, broken=False):
        self.broken = broken
        self.accepted = []
        self.started = []
        self.settings = None
        self.unavailable = []
        self.plain = SimpleNamespace(
            room=8, groups=[], start=lambda workload: self.started.append(workload.ti.task_id) or True
        )

    def accept(self, workload, request, session):
        if self.broken:
            raise RuntimeError("boom")
        self.accepted.append((workload.ti.task_id, request.gpus))

    def holds(self, key):
        return key.task_id in {task_id for task_id, _ in self.accepted}

    @property
    def held(self):
        return len(self.accepted)

    def finish_plain(self):
        if self.broken:
            raise RuntimeError("boom")

    def steps(self):
        def fail():
            raise StoreUnavailableError("gone")

        yield "one", fail
        yield "two", lambda: self.accepted.append(("step two", 0))

    def adopt(self, tis):
        raise RuntimeError("boom")

    def note_unavailable(self, text):
        self.unavailable.append(text)


@pytest.fixture
def executor(monkeypatch):
    monkeypatch.setattr(EacoExecutor, "queue_workload", _queue_without_type_check)
    made = EacoExecutor(parallelism=8)
    made._lanes = FakeLanes()
    return made


def _queue_without_type_check(self, workload, session):
    self.queue()[workload.key] = workload
    self._fenced("queue", lambda: self._accept(workload, session))


GPU = {"eaco": {"gpus": 2}}


def test_a_request_goes_to_the_gpu_lane_and_everything_else_does_not(executor):
    """Only tasks that ask for GPUs are held; the others are chosen at the next heartbeat."""
    executor.queue_workload(make_task("gpu", GPU), None)
    executor.queue_workload(make_task("cpu"), None)
    executor.queue_workload(make_task("zero", {"eaco": {"gpus": 0}}), None)
    executor.queue_workload(make_task("pod", {"pod_override": 1}), None)
    assert executor._lanes.accepted == [("gpu", 2)]
    chosen = [workload.ti.task_id for _, workload in executor._get_workloads_to_schedule(8)]
    assert chosen == ["cpu", "zero", "pod"]


def test_c18_held_tasks_take_window_and_no_parallelism(executor):
    """Twenty waiting GPU tasks use up the hold window only; CPU tasks find the whole parallelism."""
    for number in range(20):
        executor.queue_workload(make_task(f"gpu{number}", GPU), None)
    assert executor.slots_occupied == 0
    assert executor.slots_available == 2000 - 20
    executor.queue_workload(make_task("cpu"), None)
    assert [key.task_id for key, _ in executor._get_workloads_to_schedule(0)] == ["cpu"]


def test_c18_a_full_hold_window_leaves_the_room_of_tasks_without_gpu(executor, monkeypatch):
    """However many GPU tasks wait, as many others are handed over as parallelism allows."""
    monkeypatch.setattr(EacoExecutor, "_window", 20)
    for number in range(25):
        executor.queue_workload(make_task(f"gpu{number}", GPU), None)
    assert executor.slots_available == 8
    for number in range(3):
        executor.queue_workload(make_task(f"cpu{number}"), None)
    assert executor.slots_available == 5
    executor._lanes.plain.groups = ["running"] * 5
    assert executor.slots_available == 0


class Odd(dict):
    """A config of which nobody thought."""

    def items(self):
        raise RuntimeError("odd")


@pytest.mark.parametrize(
    "config", [{"eaco": {"gpus": "many"}}, {"eaco": {"gpu": 1}}, {"eaco": 5}, {"eaco": Odd(gpus=1)}]
)
def test_c23_an_unreadable_request_fails_its_task_alone(executor, config):
    """The task with the broken config fails with the reason; the one beside it is started."""
    executor.queue_workload(make_task("broken", config), None)
    executor.queue_workload(make_task("good"), None)
    assert [workload.ti.task_id for _, workload in executor._get_workloads_to_schedule(8)] == ["good"]
    executor.sync()
    state, info = executor.event_buffer[make_task("broken").key]
    assert state == "failed"
    assert info.startswith("misconfigured: the task's GPU request cannot be used: ")
    assert [key.task_id for key in executor.queue()] == ["good"]
    assert (executor._task_event_logs[-1].event, executor._task_event_logs[-1].extra) == ("eaco reject", info)


def test_c56_a_start_asks_nobody_on_the_network(monkeypatch):
    """With everything outbound blocked an executor is ready as otherwise: it looks no name up and connects to
    nobody, so nothing can be waited for, and no region is found out. CO2 has no factor.
    """
    asked = []

    def refuse(*arguments, **named):
        asked.append(arguments)
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "socket", refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname", "getfqdn"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(LocalDispatcher, "warm_up", lambda self: None)
    made = EacoExecutor(parallelism=8)
    made.start()
    assert (made._lanes.problem, asked) == (None, [])
    assert made._lanes.settings.carbon_g_per_kwh is None
    made.terminate()
    assert asked == []


def test_no_failure_of_ours_reaches_the_scheduler(executor):
    """Broken lanes raise nothing out of any call that the scheduler makes."""
    executor._lanes = FakeLanes(broken=True)
    executor.queue_workload(make_task("gpu", GPU), None)
    executor.heartbeat()
    executor.revoke_task(ti=make_task().ti)
    assert executor.try_adopt_task_instances(["kept"]) == ["kept"]
    executor.end()
    executor.terminate()


def test_one_failed_step_does_not_stop_the_next(executor):
    """The steps of a heartbeat are fenced one by one, and a lost store is told to those who wait."""
    executor.sync()
    assert executor._lanes.accepted == [("step two", 0)]
    assert executor._lanes.unavailable == ["gone"]


def test_a_task_that_comes_back_leaves_no_event(executor):
    """An end without an event only makes room."""
    key = make_task().key
    executor.note_running(key, "ref")
    assert executor.get_event_buffer()[key] == ("running", "ref")
    executor.note_ended(key, Event.NONE)
    assert not executor.event_buffer
    assert not executor.running


def test_audit_rows_live_until_airflow_has_written_them(executor):
    """Airflow's rows are held by us until its scheduler has emptied the queue of them."""
    executor.tell(make_task().key, "eaco hold", "why")
    executor.sync()
    assert len(executor._unsaved_logs) == 1
    executor._task_event_logs.clear()
    executor.sync()
    assert not executor._unsaved_logs


@pytest.mark.parametrize(
    ("gpus", "others", "line"),
    [
        (1, (), "1 GPU on n1, alone"),
        (2, ("a",), "2 GPUs on n1, with 1 other job: the busiest"),
        (2, ("a", "b"), "2 GPUs on n1, with 2 other jobs: the busiest"),
    ],
)
def test_an_admission_is_told_with_its_place_and_company(gpus, others, line):
    """The audit log says where a task went, with how many others, and why there."""
    place = Placement("n1", tuple(f"GPU-{index}" for index in range(gpus)))
    decision = AdmissionDecision(
        Verdict.ADMIT, placement=place, co_residents=others, choice="the busiest" if others else ""
    )
    assert text_of(decision) == line


QUEUES = {
    "callback": (CallbackKey, "queued_callbacks"),
    "test": (ConnectionTestKey, "queued_connection_tests"),
}


@pytest.fixture
def started_executor():
    """An executor with the real plain lane of two places, over processes that the test ends."""
    made = EacoExecutor(parallelism=2)
    made._lanes = FakeLanes()
    dispatcher = FakeDispatcher()
    lane = made._lanes.plain = PlainLane(made, dispatcher, 2, 10.0)
    made._lanes.finish_plain = lambda: lane.finish(lane.groups.ended(), {})
    return made, dispatcher


def queue_unheld(executor, kind, count):
    """Queue callbacks or connection tests; return their keys, in order."""
    make_key, queue = QUEUES[kind]
    keys = [make_key(id=str(UUID(int=number))) for number in range(count)]
    for key in keys:
        getattr(executor, queue)[key] = SimpleNamespace(key=key, model_dump_json=lambda: "{}")
    return keys


@pytest.mark.parametrize("kind", QUEUES)
def test_what_is_no_task_fails_once_if_its_process_cannot_be_started(started_executor, kind):
    """It is reported with the cause and queued no more: a later heartbeat neither reports nor runs it."""
    executor, dispatcher = started_executor
    [key] = queue_unheld(executor, kind, 1)
    dispatcher.refuse = "no file handle left"
    executor.heartbeat()
    state, info = executor.get_event_buffer()[key]
    assert (state, info) == ("failed", "its process could not be started: no file handle left")
    dispatcher.refuse = None
    executor.heartbeat()
    assert dispatcher.orders == []
    assert not executor.event_buffer


@pytest.mark.parametrize("kind", QUEUES)
def test_c24_what_cannot_be_started_yet_stays_queued(started_executor, kind):
    """While the dispatcher is not ready a heartbeat reports nothing; the first one after that starts it."""
    executor, dispatcher = started_executor
    queue_unheld(executor, kind, 1)
    dispatcher.is_ready = False
    executor.heartbeat()
    assert not executor.event_buffer
    dispatcher.is_ready = True
    executor.heartbeat()
    assert len(dispatcher.orders) == 1


@pytest.mark.parametrize("kind", QUEUES)
def test_what_is_no_task_takes_the_room_of_parallelism_and_not_more(started_executor, kind):
    """Of ten two run, eight stay queued; each that ends makes room for the next."""
    executor, dispatcher = started_executor
    keys = queue_unheld(executor, kind, 10)
    executor.heartbeat()
    executor.heartbeat()
    assert [order.job_id for order in dispatcher.orders] == [key.id for key in keys[:2]]
    assert list(getattr(executor, QUEUES[kind][1])) == keys[2:]
    dispatcher.end(keys[0].id)
    executor.heartbeat()
    assert [order.job_id for order in dispatcher.orders] == [key.id for key in keys[:3]]


def test_a_full_hold_window_keeps_no_connection_test_waiting(started_executor, monkeypatch):
    """With no window left a connection test has its process all the same."""
    executor, dispatcher = started_executor
    monkeypatch.setattr(EacoExecutor, "_window", 1)
    queue_unheld(executor, "test", 1)
    assert executor.slots_available == executor.parallelism - 1
    executor.heartbeat()
    assert len(dispatcher.orders) == 1
