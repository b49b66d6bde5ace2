"""A pool of a scheduler's own GPUs and of a node's with a worker, in one process and on one clock.

Scheduler and node can be started anew over what outlives them: the database, the node's register, the state
of the simulated GPUs, and the processes of tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.gpu import ForeignProcess, GpuReading
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder, Ledger
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.dispatch import celery
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.pool_manager import Inventory
from airflow_provider_eaco.provider import celery_app
from airflow_provider_eaco.provider.cli.rows import gpu_rows
from airflow_provider_eaco.provider.node_api.models import REPORTS
from airflow_provider_eaco.provider.node_settings import DispatchChoice
from airflow_provider_eaco.provider.node_wiring import make_node_door, make_worker_side
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import _as_json
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.read_model import ReadModel
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, TruthTable, simulated_node
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.unit.provider.executor.lane_rig import START_S, FakeDispatcher, LaneRig, Parts
from tests.unit.provider.worker.worker_rig import FakeRegister, NoBoards

OWN, FAR = "own", "far"


class Watched(SimulatedCluster):
    """Simulated GPUs of which some are used by somebody else."""

    strangers: frozenset[str] = frozenset()
    by: tuple[ForeignProcess, ...] = ()

    def read(self) -> Sequence[GpuReading]:
        return [
            replace(each, foreign_processes=1, foreign_by=self.by) if each.uuid in self.strangers else each
            for each in super().read()
        ]


class Processes(FakeDispatcher):
    """The processes of one machine's tasks: they outlive whoever has started them."""

    def find(self, job_id: str, token: int) -> str | None:
        """Return the living process of this lease."""
        own = (each for each, state in self.states.items() if state.alive)
        return next((each for each in own if each.endswith(f":{token}:{job_id}")), None)


class FarNode:
    """The node with a worker, as its API client, its dispatcher, and its order of a run."""

    interval_s = 1.0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.processes = pool.processes[FAR]
        machine = Machine(
            FAR, "host", pool.meters[FAR], self.processes, _order, self.processes.find, NoBoards()
        )
        self.agent = NodeAgent(machine, self, pool.register, pool.clock.now_s)

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        return self._pool.door.claim(FAR, "host", token, job_id)

    def report(self, report: NodeReport) -> NodeAnswer:
        sent = REPORTS.validate_json(json.dumps(_as_json(report)))
        return self._pool.door.take(sent.as_report(FAR))


class ClockedInventory(Inventory):
    """Reports the scheduler's own nodes by the test's clock."""

    def __init__(self, ledger: Ledger, meters: Sequence[Any], clock: ManualClock) -> None:
        super().__init__(ledger, meters)
        self._clock = clock

    def reconcile(self, now_s: float) -> bool:
        return super().reconcile(self._clock.now_s())


class MixedLane(LaneRig):
    """The lane of a scheduler with GPUs of its own that also sends tasks to the node."""

    def __init__(self, pool: Pool, *rest: Any, **named: Any) -> None:
        self._pool = pool
        super().__init__(*rest, **named)

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        self.dispatcher = self._pool.processes[OWN]
        base, mixed = super()._services(parts, pool), self._pool
        settings = replace(base.settings, dispatch=DispatchChoice.CELERY)
        side = make_worker_side(settings, self.dispatcher, mixed.database)
        # As wired: whoever may be given up as silent is given nothing new.
        loop = AdmissionLoop(
            parts.ledger,
            parts.profiles,
            parts.decisions,
            parts.planner,
            pools=lambda: (PoolState(pool, {"eaco": AirflowPool(None)}),),
            owner=self.host.owner,
            report_timeout_s=settings.node_timeout_s,
        )
        return replace(
            base,
            admission=side.admitting(loop),
            inventory=ClockedInventory(parts.ledger, [self.meter], mixed.clock),
            dispatcher=side.dispatcher,
            workers=side.workers,
            meters=(*base.meters, *side.meters),
        )


class Pool:
    """Simulated V100 of the scheduler's own and as many of the node's, each with its own device model."""

    rig: MixedLane
    far: FarNode

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2) -> None:
        self._folder, self._monkeypatch, self._gpus = folder, monkeypatch, gpus
        self.clock = ManualClock(START_S)
        self.engine = sqlite_store(folder / "store.db")
        self.processes = {name: Processes() for name in (OWN, FAR)}
        self.register = FakeRegister()
        self.facts: dict[str, TaskFacts] = {}
        #: Every message that was ever sent, oldest first.
        self.messages: list[Mapping[str, Any]] = []
        # One broker less: the message reaches the node's agent at once.
        monkeypatch.setattr(celery_app, "make_app", lambda: None)
        monkeypatch.setattr(celery_app, "sender", lambda app: self.send)
        monkeypatch.setattr(celery, "_LOOK_AGE_S", -1.0)
        SqlNodeCredentials(database_on(self.engine, self.clock)).add(FAR)
        self.start()

    def start(self) -> None:
        """Start every component: on what is stored, with nothing in memory."""
        self.database = database_on(self.engine, self.clock)
        self.clusters = {
            name: Watched(
                self._folder / f"{name}.json",
                [simulated_node(name, self._gpus)],
                TruthTable(built_in_book()),
                clock=self.clock.now_s,
            )
            for name in (OWN, FAR)
        }
        self.meters = {
            name: NodeMeter(each, each, each, simulated_state=str(self._folder / f"{name}.json"), live=each)
            for name, each in self.clusters.items()
        }
        self.door = make_node_door(EacoSettings(pools=(PoolSettings(),)), self.database)
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, built_in_book()),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=self.meters[OWN],
        )
        self.rig = MixedLane(self, self._monkeypatch, parts=parts)
        self.rig.facts = self.facts
        self.rig.lane._monotonic = self.rig.lane.groups._monotonic = self.clock.now_s
        self.start_worker()

    def start_worker(self) -> None:
        """Start the node's worker as after kill -9: it has its register, and looks for its runs."""
        self.far = FarNode(self)
        self.far.agent.recover()

    def send(self, queue: str, task: str, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        self.far.agent.take(message)

    def uuids(self, node: str) -> list[str]:
        return [gpu.uuid for each in self.clusters[node].inventory() for gpu in each.gpus]

    def queue(self, *job_ids: str) -> None:
        for job_id in job_ids:
            request = GpuRequest(1, "J1", gpu_memory_mib=4096, share=Share.NEVER)
            self.rig.queue(job_id, f"task-{job_id}", request=request)

    def beat(self, times: int = 1, *, worker: bool = True) -> None:
        """Let a report of the node, if it has a worker, and a heartbeat of the scheduler follow each other,
        5 s apart.
        """
        for _ in range(times):
            self.clock.advance(5.0)
            if worker:
                self.far.agent.step()
            self.rig.beat()

    def end(self, job_id: str, state: str, exit_code: int) -> None:
        """Let a task end in this state of Airflow's."""
        self.rig.become(job_id, state)
        self.processes[self.node_of(job_id)].end(job_id, exit_code)

    def leases(self) -> dict[str, Lease]:
        return {lease.job_id: lease for lease in self.rig.ledger.view().leases}

    def foreign(self) -> dict[str, str]:
        """Return by GPU what a user is shown of somebody else there."""
        readings = ReadModel(self.database).overview().readings
        return {row.uuid: row.foreign for row in gpu_rows(self.rig.ledger.view(), readings)}

    def node_of(self, job_id: str) -> str:
        return self.leases()[job_id].placement.node


def _order(claim: RunClaim, payload: str) -> LaunchOrder:
    return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)
