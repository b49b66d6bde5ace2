"""What a what-if begins with, and what the user wants to be otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy
from airflow_provider_eaco.core.ports import EnergyUse, JobRecord, LedgerView, PastLease
from airflow_provider_eaco.engine.pool_manager import wanted_slots
from airflow_provider_eaco.engine.prices import EnergyPricing
from airflow_provider_eaco.engine.snapshots import gpu_pool_of, may_use

# More GPUs than any one cluster of today has.
MOST_GPUS = 100_000
NEW_NODE = "what-if"


def _nothing(_after_s: float, _until_s: float) -> Sequence[PastLease]:
    return ()


@dataclass(frozen=True, slots=True)
class Present:
    """All that planning sees, as of one instant.

    Nodes of ``view`` are available as the planner judges it. ``past`` reads leases that have ended, as
    :meth:`~airflow_provider_eaco.core.ports.Ledger.past_leases` does. ``hold_window`` is the settings' own.
    """

    view: LedgerView
    pools: tuple[PoolState, ...]
    profiles: ProfileBook = field(default_factory=ProfileBook)
    readings: tuple[GpuReading, ...] = ()
    past: Callable[[float, float], Sequence[PastLease]] = _nothing
    energy_use: EnergyUse | None = None
    pricing: EnergyPricing | None = None
    hold_window: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be otherwise in one GPU pool; ``None`` leaves a thing as it is.

    ``gpus`` is how many GPUs the pool has in all. ``max_stretch`` is the limit of every job, infinite for
    none.
    """

    policy: str | None = None
    order: str | None = None
    gpus: int | None = None
    max_residents: int | None = None
    max_stretch: float | None = None

    @property
    def are_any(self) -> bool:
        return self != Changes()


def judged(view: LedgerView, report_timeout_s: float) -> LedgerView:
    """Return the view whose silent nodes are unavailable, as planning judges them at its instant."""

    def of(node: Node) -> Node:
        silent = node.last_report_s is not None and view.now_s - node.last_report_s > report_timeout_s
        return replace(node, available=False) if silent and node.available else node

    return replace(view, nodes=tuple(of(node) for node in view.nodes), kept_index=None)


def changed(present: Present, name: str, changes: Changes) -> Present:
    """Return what there would be with the changes in the GPU pool of this name.

    :raises InvalidSettingError: naming the option that cannot be had, and what is allowed.
    """
    pool = next((each for each in present.pools if each.settings.name == name), None)
    if pool is None:
        names = ", ".join(each.settings.name for each in present.pools)
        raise InvalidSettingError("--pool", f"no GPU pool is named {name!r}; [eaco] pools has {names}")
    settings = _settings(pool.settings, changes)
    view = present.view
    if changes.max_stretch is not None:
        view = _with_stretch(view, present.pools, name, changes.max_stretch)
    if changes.gpus is not None:
        view, settings = _with_gpus(view, settings, changes.gpus)
    pools = tuple(_resized(pool, settings, present, view) if each is pool else each for each in present.pools)
    return replace(present, view=view, pools=pools)


def _settings(settings: PoolSettings, changes: Changes) -> PoolSettings:
    if changes.policy is not None:
        # Another policy is meant to decide, also where the pool only observes or shares nothing now.
        settings = replace(settings, policy=changes.policy, mode=PoolMode.SHARE)
    if changes.order is not None:
        settings = replace(settings, ordering=changes.order)
    if changes.max_residents is not None:
        if not 1 <= changes.max_residents <= 64:
            raise InvalidSettingError(
                "--max-residents", f"is {changes.max_residents}, must be from 1 to 64 tasks on one GPU"
            )
        settings = replace(settings, max_residents=changes.max_residents)
    for option, make in (
        ("--policy", lambda: make_policy(settings)),
        ("--order", lambda: make_ordering(settings.ordering)),
    ):
        try:
            make()
        except InvalidSettingError as error:
            raise InvalidSettingError(option, error.problem) from error
    return settings


