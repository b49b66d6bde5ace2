"""The benchmark ``order``: one day, no sharing, and order as the only change.

It drives :func:`~airflow_provider_eaco.core.cycle.run_cycle` with the policy ``exclusive`` on snapshots that
it keeps by itself: no ledger, no trials, nothing but order. Everything else runs in the simulator proper.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import DemandCurve, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import AirflowPool, ClusterSnapshot, NodeState, PoolState
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.base import Ordering
from airflow_provider_eaco.core.policy.ordering import fifo_key
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from airflow_provider_eaco.simulator.order_workload import DAY_S, GPUS_PER_NODE, HOUR_S, OrderDay, OrderJob

_MODEL = "V100"
_POOL = "order"


class GreedyFill:
    """A reference order, not offered to users: fifo, and whoever fits may start, so that gangs can starve."""

    keeping = Keeping.NOTHING

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        return tuple(sorted(jobs, key=fifo_key))


class LargestFirst:
    """A reference order, not offered to users: most GPUs first, and whoever fits may start."""

    keeping = Keeping.NOTHING

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        return tuple(sorted(jobs, key=lambda job: (-job.request.gpus, fifo_key(job))))


_REFERENCES: Mapping[str, Callable[[], Ordering]] = {"greedy": GreedyFill, "largest": LargestFirst}


@dataclass(frozen=True, slots=True)
class OrderResult:
    """What came of a day: when and where every job ran."""

    starts_s: dict[str, float]
    ends_s: dict[str, float]
    placements: dict[str, Placement]

    def used_gpu_s(self, day: OrderDay) -> float:
        """Return the GPU seconds of jobs and of demand really served until the day's end.

        Demand on a GPU that a job holds longer than it was believed is not served.
        """
        jobs = sum(
            job.gpus * max(0.0, min(self.ends_s[job.job_id], DAY_S) - self.starts_s[job.job_id])
            for job in day.jobs
            if self.starts_s.get(job.job_id, DAY_S) < DAY_S
        )
        return jobs + day.demand_gpu_s - self._unserved_gpu_s(day)

    def _unserved_gpu_s(self, day: OrderDay) -> float:
        lost = 0.0
        for job_id, placement in self.placements.items():
            begin_s, end_s = self.starts_s[job_id], min(self.ends_s[job_id], DAY_S)
            for index in (index_of(uuid) for uuid in placement.gpu_uuids if placement.node == node_name(0)):
                for hour, needed in enumerate(day.demand):
                    if needed > index:
                        overlap_s = min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S)
                        lost += max(0.0, overlap_s)
        return lost


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:04d}"


def index_of(uuid: str) -> int:
    """Return the index of a GPU on its node."""
    return int(uuid.rpartition("-")[2])


def order_settings(day: OrderDay, order: str, *, peak: bool = False) -> PoolSettings:
    """Return the pool for a day: gangs on aligned blocks, and the demand as a curve or as its daily peak."""
    curve = (max(day.demand),) * 24 if peak else day.demand
    demand = (DemandCurve(node_name(0), curve),) if any(curve) else ()
    return PoolSettings(
        name=_POOL,
        policy="exclusive",
        ordering=order,
        aligned=True,
        demand=demand,
        memory_margin_mib=0,
    )


def run_day(day: OrderDay, settings: PoolSettings, until_s: float = DAY_S) -> OrderResult:
    """Return what comes of the day until ``until_s``; jobs that were not started by then have no start."""
    run = _Run(day, settings)
    run.go(until_s)
    return OrderResult(run.starts_s, run.ends_s, run.placements)


class _Run:
    """One day in the making."""

    def __init__(self, day: OrderDay, settings: PoolSettings) -> None:
        self._policy = make_policy(settings)
        self._ordering = _ordering(settings.ordering)
        self._rules = make_rules(settings)
        self._jobs = {job.job_id: job for job in day.jobs}
        profiles = [
            SoloProfile(job.job_id, _MODEL, job.gpus, unit_s=job.believed_s, units_total=1)
            for job in day.jobs
        ]
        self._snapshot = ClusterSnapshot(
            0.0,
            PoolState(settings, {_POOL: AirflowPool(None)}),
            {node_name(number): _node(node_name(number)) for number in range(day.nodes)},
            profiles=ProfileBook({profile.key: profile for profile in profiles}),
        )
        self._arrivals = sorted(day.jobs, key=lambda job: job.submit_s)
        self._ends: list[tuple[float, str]] = []
        self._hours = [hour * HOUR_S for hour in range(24, 0, -1)] if settings.demand else []
        self.starts_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}
        self.placements: dict[str, Placement] = {}

    def go(self, until_s: float) -> None:
        arrived = 0
        while (now_s := self._next_s(arrived)) < until_s:
            self._snapshot = replace(self._snapshot, now_s=now_s)
            while self._hours and self._hours[-1] <= now_s:
                self._hours.pop()
            while self._ends and self._ends[0][0] <= now_s:
                self._release(heapq.heappop(self._ends)[1])
            while arrived < len(self._arrivals) and self._arrivals[arrived].submit_s <= now_s:
                job = _job(self._arrivals[arrived].job_id, self._jobs)
                self._snapshot = replace(self._snapshot, waiting=(*self._snapshot.waiting, job))
                arrived += 1
            if self._snapshot.waiting:
                self._decide()

    def _next_s(self, arrived: int) -> float:
        times = [self._arrivals[arrived].submit_s] if arrived < len(self._arrivals) else []
        times += [self._ends[0][0]] if self._ends else []
        times += [self._hours[-1]] if self._hours else []
        return min(times, default=float("inf"))

    def _decide(self) -> None:
        plan = run_cycle(self._policy, self._ordering, self._snapshot, self._rules)
        started = set()
        for launch in plan.instructions:
            if isinstance(launch, Launch):
                job_id, now_s = launch.job.job_id, self._snapshot.now_s
                self._snapshot = self._snapshot.with_launch(launch.job, launch.placement)
                self.starts_s[job_id], self.ends_s[job_id] = now_s, now_s + self._jobs[job_id].work_s
                self.placements[job_id] = launch.placement
                heapq.heappush(self._ends, (self.ends_s[job_id], job_id))
                started.add(job_id)
        waiting = tuple(job for job in self._snapshot.waiting if job.job_id not in started)
        self._snapshot = replace(self._snapshot, waiting=waiting)

    def _release(self, job_id: str) -> None:
        placement = self.placements[job_id]
        state = self._snapshot.nodes[placement.node]
        sets = tuple(held for held in state.sets if held.placement != placement)
        still_held = {gpu.uuid for held in sets for gpu in held.gpus}
        free = tuple(gpu for gpu in state.node.gpus if gpu.uuid not in still_held)
        nodes = {**self._snapshot.nodes, placement.node: NodeState(state.node, sets, free)}
        self._snapshot = replace(self._snapshot, nodes=nodes)


def _ordering(name: str) -> Ordering:
    reference = _REFERENCES.get(name)
    return make_ordering(name) if reference is None else reference()


def _node(name: str) -> NodeState:
    gpus = tuple(Gpu(f"{name}-{index}", name, index, _MODEL, None) for index in range(GPUS_PER_NODE))
    return NodeState(Node(name, gpus), free=gpus)


def _job(job_id: str, jobs: dict[str, OrderJob]) -> Job:
    drawn = jobs[job_id]
    request = GpuRequest(drawn.gpus, job_id, max_stretch=None)
    order = OrderKey(drawn.submit_s, "dag", job_id, -1, job_id)
    return Job(job_id, request, _POOL, drawn.submit_s, order, progress=Progress(units_total=1))
