"""From one view of the ledger to one frozen snapshot a pool; what did not change is shared."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import compress

from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.quick_init import quick_init, with_changes
from airflow_provider_eaco.core.model.snapshot import (
    AirflowPool,
    ClusterSnapshot,
    GpuSet,
    NodeState,
    PoolState,
    Resident,
)
from airflow_provider_eaco.core.ports import JobRecord, LedgerIndex, LedgerView, Member


def gpu_pool_of(airflow_pool: str, pools: Sequence[PoolState]) -> str:
    """Return the name of the GPU pool for jobs of this Airflow pool: its namesake, else the first declared.

    :param pools: all declared pools, at least one.
    """
    for pool in pools:
        if pool.settings.name == airflow_pool:
            return airflow_pool
    return pools[0].settings.name


def may_use(settings: PoolSettings, node_name: str) -> bool:
    """Tell whether the node's name matches one of the pool's shell patterns."""
    return any(fnmatchcase(node_name, pattern) for pattern in settings.nodes)


def used_slots(view: LedgerView) -> Mapping[str, int]:
    """Return the Airflow pool slots that jobs with a lease take, by Airflow pool."""
    return view.index().used_slots


# The leases on some GPUs of a node, and the set that they make; ``None``: there is nobody to judge.
_Holding = tuple[tuple[Member, ...], GpuSet | None]
_Ahead = Mapping[tuple[str, ...], _Holding]
_NOTHING_HELD: _Ahead = {}


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """A node's state with what it was built from: all its leases, and those on equal GPUs by their UUIDs."""

    members: tuple[Member, ...]
    state: NodeState
    held: Mapping[tuple[str, ...], _Holding]

    @classmethod
    def of(
        cls, node: Node, members: tuple[Member, ...], last: _Built | None, ahead: _Ahead = _NOTHING_HELD
    ) -> _Built:
        """Return the node's state, the last one if it would be equal; equal sets are the same objects.

        :param ahead: sets that somebody has asked for already.
        """
        if last is None:
            held = _held(node, members, _NOTHING_HELD, ahead)
            return cls(members, NodeState(node, _sets(held), _free(node, held)), held)
        alike = _same_for_planning(last.state.node, node)
        changed = _changed_sets(last.members, members) if alike else None
        if changed is not None:
            return last.with_changed(changed, members, ahead)
        held = _held(node, members, last.held if alike else _NOTHING_HELD, ahead)
        before = {known.placement.gpu_uuids: known for known in last.state.sets}
        held = {
            uuids: (own, _same_if_equal(before.get(uuids), built)) for uuids, (own, built) in held.items()
        }
        sets = _sets(held)
        unmoved = alike and held.keys() == last.held.keys()
        if unmoved and len(sets) == len(before) and all(map(operator.is_, sets, last.state.sets)):
            return cls(members, last.state, held)
        return cls(members, NodeState(node, sets, last.state.free if unmoved else _free(node, held)), held)

    def with_changed(
        self, changed: Sequence[tuple[str, ...]], members: tuple[Member, ...], ahead: _Ahead
    ) -> _Built:
        """Return the node's state if the same leases hold the same GPUs, but some sets have changed."""
        node, held = self.state.node, dict(self.held)
        for uuids in changed:
            own = tuple([member for member in members if member[0].placement.gpu_uuids == uuids])
            known, before = ahead.get(uuids), held[uuids][1]
            present = known[1] if known is not None and known[0] == own else set_of(node, own)
            held[uuids] = own, _same_if_equal(before, present)
        sets = _sets(held)
        if len(sets) == len(self.state.sets) and all(map(operator.is_, sets, self.state.sets)):
            return _Built(members, self.state, held)
        return _Built(members, NodeState(node, sets, self.state.free), held)


