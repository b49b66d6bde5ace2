"""A scheduler and a node with a worker whose boards NVML's test library stands in for: from the policy's plan
through the ledger, the message, the API's checks and the agent to the real pynvml, and back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitRequest
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits, Prices
from airflow_provider_eaco.core.model.profile import PowerLevel, ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.dispatch.celery import CeleryDispatcher
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.provider.limit_requests import Limiter
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.provider.node_api.models import REPORTS
from airflow_provider_eaco.provider.node_limits import LimitsElsewhere
from airflow_provider_eaco.provider.node_wiring import KnownWorkers, make_node_door
from airflow_provider_eaco.provider.power_limits import AppliedLimits
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import _as_json
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog, events_of
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_limits import SqlNodeLimits
from airflow_provider_eaco.store.node_runs import SqlNodeRuns
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.session import Database
from airflow_provider_eaco.telemetry.limit_process import LimitProcess
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import ListedProcesses, direct_meter, uuid_of
from tests.unit.provider.executor.lane_rig import START_S, FakeDispatcher, FakeMeter, LaneRig, Parts
from tests.unit.provider.worker.worker_rig import FakeRegister, NoBoards

DEADLINE_S = 60.0
# Held to 200 W a board it draws half and takes 4 % longer.
LEVEL = PowerLevel(200.0, 1.04, 0.5)
FAMILY = "net"
SET_TO = "held to 200 W a board, of 300 W"
NODE = "n1"


def profiles() -> ProfileBook:
    solo = SoloProfile(
        FAMILY, "V100", 1, unit_s=100.0, samples=5, power_w=280.0, utilisation_pct=80.0, units_total=40,
        levels=(LEVEL,),
    )  # fmt: skip
    return ProfileBook({solo.key: solo})


class Node:
    """A machine with a worker: its processes, its agent, and what speaks for it with the API."""

    interval_s = 5.0

    def __init__(self, site: Site) -> None:
        self._site = site
        self.processes = FakeDispatcher()
        self.register = FakeRegister()
        self.version = 3
        self.is_cut_off = False
        #: The limit of the granted board when each job began.
        self.began_at_w: dict[str, float] = {}
        self.meter = direct_meter(site.clock, ListedProcesses())
        self.limiter: LimitProcess
        self.agent: NodeAgent
        self.restart()

    def restart(self) -> None:
        """Let the next worker of this machine begin; of the last one nothing is left but its files."""
        self.limiter = LimitProcess(self._site.folder / "eaco" / f"power_limits_{NODE}.json")
        machine = Machine(
            NODE, "host", NodeMeter(self.meter), self, self.order, self.find, limiter=self.limiter
        )
        self.agent = NodeAgent(machine, self, self.register, self._site.clock.now_s)
        self.agent.recover()

    # -- As the API

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        claim = self._site.door.claim(NODE, "host", token, job_id)
        return claim if claim is None or self.version > 2 else replace(claim, power_limit_w=None)

    def report(self, report: NodeReport) -> NodeAnswer:
        sent = REPORTS.validate_json(json.dumps(_as_json(report, self.version)))
        answer = self._site.door.take(sent.as_report(NODE))
        return answer if self.version > 2 else replace(answer, limits_w=None)

    # -- As the dispatcher

    def start(self, order: LaunchOrder) -> str:
        assert order.placement is not None
        index = self._site.uuids.index(order.placement.gpu_uuids[0])
        self.began_at_w[order.job_id] = self._site.machine.limit_w(index)
        return self.processes.start(order)

    def poll(self, reference: str) -> Any:
        return self.processes.poll(reference)

    def kill(self, reference: str, grace_s: float) -> None:
        self.processes.kill(reference, grace_s)

    def close(self, timeout_s: float) -> None: ...

    @staticmethod
    def order(claim: RunClaim, payload: str) -> LaunchOrder:
        return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)

    def find(self, job_id: str, token: int) -> str | None:
        living = (each for each, state in self.processes.states.items() if state.alive)
        return next((each for each in living if each.endswith(f":{token}:{job_id}")), None)


class Scheduler(LaneRig):
    """A lane on a machine without GPUs whose pool applies power limits."""

    def __init__(self, site: Site, pool: PoolSettings, limiter: Limiter) -> None:
        self._site, self.chosen, self._limiter = site, pool, limiter
        parts = Parts(
            ledger=SqlLedger(site.database),
            profiles=SqlProfileStore(site.database, profiles()),
            decisions=SqlDecisionLog(site.database),
            planner=SqlPlannerLock(site.database),
            energy=SqlEnergyLog(site.database),
            meter=NodeMeter(site.own_meter),
        )
        super().__init__(site.monkeypatch, policy="frontier", parts=parts)
        self.lane._monotonic = site.clock.now_s

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        site, clock = self._site, self._site.clock
        elsewhere = LimitsElsewhere(SqlNodeLimits(site.database))
        self.limits = AppliedLimits(
            self._limiter,
            (self.chosen,),
            lambda _: self.chosen,
            self.decisions,
            clock.now_s,
            elsewhere=elsewhere,
        )
        runs = SqlNodeRuns(site.database)
        workers = KnownWorkers(SqlNodeCredentials(site.database).nodes, runs, clock.now_s)
        celery = CeleryDispatcher(runs, site.send, timeout_s=60.0, monotonic=clock.now_s)
        loop = AdmissionLoop(
            self.ledger,
            parts.profiles,
            self.decisions,
            parts.planner,
            pools=lambda: [self.seen()],
            owner="1@here",
        )
        return replace(
            super()._services(parts, self.chosen),
            admission=self.limits.heard(loop, self.ledger.view),
            limits=self.limits,
            workers=workers,
            dispatcher=site.dispatcher(celery, self.dispatcher),
        )

    def seen(self) -> PoolState:
        """Return the pool as a plan sees it now."""
        (state,) = self.limits.told([PoolState(self.chosen, {"eaco": AirflowPool(None)})])
        return state

    def beat(self) -> None:
        super().beat()
        if not self.limits.is_idle:
            self.limits.step(self.ledger.view(), {group.token for group in self.lane.groups})


class Site:
    """One scheduler, one API, and one node with two V100 of 300 W."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.clock = ManualClock(START_S)
        self.machine: FakeMachine = self._make_machine()
        self.engine = sqlite_store(folder / "store.db")
        self.database: Database = database_on(self.engine, self.clock)
        SqlNodeCredentials(self.database).add(NODE)
        self.own_meter: Any = FakeMeter()
        self.own_meter.inventory = list
        self.node: Node
        self.door: NodeDoor
        self.is_scheduled = True
        self.rig = self.start()
        self.node = Node(self)

    def _make_machine(self) -> FakeMachine:
        machine = fake_machine(self.folder, self.monkeypatch)
        self.uuids = [uuid_of(machine, 0), uuid_of(machine, 1)]
        return machine

    def start(self, **pool: Any) -> Scheduler:
        """Let the next scheduler begin, and an API with the same settings."""
        chosen = PoolSettings(policy="frontier", prices=Prices.GREEDY, mean_stretch=1.2, reject_after_s=0)
        chosen = replace(chosen, **{"power_limits": PowerLimits.APPLY, **pool})
        self.door = make_node_door(EacoSettings(pools=(chosen,)), self.database)
        return Scheduler(self, chosen, self.own_limiter())

    def own_limiter(self) -> Limiter:
        """What limits the scheduler's own boards: it has none."""
        return NoBoards()

    def dispatcher(self, elsewhere: Any, here: Any) -> Any:
        """What starts tasks."""
        return elsewhere

    def send(self, queue: str, task: str, message: Mapping[str, Any]) -> None:
        assert queue == f"eaco.{NODE}"
        self.node.agent.take(message)

    def queue(self, job_id: str) -> None:
        request = GpuRequest(1, FAMILY, gpu_memory_mib=4096, max_stretch=1.5, share=Share.NEVER)
        self.rig.queue(job_id, f"task-{job_id}", request=request)

    def beat(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.node.agent.step()
        if self.is_scheduled:
            self.rig.beat()

    def until(self, holds: Any, step_s: float = 1.0) -> None:
        """Run node and scheduler, every so many seconds, until it holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s, (self.machine.limits_set(), self.rig.seen())
            self.beat(step_s)
            time.sleep(0.02)

    def settle(self) -> None:
        """Run both until nothing is under way and each has heard of it."""
        self.until(lambda: not self.node.limiter.is_busy)
        for _ in range(6):
            self.beat()
        self.until(lambda: not self.node.limiter.is_busy)

    def ready(self) -> None:
        """Run both until the pool applies limits."""
        self.until(lambda: self.setting() is PowerLimits.APPLY)

    def limited(self, job_id: str = "j1") -> int:
        """Let a task run at the level; return the index of its GPU."""
        self.ready()
        self.queue(job_id)
        self.until(lambda: self.rig.phase(job_id) == "running")
        self.settle()
        index = self.index_of(job_id)
        assert self.machine.limit_w(index) == 200
        return index

    def end(self, job_id: str) -> None:
        """Let the task's processes end; Airflow knows."""
        self.rig.become(job_id, "success")
        self.node.processes.end(job_id)

    def index_of(self, job_id: str) -> int:
        leases = self.rig.ledger.view().leases
        (lease,) = [lease for lease in leases if lease.job_id == job_id]
        return self.uuids.index(lease.placement.gpu_uuids[0])

    def levels_set(self) -> list[tuple[int, float]]:
        """Every change of a board, without the questions whether one takes a limit, which change nothing."""
        found, present_w = [], dict.fromkeys(self.machine.gpus, 300.0)
        for index, watts in self.machine.limits_set():
            if watts != present_w[index]:
                found.append((index, watts))
            present_w[index] = watts
        return found

    def stories(self, job_id: str) -> list[str]:
        with self.database.reading() as connection:
            found = events_of(connection, schema.event.c.job_id == job_id)
        return [event.text for event in found if event.event == "power_limit"]

    def setting(self) -> PowerLimits:
        return self.rig.seen().settings.power_limits

    def close(self) -> None:
        self.node.limiter.finish(LimitRequest(), DEADLINE_S)
        self.engine.dispose()