def _with_stretch(view: LedgerView, pools: Sequence[PoolState], name: str, max_stretch: float) -> LedgerView:
    if not max_stretch >= 1:
        raise InvalidSettingError("--max-stretch", f"is {max_stretch:g}, must be 1 or more, or none")
    limit = None if max_stretch == float("inf") else max_stretch

    def of(record: JobRecord) -> JobRecord:
        if gpu_pool_of(record.job.pool, pools) != name:
            return record
        return replace(
            record, job=replace(record.job, request=replace(record.job.request, max_stretch=limit))
        )

    return replace(view, jobs=tuple(of(record) for record in view.jobs), kept_index=None)


def _with_gpus(view: LedgerView, settings: PoolSettings, gpus: int) -> tuple[LedgerView, PoolSettings]:
    if not 1 <= gpus <= MOST_GPUS:
        raise InvalidSettingError("--gpus", f"is {gpus}, must be from 1 to {MOST_GPUS}")
    own = [node for node in view.nodes if may_use(settings, node.name) and node.gpus]
    present = sum(len(node.gpus) for node in own)
    if not own:
        raise InvalidSettingError("--gpus", f"GPU pool {settings.name} has no node that more could be like")
    if gpus < present:
        return _without_gpus(view, own, present - gpus), settings
    nodes = _more_nodes(own, gpus - present, {node.name for node in view.nodes})
    counters = {gpu.uuid: 0 for node in nodes for gpu in node.gpus}
    names = settings.nodes if "*" in settings.nodes else (*settings.nodes, *(node.name for node in nodes))
    more = replace(view, nodes=(*view.nodes, *nodes), gpu_versions={**view.gpu_versions, **counters})
    return more, replace(settings, nodes=names)


def _more_nodes(own: Sequence[Node], gpus: int, taken: set[str]) -> list[Node]:
    """Return new nodes with so many GPUs in all, each like the largest that is there."""
    pattern = max(own, key=lambda node: (node.available, len(node.gpus), node.name))
    nodes: list[Node] = []
    number = 0
    while gpus > 0:
        number += 1
        name = f"{NEW_NODE}-{number}"
        if name in taken:
            continue
        count = min(gpus, len(pattern.gpus))
        boards = tuple(_like(gpu, name, index) for index, gpu in enumerate(pattern.gpus[:count]))
        nodes.append(replace(pattern, name=name, gpus=boards, draining=False, available=True))
        gpus -= count
    return nodes


def _like(gpu: Gpu, node: str, index: int) -> Gpu:
    # A part of a GPU is told by its UUID.
    kind = "MIG" if gpu.is_partition else "GPU"
    return replace(gpu, uuid=f"{kind}-{node}-{index}", node=node, index=index, health=GpuHealth.HEALTHY)


def _without_gpus(view: LedgerView, own: Sequence[Node], gone: int) -> LedgerView:
    """Return the view without so many GPUs: free ones are not there, held ones take nobody new."""
    held = {uuid for lease in view.leases for uuid in lease.placement.gpu_uuids}
    boards = [
        gpu for node in sorted(own, key=lambda node: node.name, reverse=True) for gpu in node.gpus[::-1]
    ]
    leaving = {gpu.uuid for gpu in sorted(boards, key=lambda gpu: gpu.uuid in held)[:gone]}

    def of(node: Node) -> Node:
        if leaving.isdisjoint(gpu.uuid for gpu in node.gpus):
            return node
        left = [
            replace(gpu, health=GpuHealth.UNHEALTHY) if gpu.uuid in leaving else gpu
            for gpu in node.gpus
            if gpu.uuid not in leaving or gpu.uuid in held
        ]
        return replace(node, gpus=tuple(left))

    nodes = tuple(of(node) for node in view.nodes)
    there = {gpu.uuid for node in nodes for gpu in node.gpus}
    counters = {uuid: count for uuid, count in view.gpu_versions.items() if uuid in there}
    return replace(view, nodes=nodes, gpu_versions=counters)


def _resized(pool: PoolState, settings: PoolSettings, present: Present, view: LedgerView) -> PoolState:
    """Return the pool with its settings; an Airflow pool of our size gets the size that it would have."""
    state = replace(pool, settings=settings)
    known = pool.airflow_pools.get(settings.name)
    if known is None or known.slots != wanted_slots(present.view, pool, present.hold_window):
        return state
    slots = wanted_slots(view, state, present.hold_window)
    resized = replace(known, slots=slots)
    return replace(state, airflow_pools={**pool.airflow_pools, settings.name: resized})