class SnapshotBuilder:
    """Builds snapshots; keeps the last state of each node so that an unchanged one is the same object.

    A node that has not reported for ``report_timeout_s`` on the store's clock is not available for new work;
    who runs there is left alone. ``None``: nodes stay available until they are forgotten.
    """

    def __init__(self, report_timeout_s: float | None = 120.0) -> None:
        self._report_timeout_s = report_timeout_s
        self._built: dict[str, _Built] = {}
        self._states: Mapping[str, NodeState] = {}
        self._nodes: Sequence[Node] = ()
        self._members: Mapping[str, tuple[Member, ...]] = {}
        self._ahead: dict[tuple[str, ...], _Holding] = {}

    def set_ahead(self, node: Node, members: tuple[Member, ...]) -> GpuSet | None:
        """Return the set of those who hold the same GPUs of a node, as the next snapshot will have it.

        :param node: as the ledger has it.
        """
        uuids, last = members[0][0].placement.gpu_uuids, self._built.get(node.name)
        known = self._ahead.get(uuids)
        if known is None and last is not None and last.state.node.gpus == node.gpus:
            known = last.held.get(uuids)
        if known is None or known[0] != members:
            known = self._ahead[uuids] = members, set_of(node, members)
        return known[1]

    def build(
        self,
        view: LedgerView,
        pools: Sequence[PoolState],
        profiles: ProfileBook,
        readings: Mapping[str, GpuReading],
    ) -> dict[str, ClusterSnapshot]:
        """Return one snapshot per declared pool, by the pool's name, all of the same instant."""
        index = view.index()
        states = self._node_states(view, index)
        waiting: dict[str, list[Job]] = defaultdict(list)
        for record in index.waiting:
            waiting[gpu_pool_of(record.job.pool, pools)].append(record.job)
        return {
            pool.settings.name: ClusterSnapshot(
                now_s=view.now_s,
                pool=_with_used(pool, index.used_slots, pools),
                nodes=_usable(pool.settings, states),
                waiting=tuple(waiting[pool.settings.name]),
                profiles=profiles,
                readings=readings,
                bookings=view.bookings,
            )
            for pool in pools
        }

    def _node_states(self, view: LedgerView, index: LedgerIndex) -> Mapping[str, NodeState]:
        """Return the states by name; as long as nothing changes this is the same object."""
        members, before = index.members, self._built
        touched = self._touched(view.nodes, members)
        self._nodes, self._members = view.nodes, members
        ahead, self._ahead = self._ahead, {}
        if touched is not None:
            return self._with_touched(touched, members, ahead)
        built: dict[str, _Built] = {}
        unchanged = True
        for node in view.nodes:
            there = members.get(node.name, ())
            present = self._judged(node, view.now_s)
            last = before.get(node.name)
            if last is None or last.members is not there or last.state.node is not present:
                built[node.name] = new = _Built.of(present, there, last)
                unchanged = unchanged and last is not None and new.state is last.state
            else:
                built[node.name] = last
        if not unchanged or built.keys() != before.keys():
            self._states = {name: each.state for name, each in built.items()}
        self._built = built
        return self._states

    def _touched(
        self, nodes: Sequence[Node], members: Mapping[str, tuple[Member, ...]]
    ) -> Sequence[str] | None:
        """Return the nodes whose members changed if nothing else did, ``None`` if all need a look."""
        before = self._members
        judged = self._report_timeout_s is not None
        if judged or nodes is not self._nodes or len(members) != len(before):
            return None
        if not all(map(operator.eq, members, before)):
            return None
        return tuple(compress(members, map(operator.is_not, members.values(), before.values())))

    def _with_touched(
        self, touched: Sequence[str], members: Mapping[str, tuple[Member, ...]], ahead: _Ahead
    ) -> Mapping[str, NodeState]:
        states = dict(self._states)
        unchanged = True
        for name in touched:
            last = self._built.get(name)
            # A node that was forgotten keeps its members until the last of them has ended.
            if last is not None:
                new = self._built[name] = _Built.of(last.state.node, members[name], last, ahead)
                unchanged = unchanged and new.state is last.state
                states[name] = new.state
        if not unchanged:
            self._states = states
        return self._states

    def _judged(self, node: Node, now_s: float) -> Node:
        if self._report_timeout_s is None or not node.available or node.last_report_s is None:
            return node
        silent = now_s - node.last_report_s > self._report_timeout_s
        return replace(node, available=False) if silent else node


