"""A pool of a scheduler's own GPUs and of a node's with a worker: both are planned, started and metered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.dispatch import celery
from airflow_provider_eaco.provider import celery_app
from airflow_provider_eaco.provider.node_api.models import REPORTS
from airflow_provider_eaco.provider.node_settings import DispatchChoice
from airflow_provider_eaco.provider.node_wiring import make_node_door, make_worker_side
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import _as_json
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, TruthTable, simulated_node
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_engine
from tests.unit.provider.executor.lane_rig import START_S, FakeDispatcher, LaneRig, Parts
from tests.unit.provider.worker.worker_rig import FakeRegister, NoBoards

OWN, FAR = "own", "far"


class Watched(SimulatedCluster):
    """Simulated GPUs of which some are used by somebody else."""

    strangers: frozenset[str] = frozenset()

    def read(self) -> Sequence[GpuReading]:
        return [
            replace(each, foreign_processes=1) if each.uuid in self.strangers else each
            for each in super().read()
        ]


class FarNode:
    """The node with a worker, as its API client, its dispatcher, and its order of a run."""

    interval_s = 1.0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.processes = FakeDispatcher()
        machine = Machine(FAR, "host", pool.meters[FAR], self.processes, _order, self._find, NoBoards())
        self.agent = NodeAgent(machine, self, FakeRegister(), pool.clock.now_s)

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        return self._pool.door.claim(FAR, "host", token, job_id)

    def report(self, report: NodeReport) -> NodeAnswer:
        sent = REPORTS.validate_json(json.dumps(_as_json(report)))
        return self._pool.door.take(sent.as_report(FAR))

    @staticmethod
    def _find(job_id: str, token: int) -> str | None:
        return None


class MixedLane(LaneRig):
    """The lane of a scheduler with GPUs of its own that also sends tasks to the node."""

    def __init__(self, pool: Pool, *rest: Any, **named: Any) -> None:
        self._pool = pool
        super().__init__(*rest, **named)

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        base, mixed = super()._services(parts, pool), self._pool
        settings = replace(base.settings, dispatch=DispatchChoice.CELERY)
        side = make_worker_side(settings, self.dispatcher, mixed.database)
        return replace(
            base,
            admission=side.admitting(base.admission),
            dispatcher=side.dispatcher,
            workers=side.workers,
            meters=(*base.meters, *side.meters),
        )


class Pool:
    """Two simulated V100 of the scheduler's own, two of the node's, each with a device model of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(START_S)
        self.engine = sqlite_engine(folder / "store.db")
        schema.metadata.create_all(self.engine)
        self.database = database_on(self.engine, self.clock)
        SqlNodeCredentials(self.database).add(FAR)
        self.clusters = {
            name: Watched(
                folder / f"{name}.json",
                [simulated_node(name, 2)],
                TruthTable(built_in_book()),
                clock=self.clock.now_s,
            )
            for name in (OWN, FAR)
        }
        self.meters = {
            name: NodeMeter(each, each, each, simulated_state=str(folder / f"{name}.json"), live=each)
            for name, each in self.clusters.items()
        }
        self.door = make_node_door(EacoSettings(pools=(PoolSettings(),)), self.database)
        # One broker less: the message reaches the node's agent at once.
        monkeypatch.setattr(celery_app, "make_app", lambda: None)
        monkeypatch.setattr(celery_app, "sender", lambda app: self.send)
        monkeypatch.setattr(celery, "_LOOK_AGE_S", -1.0)
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, built_in_book()),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=self.meters[OWN],
        )
        self.rig = MixedLane(self, monkeypatch, parts=parts)
        self.rig.lane._monotonic = self.clock.now_s
        self.far = FarNode(self)

    def send(self, queue: str, task: str, message: Mapping[str, Any]) -> None:
        self.far.agent.take(message)

    def uuids(self, node: str) -> list[str]:
        return [gpu.uuid for each in self.clusters[node].inventory() for gpu in each.gpus]

    def queue(self, *job_ids: str) -> None:
        for job_id in job_ids:
            request = GpuRequest(1, "J1", gpu_memory_mib=4096, share=Share.NEVER)
            self.rig.queue(job_id, f"task-{job_id}", request=request)

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(5.0)
            self.far.agent.step()
            self.rig.beat()

    def leases(self) -> dict[str, Lease]:
        return {lease.job_id: lease for lease in self.rig.ledger.view().leases}

    def node_of(self, job_id: str) -> str:
        return self.leases()[job_id].placement.node


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    made = Pool(tmp_path, monkeypatch)
    made.beat()
    yield made
    made.engine.dispose()


def test_tasks_run_and_are_metered_on_both_kinds_of_nodes(pool: Pool) -> None:
    """Each starts where its GPUs are, is told to the meter there, and has its joules once, of its GPU."""
    jobs = ("a", "b", "c", "d")
    pool.queue(*jobs)
    pool.beat(4)
    leases = pool.leases()
    assert {pool.rig.phase(job_id) for job_id in jobs} == {"running"}
    assert sorted(lease.placement.node for lease in leases.values()) == [FAR, FAR, OWN, OWN]
    started = {OWN: pool.rig.dispatcher, FAR: pool.far.processes}
    for node, dispatcher in started.items():
        there = {job_id for job_id, lease in leases.items() if lease.placement.node == node}
        assert {order.job_id for order in dispatcher.orders} == there
        assert {run.job_id for run in pool.clusters[node].history().residents} == there
    pool.beat(20)
    for job_id in jobs:
        pool.rig.become(job_id, "success")
        started[leases[job_id].placement.node].end(job_id)
    pool.beat(4)
    assert {pool.rig.phase(job_id) for job_id in jobs} == {"finished"}
    assert pool.leases() == {}
    with pool.database.reading() as connection:
        rows = connection.execute(schema.energy.select()).all()
    metered = {row.token: (row.gpu_uuid,) for row in rows if row.energy_j > 0}
    assert len(rows) == len(metered) == len(jobs)
    assert metered == {lease.token: lease.placement.gpu_uuids for lease in leases.values()}


@pytest.mark.parametrize("watched", [OWN, FAR])
def test_c34_strangers_keep_tasks_away_on_both_kinds_of_nodes(watched: str, pool: Pool) -> None:
    """What is read here and what the node reports weigh alike: the GPU stays free, and a task waits."""
    pool.clusters[watched].strangers = frozenset(pool.uuids(watched)[:1])
    pool.beat()
    pool.queue("a", "b", "c", "d")
    pool.beat(4)
    taken = {uuid for lease in pool.leases().values() for uuid in lease.placement.gpu_uuids}
    assert taken == {*pool.uuids(OWN), *pool.uuids(FAR)} - pool.clusters[watched].strangers
    (waiting,) = [job_id for job_id in "abcd" if pool.rig.phase(job_id) == "waiting"]
    pool.clusters[watched].strangers = frozenset()
    pool.beat(4)
    assert pool.node_of(waiting) == watched


def test_a_node_whose_worker_has_left_leaves_the_own_gpus_at_work(pool: Pool) -> None:
    """New tasks go to the GPUs that can be reached."""
    pool.far.agent.stop()
    pool.far.agent.run()
    pool.queue("a", "b", "c")
    for _ in range(3):
        pool.clock.advance(5.0)
        pool.rig.beat()
    assert {lease.placement.node for lease in pool.leases().values()} == {OWN}
    assert sorted(str(pool.rig.phase(job_id)) for job_id in "abc") == ["running", "running", "waiting"]


def _order(claim: RunClaim, payload: str) -> LaunchOrder:
    return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)
