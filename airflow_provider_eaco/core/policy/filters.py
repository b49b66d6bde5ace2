"""Filters: each looks at one thing, and names its reason with the numbers of the case.

First what keeps a kind of job from every GPU, then what keeps it from one node, then from one held set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_eaco.core.energy.objective import join_energy
from airflow_provider_eaco.core.energy.outlook import (
    remaining_solo_s,
    slowdown_within_deadline,
    slowdown_within_stretch,
    units_total_of,
)
from airflow_provider_eaco.core.model.decision import Finding, Reason, SetPrediction
from airflow_provider_eaco.core.model.job import GpuRequest, JobKind, Share
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import SoloProfile, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, PoolState
from airflow_provider_eaco.core.model.units import format_memory_mib
from airflow_provider_eaco.core.policy.facts import CycleFacts, GpuGroup, NodeFacts, SetFacts, memory_peak_mib


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason at one place. Of several with one reason, the least ``distance`` is nearest to fitting."""

    reason: Reason
    distance: float
    where: str
    numbers: dict[str, object] = field(compare=False)

    @property
    def finding(self) -> Finding:
        return Finding(self.reason, self.numbers)


def nearest(obstacles: Iterable[Obstacle]) -> dict[Reason, Obstacle]:
    """Return for each reason the obstacle that is nearest to fitting; names decide between equals."""
    best: dict[Reason, Obstacle] = {}
    for obstacle in obstacles:
        present = best.get(obstacle.reason)
        if present is None or (obstacle.distance, obstacle.where) < (present.distance, present.where):
            best[obstacle.reason] = obstacle
    return best


# --- the kind: no GPU is looked at -------------------------------------------------------------------------


def airflow_pool(kind: JobKind, pool: PoolState) -> Finding | None:
    """Require an Airflow pool that exists, is large enough for the task, and has room now (C10 to C13).

    A pool of 0 slots is closed on purpose, and closed pools are opened again: nothing is too large for it.
    """
    name = kind.pool
    airflow = pool.airflow_pools.get(name)
    if airflow is None:
        return Finding(Reason.POOL_UNKNOWN, {"pool": name})
    if airflow.slots is None:
        return None
    if kind.pool_slots > airflow.slots > 0:
        numbers = {"pool": name, "pool_slots": kind.pool_slots, "slots": airflow.slots}
        return Finding(Reason.EXCEEDS_POOL, numbers)
    if airflow.used + kind.pool_slots > airflow.slots:
        return Finding(Reason.POOL_CLOSED, {"pool": name, "slots": airflow.slots, "used": airflow.used})
    return None


def hold_mark(kind: JobKind) -> Finding | None:
    """Require that no user holds the job back."""
    return Finding(Reason.ON_HOLD) if kind.on_hold else None


# --- one node ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs of a node, whatever its limits."""

    family: str
    gpus: int
    gpu_memory_mib: int | None
    gpu_models: tuple[str, ...]
    host_memory_mib: int | None

    @classmethod
    def of(cls, request: GpuRequest) -> Needs:
        return cls(
            request.family, request.gpus, request.gpu_memory_mib, request.gpu_models, request.host_memory_mib
        )


def fits_alone(needs: Needs, group: GpuGroup, facts: CycleFacts) -> bool:
    """Tell whether the model is acceptable, and the job alone fits the memory of one such GPU.

    What was asked has to be there with the margin; unknown memory proves nothing (C47). A peak that was
    measured alone on this model needs no margin: it has been seen to fit.
    """
    if needs.gpu_models and group.model not in needs.gpu_models:
        return False
    if needs.gpu_memory_mib is not None:
        asked_mib = needs.gpu_memory_mib + facts.settings.memory_margin_mib
        return group.usable_mib is not None and asked_mib <= group.usable_mib
    solo = facts.book.solo_of(needs.family, group.model, needs.gpus)
    peak_mib = None if solo is None else solo.memory_peak_mib
    return peak_mib is None or group.usable_mib is None or peak_mib <= group.usable_mib


def fitting_groups(needs: Needs, node: NodeFacts, facts: CycleFacts) -> dict[str, list[GpuGroup]]:
    """Return per model the groups that fit, for models of which the node has enough GPUs at all."""
    by_model: dict[str, list[GpuGroup]] = {}
    for group in node.groups:
        if fits_alone(needs, group, facts):
            by_model.setdefault(group.model, []).append(group)
    return {
        model: groups
        for model, groups in by_model.items()
        if sum(group.total for group in groups) >= needs.gpus
    }


def node_trouble(needs: Needs, node: NodeFacts, fitting: dict[str, list[GpuGroup]]) -> list[Obstacle]:
    """Require a node that is up, takes new work, and has enough sound GPUs that nobody else uses."""
    if not node.available:
        return [Obstacle(Reason.NO_WORKER, 0, node.name, {"pool": "unknown"})]
    if node.draining:
        return [Obstacle(Reason.DRAINING, 0, node.name, {"nodes": node.name})]
    if any(sum(group.sound for group in groups) >= needs.gpus for groups in fitting.values()):
        return []
    found = []
    for group in (group for groups in fitting.values() for group in groups):
        if group.unhealthy:
            names = ", ".join(group.unhealthy)
            found.append(Obstacle(Reason.GPU_UNHEALTHY, len(group.unhealthy), node.name, {"gpus": names}))
        if group.foreign_mib:
            numbers: dict[str, object] = {"foreign_mib": group.foreign_mib}
            found.append(Obstacle(Reason.FOREIGN_USE, group.foreign_mib, node.name, numbers))
    return found


