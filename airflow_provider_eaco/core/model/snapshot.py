"""The snapshot: everything an admission decision may see, frozen, sharing structure with its successors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.energy_budget import EnergyUsed
from airflow_provider_eaco.core.model.energy_series import EnergySeries
from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.node_power import NodePowerState
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.prices import EnergyPrices
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.quick_init import quick_init, with_changes


@dataclass(frozen=True, slots=True)
class AirflowPool:
    """An Airflow pool: ``slots`` in all (``None``: unlimited), ``used`` by jobs with a lease."""

    slots: int | None
    used: int = 0


@quick_init
@dataclass(frozen=True, slots=True)
class PoolState:
    """A GPU pool in this cycle: its settings and what Airflow says of the pool of that name.

    Jobs that reach this GPU pool from another Airflow pool carry that pool's name in ``Job.pool``;
    ``airflow_pools`` has all of them, and a name that is missing there is a pool that does not exist.

    What rules have to know of the past: ``past_gpu_s`` are the GPU seconds of ended leases by team, decayed
    to now (rule ``fair_share``; a team is what the settings say). ``newest_started_queued_s`` is the latest
    instant at which any job that was started here had been queued (rule ``reserve``: whoever was queued
    before has been passed over). Without them the rules know the residents only.

    What policies that steer have to know: ``node_power`` has the states of the nodes that can sleep, by name
    (a node that is missing there is on), ``power_limits_w`` the limits that are in force (a placement that
    is missing there runs at its boards' own). ``others`` are the Airflow pools whose jobs hold GPUs and
    belong to other GPU pools: on nodes that pools share, those are not this pool's to move or answer for.

    What energy budgets have to know: ``energy_used`` in the present day (``None``: nobody counts), and
    ``asleep_w``, the draw of a node that sleeps (``None``: not known, it counts as an idle one). ``series``
    are prices and carbon intensities, where somebody told them.
    """

    settings: PoolSettings = field(default_factory=PoolSettings)
    airflow_pools: Mapping[str, AirflowPool] = field(default_factory=dict)
    past_gpu_s: Mapping[str, float] = field(default_factory=dict)
    newest_started_queued_s: float | None = None
    node_power: Mapping[str, NodePowerState] = field(default_factory=dict)
    power_limits_w: Mapping[Placement, float] = field(default_factory=dict)
    energy_used: EnergyUsed | None = None
    asleep_w: float | None = None
    series: tuple[EnergySeries, ...] = ()
    others: frozenset[str] = frozenset()

    def with_used(self, name: str, pool_slots: int) -> PoolState:
        """Return the state in which ``pool_slots`` more are used of that Airflow pool, if there is one."""
        present = self.airflow_pools.get(name)
        if present is None:
            return self
        grown = replace(present, used=present.used + pool_slots)
        return with_changes(self, airflow_pools={**self.airflow_pools, name: grown})


@quick_init
@dataclass(frozen=True, slots=True)
class Observation:
    """What a resident has reported under the present resident set.

    ``units`` complete units that began and ended under ``set_version``; ``unit_s`` their mean device time,
    ``None`` without any, and ``spread_s`` its standard deviation, ``None`` below two. ``elapsed_s`` device
    time since the set last changed. ``limited``: a power limit was in force during some of it, so that it
    does not tell how the set runs at full power.
    """

    set_version: int
    units: int = 0
    unit_s: float | None = None
    elapsed_s: float = 0.0
    spread_s: float | None = None
    limited: bool = False


@quick_init
@dataclass(frozen=True, slots=True)
class Resident:
    """A job that holds GPUs: its lease state and what it has reported there.

    ``trial_since_s`` is the instant of the set's last change (``None``: the grant was the last).
    ``charged_s`` and ``charged_until_s`` are the lease's: the seconds that count as its own.
    """

    job: Job
    token: int
    state: LeaseState
    set_version: int
    granted_s: float
    observation: Observation | None = None
    trial_since_s: float | None = None
    charged_s: float = 0.0
    charged_until_s: float | None = None

    @property
    def charged_since_s(self) -> float:
        """The instant from which its seconds are not in ``charged_s`` yet."""
        return self.granted_s if self.charged_until_s is None else self.charged_until_s

    def charged_at(self, now_s: float, members: int) -> float:
        """Return the seconds that count as its own at ``now_s``, of a set with so many members until then."""
        return self.charged_s + max(0.0, now_s - self.charged_since_s) / members


@dataclass(frozen=True)
class GpuSet:
    """GPUs of one node that are held together by the same residents (at least one)."""

    placement: Placement
    gpus: tuple[Gpu, ...]
    residents: tuple[Resident, ...]

    @cached_property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted([resident.job.request.family for resident in self.residents]))


@dataclass(frozen=True)
class NodeState:
    """One node: the sets that are held, and the GPUs that nobody holds."""

    node: Node
    sets: tuple[GpuSet, ...] = ()
    free: tuple[Gpu, ...] = ()

    @cached_property
    def shared_sets(self) -> tuple[GpuSet, ...]:
        """The sets with two and more residents."""
        return tuple([held for held in self.sets if len(held.residents) > 1])


@quick_init
@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One pool's view of the cluster at ``now_s`` (seconds since the epoch of the store's clock).

    Nodes are those the pool may use; a node's residents are there whichever pool they belong to. The free
    GPUs of ``kept_nodes`` are kept for jobs that stand earlier in the queue than the one looked at; with each
    name stands how many GPUs the first of those asks for (0: they are kept for the starts of a plan). The one
    looked at may take no GPU of ``barred`` (UUIDs), free or by joining a set: it would still be there when
    they are promised to somebody. ``offered`` is the place that a plan holds ready for it. ``prices`` are
    there for policies that weigh joules by them. ``bookings`` are those that have not ended, on any node.
    """

    now_s: float
    pool: PoolState
    nodes: Mapping[str, NodeState]
    waiting: tuple[Job, ...] = ()
    profiles: ProfileBook = field(default_factory=ProfileBook)
    readings: Mapping[str, GpuReading] = field(default_factory=dict)
    kept_nodes: Mapping[str, int] = field(default_factory=dict)
    barred: frozenset[str] = frozenset()
    offered: Placement | None = None
    prices: EnergyPrices | None = None
    bookings: tuple[Booking, ...] = ()

    def with_launch(self, job: Job, placement: Placement) -> ClusterSnapshot:
        """Return the snapshot in which ``job`` holds ``placement``; all other nodes are shared with this one.

        The new resident is in trial if others are there, and so are they; its Airflow pool has that many
        slots more in use. ``waiting`` stays as it was when the cycle began: it is the queue of the cycle,
        not of the moment.

        :raises ValueError: if the placement is neither an existing set nor made of free GPUs.
        """
        state = self.nodes[placement.node]
        nodes = dict(self.nodes)
        nodes[placement.node] = _launched(state, job, placement, self.now_s)
        return with_changes(self, nodes=nodes, pool=self.pool.with_used(job.pool, job.pool_slots))

    def with_set(self, held: GpuSet, other: GpuSet) -> ClusterSnapshot:
        """Return the snapshot in which ``other`` stands where ``held`` stood, on the same GPUs."""
        state = self.nodes[held.placement.node]
        sets = tuple(other if present is held else present for present in state.sets)
        return with_changes(self, nodes={**self.nodes, state.node.name: replace(state, sets=sets)})


def _launched(state: NodeState, job: Job, placement: Placement, now_s: float) -> NodeState:
    for position, held in enumerate(state.sets):
        if held.placement == placement:
            version = max(resident.set_version for resident in held.residents) + 1
            joined = tuple(
                with_changes(
                    resident,
                    state=LeaseState.TRIAL,
                    set_version=version,
                    observation=None,
                    charged_s=resident.charged_at(now_s, len(held.residents)),
                    charged_until_s=now_s,
                )
                for resident in held.residents
            )
            newcomer = Resident(job, 0, LeaseState.TRIAL, version, now_s)
            grown = replace(held, residents=(*joined, newcomer))
            return replace(state, sets=(*state.sets[:position], grown, *state.sets[position + 1 :]))
    wanted = set(placement.gpu_uuids)
    chosen = tuple(gpu for gpu in state.free if gpu.uuid in wanted)
    if len(chosen) != len(wanted):
        raise ValueError(f"placement {placement} is neither an existing set nor free")
    alone = GpuSet(placement, chosen, (Resident(job, 0, LeaseState.EXCLUSIVE, 1, now_s),))
    rest = tuple(gpu for gpu in state.free if gpu.uuid not in wanted)
    return replace(state, sets=(*state.sets, alone), free=rest)