def _usable(settings: PoolSettings, states: Mapping[str, NodeState]) -> Mapping[str, NodeState]:
    if "*" in settings.nodes:
        return states
    return {name: state for name, state in states.items() if may_use(settings, name)}


def _with_used(pool: PoolState, used: Mapping[str, int], pools: Sequence[PoolState]) -> PoolState:
    own = pool.settings.name
    return with_changes(
        pool,
        others=frozenset([name for name in used if gpu_pool_of(name, pools) != own]),
        airflow_pools={
            name: AirflowPool(airflow_pool.slots, used.get(name, 0))
            for name, airflow_pool in pool.airflow_pools.items()
        },
    )


def _same_for_planning(last: Node, present: Node) -> bool:
    """Tell whether the nodes differ at most in the instant of their last report."""
    return last is present or replace(last, last_report_s=present.last_report_s) == present


def _changed_sets(before: Sequence[Member], members: Sequence[Member]) -> Sequence[tuple[str, ...]] | None:
    """Return the GPUs whose holders have changed, ``None`` if others hold GPUs now."""
    if len(before) != len(members):
        return None
    changed: dict[tuple[str, ...], None] = {}
    for (lease_before, record_before), (lease, record) in zip(before, members, strict=True):
        if lease is not lease_before:
            if lease.token != lease_before.token or lease.placement != lease_before.placement:
                return None
            changed[lease.placement.gpu_uuids] = None
        elif record is not record_before:
            changed[lease.placement.gpu_uuids] = None
    return tuple(changed)


def _held(
    node: Node, members: Sequence[Member], last: _Ahead, ahead: _Ahead
) -> Mapping[tuple[str, ...], _Holding]:
    """Return what is held, by UUIDs in their order; what the same leases held before stays as it was."""
    there: dict[tuple[str, ...], list[Member]] = {}
    for member in members:
        there.setdefault(member[0].placement.gpu_uuids, []).append(member)
    held: dict[tuple[str, ...], _Holding] = {}
    for uuids in sorted(there):
        own, before = tuple(there[uuids]), last.get(uuids)
        if before is None or before[0] != own:
            before = ahead.get(uuids)
        held[uuids] = before if before is not None and before[0] == own else (own, set_of(node, own))
    return held


def set_of(node: Node, members: Sequence[Member]) -> GpuSet | None:
    """Return the set of those who hold the same GPUs of a node.

    A lease whose job is not in the view keeps its GPUs from everybody, but there is nobody to judge; ``None``
    if that is so of all.
    """
    residents = tuple([_resident(lease, record) for lease, record in members if record is not None])
    if not residents:
        return None
    placement = members[0][0].placement
    by_uuid = node.by_uuid
    gpus = tuple([by_uuid.get(uuid) or _missing(uuid, node.name) for uuid in placement.gpu_uuids])
    return GpuSet(placement, gpus, residents)


def _sets(held: Mapping[tuple[str, ...], _Holding]) -> tuple[GpuSet, ...]:
    return tuple([built for _, built in held.values() if built is not None])


def _same_if_equal(before: GpuSet | None, built: GpuSet | None) -> GpuSet | None:
    if built is before or before is None or built is None:
        return built
    # Most that are made anew differ in what was reported last, which is seen at once.
    if _units_done(before) != _units_done(built):
        return built
    return before if before == built else built


def _units_done(held: GpuSet) -> list[int]:
    return [resident.job.progress.units_done for resident in held.residents]


def _free(node: Node, held: Iterable[tuple[str, ...]]) -> tuple[Gpu, ...]:
    taken = {uuid for uuids in held for uuid in uuids}
    return tuple([gpu for gpu in node.gpus if gpu.uuid not in taken])


def _resident(lease: Lease, record: JobRecord) -> Resident:
    return Resident(
        job=record.job,
        token=lease.token,
        state=lease.state,
        set_version=lease.set_version,
        granted_s=lease.granted_s,
        observation=record.observation,
        trial_since_s=lease.trial_since_s,
        charged_s=lease.charged_s,
        charged_until_s=lease.charged_until_s,
    )


def _missing(uuid: str, node: str) -> Gpu:
    return Gpu(uuid, node, -1, "unknown", None, health=GpuHealth.UNKNOWN)
