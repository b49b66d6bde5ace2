"""Nodes that sleep, from the idle node over a task that needs it to the node that is up: lane, engine and SQL
store; the node and the operator's commands are the test's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import SleepNode, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.provider import node_sleep
from airflow_provider_eaco.provider.node_sleep import Around, NodeSleeper
from airflow_provider_eaco.provider.outside_commands import Finished
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.sleep_settings import SleepSettings
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog, events_of
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_sleep import SqlNodeSleep
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.builders import make_node
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_engine
from tests.unit.provider.executor.lane_rig import START_S, FakeMeter, LaneRig, Parts

SETTINGS = SleepSettings("n2", ("sleep", "n2"), ("wake", "n2"), idle_s=30.0, wake_timeout_s=100.0)
SILENT_S = 20.0
RETRY_S = 100.0
DONE = Finished(True)


class NothingHere(FakeMeter):
    """A scheduler without GPUs of its own."""

    def inventory(self) -> list[Any]:
        return []


@dataclass
class Workers:
    """The node n2 has a worker; remembers what was withdrawn."""

    nodes: set[str] = field(default_factory=lambda: {"n2"})
    withdrawn: list[int] = field(default_factory=list)

    def has_worker(self, node: str) -> bool:
        return node in self.nodes

    def reference_of(self, lease: Lease) -> str | None:
        return None

    def withdraw(self, lease: Lease) -> bool:
        self.withdrawn.append(lease.token)
        return True


@dataclass
class Operator:
    """Takes commands; the test says how they end."""

    begun: list[tuple[str, ...]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    ended: dict[str, Finished] = field(default_factory=dict)
    refuse: str | None = None

    def is_running(self, name: str) -> bool:
        return name in self.running

    def begin(self, name: str, command: Sequence[str], timeout_s: float) -> str | None:
        assert name not in self.running
        if self.refuse:
            return self.refuse
        self.begun.append(tuple(command))
        self.running.add(name)
        return None

    def finished(self, name: str) -> Finished | None:
        finished = self.ended.pop(name, None)
        if finished is not None:
            self.running.discard(name)
        return finished

    def end(self, finished: Finished = DONE) -> None:
        self.ended["n2"] = finished


class SeenLedger(SqlLedger):
    """The ledger as wiring hands it to the engine."""

    def __init__(self, database: Any, sleeper: NodeSleeper) -> None:
        super().__init__(database)
        self._sleeper = sleeper

    def view(self) -> LedgerView:
        return self._sleeper.seen(super().view())


class SleepRig(LaneRig):
    """A lane whose node n2 sleeps."""

    def __init__(self, box: SleepBox, *rest: Any, **named: Any) -> None:
        self._box = box
        super().__init__(*rest, **named)

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        box, base = self._box, super()._services(parts, pool)
        around = Around(
            book=box.book,
            ledger=self.ledger,
            workers=box.workers,
            decisions=self.decisions,
            commands=box.operator,
            readings=lambda: box.readings,
            silent_s=SILENT_S,
        )
        sleeper = NodeSleeper((box.settings,), around)
        self.pool = PoolState(pool, {"eaco": AirflowPool(None)})
        loop = AdmissionLoop(
            SeenLedger(box.database, sleeper),
            parts.profiles,
            self.decisions,
            parts.planner,
            pools=lambda: sleeper.told([self.pool]),
            owner="1@here",
            report_timeout_s=SILENT_S,
        )
        return replace(
            base,
            admission=sleeper.heard(loop),
            dispatcher=sleeper.starting(self.dispatcher),
            workers=box.workers,
            sleeper=sleeper,
        )

    @property
    def sleeper(self) -> NodeSleeper:
        assert self.services.sleeper is not None
        return self.services.sleeper

    def beat(self) -> None:
        lane = self.lane
        for step in (lane.end, lane.progress, lane.report_nodes, lane.drop_unwanted, lane.hold):
            step()
        self.sleeper.step(self.ledger.view())
        for step in (lane.admit, lane.launch, lane.occupy, lane.instruct):
            step()


class SleepBox:
    """A node n2 with two GPUs that reports while it is ``on``, and the scheduler that may put it to sleep."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: SleepSettings) -> None:
        self._monkeypatch, self.settings = monkeypatch, settings
        self.clock = ManualClock(START_S)
        self.engine = sqlite_engine(folder / "store.db")
        schema.metadata.create_all(self.engine)
        self.database = database_on(self.engine, self.clock)
        self.book = SqlNodeSleep(self.database)
        self.workers, self.operator = Workers(), Operator()
        self.node = make_node("n2", gpus=2).node
        self.readings = [
            GpuReading(gpu.uuid, START_S, foreign_memory_mib=0, foreign_processes=0) for gpu in self.node.gpus
        ]
        self.on = True
        self.rig = self.start()

    def start(self) -> SleepRig:
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, ProfileBook()),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=NodeMeter(NothingHere()),
        )
        rig = SleepRig(self, self._monkeypatch, mode=PoolMode.SHARE, policy="exclusive", parts=parts)
        rig.lane._monotonic = self.clock.now_s
        return rig

    def pass_s(self, seconds: float, step_s: float = 5.0) -> None:
        """Let time pass with heartbeats; a node that is on reports in each."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            if self.on:
                self.rig.ledger.save_nodes([self.node])
            self.rig.beat()

    def state(self) -> NodePower | None:
        state = self.book.states().get("n2")
        return None if state is None else state.power

    def ask(self, steer: SleepNode | WakeNode) -> None:
        self.rig.sleeper.take(CycleReport(planned=True, steers=(steer,)))

    def fall_asleep(self) -> None:
        self.pass_s(50)
        assert (self.state(), self.operator.begun) == (NodePower.ASLEEP, [("sleep", "n2")])
        self.operator.end()
        self.on = False
        self.pass_s(SILENT_S * 4)
        assert self.state() is NodePower.ASLEEP

    def stories(self, job_id: str) -> list[str]:
        with self.database.reading() as connection:
            found = events_of(connection, schema.event.c.job_id == job_id)
        return [event.text for event in found if event.event == node_sleep.EVENT]

    def draining(self) -> bool:
        (node,) = self.rig.ledger.view().nodes
        return bool(node.draining)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SleepBox]:
    monkeypatch.setattr(node_sleep, "RETRY_S", RETRY_S)
    box = SleepBox(tmp_path, monkeypatch, SETTINGS)
    yield box
    box.engine.dispose()


def test_an_idle_node_sleeps_and_wakes_for_the_task_that_needs_it(box: SleepBox) -> None:
    """Its silence keeps nobody away; the task holds its lease while the node wakes, and starts when it is."""
    box.fall_asleep()
    box.rig.queue("j1", "first")
    box.pass_s(5)
    assert (box.rig.phase("j1"), box.state()) == ("leased", NodePower.ASLEEP)
    box.pass_s(5)
    assert (box.state(), box.operator.begun[1:]) == (NodePower.WAKING, [("wake", "n2")])
    assert box.stories("j1") == ["waits for node n2, which is woken"]
    box.pass_s(30)
    assert box.rig.dispatcher.orders == []
    box.operator.end()
    box.on = True
    box.pass_s(10)
    assert box.state() is None
    assert [order.job_id for order in box.rig.dispatcher.orders] == ["j1"]
    box.pass_s(60)
    assert (box.state(), box.operator.begun[2:]) == (None, [])
    # Its time begins anew with the end of the task.
    box.rig.become("j1", "success")
    box.rig.dispatcher.end("j1")
    box.pass_s(25)
    assert (box.state(), box.rig.ledger.view().leases) == (None, ())
    box.pass_s(15)
    assert box.state() is NodePower.ASLEEP


@pytest.mark.parametrize("who", ["lease", "stranger", "unknown", "draining"])
def test_who_is_there_keeps_the_node_up(box: SleepBox, who: str) -> None:
    """A lease, foreign use (C34), use that nobody can tell, and a user who drains it have a veto."""
    if who == "lease":
        box.rig.queue("j1", "first")
    elif who == "draining":
        box.pass_s(5)
        box.rig.ledger.set_draining("n2", True)
    else:
        seen = {"foreign_processes": 1} if who == "stranger" else {"foreign_memory_mib": None}
        box.readings[1] = replace(box.readings[1], **seen)
    box.pass_s(60)
    box.ask(SleepNode("n2"))
    box.pass_s(20)
    assert (box.operator.begun, box.state()) == ([], None)


def test_a_grant_between_decision_and_command_is_first(box: SleepBox) -> None:
    """Plans of before the decision may still grant; the command waits for them, and is not given then."""
    box.pass_s(35)
    assert (box.state(), box.operator.begun) == (NodePower.ASLEEP, [])
    box.rig.queue("j1", "first")
    box.pass_s(15)
    assert (box.state(), box.operator.begun) == (None, [])
    assert [order.job_id for order in box.rig.dispatcher.orders] == ["j1"]


def test_a_node_that_does_not_wake_is_drained_and_its_task_waits_again(
    box: SleepBox, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is repeated meanwhile; the task loses nothing but time, and reads why."""
    box.fall_asleep()
    box.rig.queue("j1", "first")
    box.pass_s(10)
    (lease,) = box.rig.ledger.view().leases
    box.operator.end(Finished(False, "it ended with code 1: no route"))
    box.pass_s(95)
    assert (box.state(), box.draining()) == (NodePower.WAKING, False)
    box.operator.end()
    box.pass_s(5)
    assert (box.state(), box.draining()) == (None, True)
    assert box.operator.begun.count(("wake", "n2")) > 1
    assert box.workers.withdrawn == [lease.token]
    assert (box.rig.phase("j1"), box.rig.ledger.view().leases) == ("waiting", ())
    why = "waits again: node n2 did not wake within 100 s and is drained"
    assert box.stories("j1")[-1] == why
    assert "no route" in caplog.text
    assert "n2 did not wake within 100 s and is drained" in caplog.text


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_a_node_whose_command_fails_is_up(box: SleepBox, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It takes tasks, and the command is not given again for a while."""
    box.operator.refuse = "No such file" if how == "refused" else None
    box.pass_s(45)
    if how == "failed":
        box.operator.end(Finished(False, "it ended with code 1"))
        box.pass_s(5)
    assert box.state() is None
    box.operator.refuse = None
    box.pass_s(RETRY_S - 10)
    assert (len(box.operator.begun), box.state()) == (how == "failed", None)
    assert "A command of [eaco] node_sleep failed: node=n2" in caplog.text
    box.pass_s(30)
    assert (len(box.operator.begun), box.state()) == (1 + (how == "failed"), NodePower.ASLEEP)


def test_a_node_that_goes_on_reporting_is_up_again(box: SleepBox) -> None:
    """The command came to nothing, or somebody has woken it: plans take it for what it is, for a while."""
    box.pass_s(50)
    box.operator.end()
    box.pass_s(65)
    assert box.state() is None
    box.pass_s(RETRY_S - 30)
    assert (box.operator.begun, box.state()) == ([("sleep", "n2")], None)


def test_the_next_scheduler_knows_who_sleeps(box: SleepBox) -> None:
    """It grants its GPUs and wakes it, though it has not heard of it itself."""
    box.fall_asleep()
    box.rig = box.start()
    box.rig.queue("j1", "first")
    box.pass_s(10)
    assert (box.rig.phase("j1"), box.state()) == ("leased", NodePower.WAKING)


def test_of_two_schedulers_one_gives_the_command(box: SleepBox) -> None:
    """The step is one row of the store."""
    second = box.start()
    for _ in range(12):
        box.pass_s(5)
        second.sleeper.step(second.ledger.view())
    assert box.operator.begun == [("sleep", "n2")]


def test_policies_see_the_states_and_may_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a time sleeps when it is told to, and wakes so, too."""
    box = SleepBox(tmp_path, monkeypatch, replace(SETTINGS, idle_s=None))

    def seen() -> NodePower:
        (pool,) = box.rig.sleeper.told([box.rig.pool])
        return pool.node_power["n2"].power

    box.pass_s(60)
    assert (seen(), box.operator.begun) == (NodePower.IDLE, [])
    box.ask(SleepNode("n2"))
    box.pass_s(20)
    assert (seen(), box.operator.begun) == (NodePower.ASLEEP, [("sleep", "n2")])
    box.operator.end()
    box.ask(WakeNode("n2"))
    box.pass_s(10)
    assert (seen(), box.operator.begun[1:]) == (NodePower.WAKING, [("wake", "n2")])
    box.engine.dispose()


def test_a_node_that_was_woken_for_nobody_has_its_idle_time_again(box: SleepBox) -> None:
    """It is not put to sleep right away because it has been idle since before it slept."""
    box.fall_asleep()
    box.ask(WakeNode("n2"))
    box.pass_s(10)
    box.operator.end()
    box.on = True
    box.pass_s(30)
    assert (box.state(), box.operator.begun[1:]) == (None, [("wake", "n2")])


def test_without_commands_a_policy_only_advises(box: SleepBox, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once in the log; nothing is put to sleep."""
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            box.ask(SleepNode("elsewhere"))
            box.pass_s(5)
    said = [each for each in caplog.records if "there are no commands: elsewhere" in each.getMessage()]
    assert len(said) == 1
    assert box.operator.begun == []
    unset = NodeSleeper((), box.rig.sleeper._around)
    assert (unset.is_needed, unset.told([box.rig.pool])[0].node_power) == (False, {})
    assert unset.starting(box.rig.dispatcher) is box.rig.dispatcher


@pytest.mark.parametrize("what", ["worker", "commands"])
def test_a_node_that_nobody_could_wake_is_not_granted_in_its_sleep(box: SleepBox, what: str) -> None:
    """It has lost its worker, or is no longer in the option: nothing could be started there."""
    box.fall_asleep()
    if what == "worker":
        box.workers.nodes.clear()
    else:
        box.settings = replace(SETTINGS, node="other")
        box.rig = box.start()
    box.rig.queue("j1", "first")
    box.pass_s(20)
    assert box.rig.phase("j1") == "waiting"
