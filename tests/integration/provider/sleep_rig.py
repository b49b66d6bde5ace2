"""A scheduler side with a node that sleeps: lane, engine and SQL store are the real ones; the node and the
operator's commands are the test's.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from tests.databases import database_on, sqlite_store
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
        self.engine = sqlite_store(folder / "store.db")
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