def host_memory(needs: Needs, node: NodeFacts) -> Obstacle | None:
    """Require the host memory that the job asks for; unknown memory proves nothing (C16)."""
    wanted_mib, free_mib = needs.host_memory_mib, node.host_free_mib
    if wanted_mib is None or (free_mib is not None and free_mib >= wanted_mib):
        return None
    distance = math.inf if free_mib is None else wanted_mib - free_mib
    shown = None if free_mib is None else max(0, free_mib)
    return Obstacle(Reason.HOST_MEMORY, distance, node.name, {"wanted_mib": wanted_mib, "free_mib": shown})


def nodes_that_could_serve(request: GpuRequest, snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the nodes that would take such a job, were all their GPUs free."""
    facts = CycleFacts(snapshot)
    needs = Needs.of(request)
    return frozenset(
        name for name, state in snapshot.nodes.items() if could_serve(needs, facts.of_node(state), facts)
    )


def could_serve(needs: Needs, node: NodeFacts, facts: CycleFacts) -> bool:
    """Tell whether the node would take such a job, were all its GPUs free."""
    fitting = fitting_groups(needs, node, facts)
    return bool(fitting) and not node_trouble(needs, node, fitting)


def cluster(needs: Needs, snapshot: ClusterSnapshot, fits: bool, facts: CycleFacts) -> Finding | None:
    """Require a node that is there, and one that could ever take the job.

    :param fits: whether some node has enough GPUs that fit, whatever its present state.
    """
    if not any(state.node.available for state in snapshot.nodes.values()):
        return Finding(Reason.NO_WORKER, {"pool": snapshot.pool.settings.name})
    if fits:
        return None
    return _no_such_gpu(needs, (facts.of_node(state) for state in snapshot.nodes.values()), facts)


def _no_such_gpu(needs: Needs, nodes: Iterable[NodeFacts], facts: CycleFacts) -> Finding:
    """Name what was asked and the largest that exists, once no node fits (C09)."""
    wanted = [f"{needs.gpus} GPUs on one node"]
    if needs.gpu_models:
        wanted.append(f"of {' or '.join(needs.gpu_models)}")
    if needs.gpu_memory_mib is not None:
        wanted.append(f"with {needs.gpu_memory_mib} MiB each")
    margin_mib = facts.settings.memory_margin_mib
    offers = [(group.total, group.model, group.usable_mib) for node in nodes for group in node.groups]
    total, model, usable_mib = max(
        offers, key=lambda offer: (offer[2] or 0, offer[0], offer[1]), default=(0, "none", None)
    )
    after_margin = None if usable_mib is None else usable_mib - margin_mib
    largest = f"{total} x {model} with {format_memory_mib(after_margin)} each (after reserve and margin)"
    return Finding(Reason.NO_SUCH_GPU, {"wanted": " ".join(wanted), "largest": largest})


# --- one held set ------------------------------------------------------------------------------------------


def resident_limit(held: SetFacts, settings: PoolSettings) -> Obstacle | None:
    """Require room for one more resident."""
    if len(held.job_ids) < settings.max_residents:
        return None
    return Obstacle(Reason.RESIDENT_LIMIT, 0, held.placement.node, {"limit": settings.max_residents})


def memory(needs: Needs, held: SetFacts, solo: SoloProfile | None, settings: PoolSettings) -> Obstacle | None:
    """Require that all whole-run peaks and the margin fit together; an unknown one fits nowhere (C35)."""
    peak_mib = memory_peak_mib(needs.gpu_memory_mib, solo)
    usable_mib, reserved_mib = held.usable_mib, held.reserved_mib
    needed_mib = None if peak_mib is None else peak_mib + settings.memory_margin_mib
    free_mib = None if usable_mib is None or reserved_mib is None else usable_mib - reserved_mib
    if needed_mib is not None and free_mib is not None and needed_mib <= free_mib:
        return None
    distance = math.inf if needed_mib is None or free_mib is None else needed_mib - free_mib
    shown = None if free_mib is None else max(0, free_mib)
    numbers: dict[str, object] = {"needed_mib": needed_mib, "free_mib": shown, "usable_mib": usable_mib}
    return Obstacle(Reason.MEMORY_WOULD_OVERFLOW, distance, held.placement.node, numbers)


def profile_missing(needs: Needs, held: SetFacts, facts: CycleFacts) -> Obstacle:
    """Name who has no profile; when all have one, the set that was never measured and may not be tried."""
    members = family_set((*held.families, needs.family))
    unknown = [
        family
        for family in dict.fromkeys(members)
        if facts.predict(family_set((family,)), held.model, needs.gpus) is None
    ]
    shown = ", ".join(unknown) if unknown else f"the set {' + '.join(members)}"
    numbers: dict[str, object] = {"family": shown, "gpu_model": held.model}
    return Obstacle(Reason.PROFILE_MISSING, len(unknown), held.placement.node, numbers)


def utilisation(
    needs: Needs, held: SetFacts, prediction: SetPrediction, settings: PoolSettings
) -> Obstacle | None:
    """Require that the set keeps the pool's ``utilisation_limit_pct``; unknown is too much."""
    busy_pct = prediction.utilisation_pct
    if busy_pct is not None and busy_pct <= settings.utilisation_limit_pct:
        return None
    numbers = interference_numbers(prediction.slowdowns[needs.family], None, busy_pct, settings)
    distance = math.inf if busy_pct is None else 1000 + busy_pct
    return Obstacle(Reason.INTERFERENCE_TOO_HIGH, distance, held.placement.node, numbers)


def interference_numbers(
    predicted: float, limit: float | None, utilisation_pct: float | None, settings: PoolSettings
) -> dict[str, object]:
    """Return the numbers of ``interference_too_high``, JSON values only."""
    shown = "none" if limit is None or math.isinf(limit) else f"{limit:.3f}"
    return {
        "predicted": predicted,
        "limit": shown,
        "utilisation_pct": utilisation_pct,
        "utilisation_limit_pct": settings.utilisation_limit_pct,
    }


def resident_limits(held: SetFacts, prediction: SetPrediction) -> Obstacle | None:
    """Require that every resident keeps its limits; one of which that cannot be told is not risked."""
    for tolerance in held.tolerances:
        predicted = prediction.slowdowns[tolerance.family]
        bears = tolerance.slowdown
        if bears is not None and prediction.undone:
            bears = min(bears, tolerance.plain)
        if bears is None or predicted > bears:
            numbers: dict[str, object] = {"who": tolerance.who, "predicted": predicted, "limit": bears}
            distance = math.inf if bears is None else predicted - bears
            return Obstacle(Reason.RESIDENT_DEADLINE_AT_RISK, distance, held.placement.node, numbers)
    return None


def energy_gain(
    needs: Needs, held: SetFacts, solo: SoloProfile, prediction: SetPrediction, facts: CycleFacts
) -> Obstacle | None:
    """Require fewer joules than running alone; joules that are not known are not a gain."""
    before = facts.predict(held.families, held.model, needs.gpus)
    energy = None if before is None else join_energy(solo, held.families, before, prediction)
    if energy is not None and energy.saves:
        return None
    shared_j, alone_j = (None, None) if energy is None else (energy.shared_j, energy.alone_j)
    distance = math.inf if energy is None else energy.shared_j / energy.alone_j
    numbers: dict[str, object] = {"shared_j": shared_j, "alone_j": alone_j}
    return Obstacle(Reason.NO_ENERGY_GAIN, distance, held.placement.node, numbers)


# --- the newcomer's own limits -----------------------------------------------------------------------------


def own_tolerance(
    kind: JobKind, gpu_model: str, time_scale: float, undone: bool, facts: CycleFacts
) -> float | None:
    """Return the largest slowdown that the newcomer bears there, ``None`` when it cannot be told.

    A set that was undone before gets no credit for what the run has saved elsewhere: it is not tried again
    under the same limit (C59).
    """
    progress, request = kind.progress, kind.request
    solo = facts.book.fresh_solo_of(request.family, gpu_model, request.gpus)
    unit_s = progress.solo_unit_s if solo is None or solo.unit_s is None else solo.unit_s
    stretch = slowdown_within_stretch(progress, units_total_of(progress, solo), unit_s, request.max_stretch)
    left_s = remaining_solo_s(progress, solo)
    until = slowdown_within_deadline(left_s, kind.deadline_at_s, facts.now_s, time_scale)
    if until is None:
        return None
    plain = request.max_stretch if undone and request.max_stretch is not None else math.inf
    return min(stretch, until, plain)


def deadline(kind: JobKind, scopes: Iterable[tuple[str, float]], facts: CycleFacts) -> Finding | None:
    """Require a GPU model on which it ends by its deadline alone; told only where a profile knows the time.

    A run that has already done units is never given up: its work would be lost.

    :param scopes: the models that fit, each with the time scale of its node.
    """
    if kind.deadline_at_s is None or kind.progress.units_done > 0:
        return None
    late_s = []
    for model, time_scale in scopes:
        solo = facts.book.fresh_solo_of(kind.request.family, model, kind.request.gpus)
        left_s = remaining_solo_s(kind.progress, solo)
        if left_s is None:
            return None
        late_s.append(facts.now_s + left_s / time_scale - kind.deadline_at_s)
    if not late_s or min(late_s) <= 0:
        return None
    return Finding(Reason.DEADLINE_UNREACHABLE, {"late_s": min(late_s)})


def insists(request: GpuRequest) -> bool:
    """Tell whether the author wants sharing even unmeasured and without a predicted gain."""
    return request.share is Share.ALWAYS
