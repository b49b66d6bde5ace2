"""Both lanes together: what GPU tasks are told while ours is broken, and what goes on all the same."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError, StoreUnavailableError
from airflow_provider_eaco.core.model.job import GpuRequest
from airflow_provider_eaco.provider import lanes as lanes_module
from airflow_provider_eaco.provider import slotless
from airflow_provider_eaco.provider.lanes import Lanes
from airflow_provider_eaco.provider.node_settings import DispatchChoice
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.task_instances import SlotlessTask
from tests.unit.provider.executor.lane_rig import FakeDispatcher, FakeHost, LaneRig, make_workload


@pytest.fixture
def executor():
    """What lanes ask of the executor."""
    return SimpleNamespace(parallelism=8, conf=SimpleNamespace(get=lambda *_: None), running=set())


def test_c67_a_broken_configuration_holds_gpu_tasks_with_the_option_named(executor):
    """GPU tasks wait and are told once which option is wrong; the plain lane has its whole room."""
    host = FakeHost()
    problem = InvalidSettingError("[eaco] pools", "is not JSON")
    lanes = Lanes(host, executor, FakeDispatcher(), problem)
    lanes.accept(make_workload("a", "first"), GpuRequest(gpus=1, family="f"), None)
    for _ in range(2):
        for name, step in lanes.steps():
            if name != "keep-alive":
                step()
    line = (
        "misconfigured: GPU tasks wait until the provider's configuration is corrected and the scheduler "
        "is started again: [eaco] pools: is not JSON"
    )
    assert host.told == [("first", "eaco hold", line)]
    assert lanes.plain.room == 8


@pytest.fixture
def kept_alive(monkeypatch):
    """The tasks of which Airflow was told that they are not stuck, each time a list of job ids."""
    told = []
    monkeypatch.setattr(lanes_module, "own_session", nullcontext)
    monkeypatch.setattr(
        lanes_module.task_instances, "keep_alive", lambda session, job_ids, now: told.append(sorted(job_ids))
    )
    return told


def test_c17_whoever_waits_or_has_just_started_is_kept_alive(executor, monkeypatch, kept_alive):
    """A task that waits for a GPU, one that was started and one without a GPU request are not stuck."""
    rig = LaneRig(monkeypatch)
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu, lanes.plain = rig.lane, rig.plain
    rig.queue("runs", "first")
    rig.queue("waits", "second")
    rig.beat()
    lanes.plain.start(make_workload("plain", "third"))
    dict(lanes.steps())["keep-alive"]()
    assert kept_alive == [["plain", "runs", "waits"]]


@pytest.mark.parametrize(("timeout_s", "interval_s"), [(None, 30.0), ("600", 30.0), ("60", 15.0), ("4", 1.0)])
def test_c17_tasks_are_kept_alive_several_times_within_airflows_time_out(executor, timeout_s, interval_s):
    """Airflow fails what stays queued for ``task_queued_timeout``: a lost round or two must not matter."""
    executor.conf.get = lambda section, name: {"task_queued_timeout": timeout_s}.get(name)
    lanes = Lanes(FakeHost(), executor, FakeDispatcher(), None)
    clock = SimpleNamespace(now_s=1000.0)
    lanes._keep_alive._monotonic = lambda: clock.now_s

    def is_due_at(now_s):
        clock.now_s = now_s
        return "keep-alive" in dict(lanes.steps())

    assert is_due_at(1000.0)
    assert not is_due_at(1000.0 + 0.9 * interval_s)
    assert is_due_at(1000.0 + interval_s)


class SeenLimits:
    """Writes down with which view and which own tasks it was asked, and what it was given to end."""

    def __init__(self, is_idle):
        self.is_idle = is_idle
        self.steps = []
        self.closed = []

    def step(self, view, own):
        self.steps.append(([lease.job_id for lease in view.leases], own))

    def marked(self, reports):
        return reports

    def close(self, timeout_s):
        self.closed.append(timeout_s)


@pytest.mark.parametrize("is_idle", [True, False])
def test_power_limits_are_looked_after_also_when_nobody_runs_any_more(executor, monkeypatch, is_idle):
    """Nothing else lifts what the last task left, or an earlier scheduler; who has none pays nothing."""
    rig = LaneRig(monkeypatch)
    limits = SeenLimits(is_idle)
    rig.lane.services = replace(rig.services, limits=limits)
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu = rig.lane
    step = dict(lanes.steps())["power limits"]
    step()
    rig.queue("j1", "first")
    rig.beat()
    step()
    (token,) = [lease.token for lease in rig.ledger.view().leases]
    assert limits.steps == ([] if is_idle else [([], frozenset()), (["j1"], {token})])
    lanes.close(4.0)
    assert limits.closed == [2.0]


@pytest.mark.parametrize("is_away", [False, True])
def test_what_tasks_have_used_is_stored_before_the_scheduler_leaves(executor, monkeypatch, is_away):
    """A store that is away keeps it from leaving as little as anything else; one that leaves at once asks
    nobody.
    """
    rig, asked = LaneRig(monkeypatch), []

    def close(*, at_once):
        asked.append(at_once)
        if is_away:
            raise StoreUnavailableError("away")

    monkeypatch.setattr(rig.lane.energy, "close", close)
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu = rig.lane
    lanes.close(0.0)
    assert asked == []
    lanes.close(4.0)
    assert asked == [True]


class SeenSleeper:
    """Writes down when it was asked; nodes that it knows are none that have fallen silent."""

    def __init__(self, is_needed):
        self.is_needed = is_needed
        self.steps = 0

    def step(self, view):
        self.steps += 1

    def seen(self, view):
        return replace(view, nodes=())


@pytest.mark.parametrize("is_needed", [True, False])
def test_nodes_are_looked_after_before_anybody_is_placed_there(executor, monkeypatch, is_needed):
    """Plans and starts of a heartbeat go by the states that were read in it; who has none pays nothing."""
    rig = LaneRig(monkeypatch)
    sleeper = SeenSleeper(is_needed)
    rig.lane.services = replace(rig.services, sleeper=sleeper)
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu = rig.lane
    steps = dict(lanes.steps())
    if is_needed:
        assert list(steps).index("node sleep") < list(steps).index("admission")
        steps["node sleep"]()
    assert sleeper.steps == is_needed
    assert "node sleep" not in dict(lanes.steps())


@pytest.mark.parametrize("error", [InvalidSettingError("[eaco] pools", "bad"), OSError("full"), ValueError()])
def test_c67_whatever_is_wrong_with_our_parts_the_executor_starts(executor, monkeypatch, error):
    """Parts that cannot be made leave a plain lane that works."""

    def fail():
        raise error

    monkeypatch.setattr(lanes_module, "load_settings", fail)
    lanes = Lanes.make(FakeHost(), executor)
    assert (lanes.gpu, lanes.problem, lanes.plain.room) == (None, error, 8)
    lanes.dispatcher.close(0.0)


@pytest.mark.parametrize("dispatch", [*DispatchChoice, None])
def test_only_who_starts_tasks_here_prepares_for_them(executor, dispatch):
    """A scheduler that sends its tasks to other machines has no use for a process that starts them."""
    dispatcher = FakeDispatcher()
    prepared = []
    dispatcher.warm_up = lambda: prepared.append(True)
    lanes = Lanes(FakeHost(), executor, dispatcher, None)
    lanes.settings = None if dispatch is None else EacoSettings(dispatch=dispatch)
    lanes.warm_up()
    assert prepared == ([] if dispatch is DispatchChoice.CELERY else [True])


def test_c67_tables_out_of_reach_are_told_to_those_who_wait(executor, monkeypatch):
    """A lost database of ours is a reason to wait, in the words of the store."""
    rig = LaneRig(monkeypatch)
    rig.queue("a", "first")
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu = rig.lane
    lanes.note_unavailable("the database is gone")
    line = "misconfigured: GPU tasks wait until the provider's tables can be used: the database is gone"
    assert rig.host.told == [("first", "eaco hold", line)]


def test_c20_a_task_that_a_clear_left_queued_under_a_new_id_is_taken_over(executor, monkeypatch):
    """Airflow waits for nobody then; ours takes it over, but not what was handed over again already."""
    rig = LaneRig(monkeypatch)
    rig.queue("old", "first")
    rig.facts.clear()
    rig.queue("again", "second")
    lost, handed_over = (SimpleNamespace(id=each) for each in ("new", "again"))
    executor.job_id = 7
    lanes = Lanes(rig.host, executor, rig.dispatcher, None)
    lanes.gpu, taken = rig.lane, []
    monkeypatch.setattr(lanes_module, "own_session", nullcontext)
    monkeypatch.setattr(lanes_module.task_instances, "queued_anew", lambda *_: [lost, handed_over])
    monkeypatch.setattr(lanes, "adopt", taken.extend)
    steps = dict(lanes.steps())
    steps["taken back"]()
    assert [ti.id for ti in taken] == ["new"]
    assert not rig.lane.holding.get("old")
    assert rig.lane.holding.get("again")


def test_a_cpu_task_without_its_pool_is_told_with_code_and_sentence(monkeypatch):
    """A task that never reaches an executor gets the same line in the audit log as one that waits."""
    rig = LaneRig(monkeypatch)
    rig.queue("a", "first")
    facts = rig.facts["a"]
    found = {"a": SlotlessTask(facts, None, pool_exists=False)}
    monkeypatch.setattr(lanes_module.task_instances, "without_slots", lambda *_: found)
    tasks = lanes_module.SlotlessTasks(rig.host, rig.services, ["EacoExecutor"], True)
    tasks.look(0.0)
    tasks.look(1.0)
    assert rig.host.told == [("first", "eaco hold", "pool_unknown: the Airflow pool eaco does not exist")]


def test_c12_a_closed_pool_says_so_of_gpu_tasks_alone(monkeypatch):
    """A GPU task waits as a job, an unreadable request is told of with the pool, a CPU task is let alone."""
    rig = LaneRig(monkeypatch)
    configs = {"gpu": {"eaco": {"gpus": 1}}, "broken": {"eaco": {"gpus": "x"}}, "cpu": None}
    for name in configs:
        rig.queue(name, name)
    found = {
        name: SlotlessTask(rig.facts[name], config, pool_exists=True) for name, config in configs.items()
    }
    monkeypatch.setattr(lanes_module.task_instances, "without_slots", lambda *_: found)
    tasks = lanes_module.SlotlessTasks(rig.host, rig.services, ["EacoExecutor"], True)
    tasks.look(0.0)
    assert list(tasks) == ["gpu"]
    [(task, _, line)] = rig.host.told
    assert task == "broken"
    assert line.startswith(
        "pool_closed: the Airflow pool eaco lets 0 slots run and 0 are in use; its GPU request"
    )


@pytest.mark.parametrize("error", [None, OverflowError("int too large")])
def test_c23_a_task_with_neither_pool_nor_readable_request_keeps_no_other_back(monkeypatch, error):
    """Its line says both reasons once, whatever reading it raised, and the tasks after it get theirs."""
    rig = LaneRig(monkeypatch)
    rig.queue("a", "first")
    rig.queue("b", "second")
    found = {
        "a": SlotlessTask(rig.facts["a"], {"eaco": {"gpus": "x"}}, pool_exists=False),
        "b": SlotlessTask(rig.facts["b"], None, pool_exists=False),
    }
    monkeypatch.setattr(lanes_module.task_instances, "without_slots", lambda *_: found)
    if error is not None:
        read = slotless.parse_executor_config

        def fail_once(config, **named):
            if config is not None:
                raise error
            return read(config, **named)

        monkeypatch.setattr(slotless, "parse_executor_config", fail_once)
    tasks = lanes_module.SlotlessTasks(rig.host, rig.services, ["EacoExecutor"], True)
    tasks.look(0.0)
    tasks.look(1.0)
    line = "pool_unknown: the Airflow pool eaco does not exist"
    cause = "gpus: 'x' must be a whole number from 0 to 16, all on one node" if error is None else str(error)
    assert rig.host.told == [
        ("first", "eaco hold", f"{line}; its GPU request cannot be read: {cause}"),
        ("second", "eaco hold", line),
    ]
