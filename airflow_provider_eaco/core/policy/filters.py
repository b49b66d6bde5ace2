"""Filters: each looks at one thing, and names its reason with the numbers of the case.

First what keeps a kind of job from every GPU, then what keeps it from one node, then from one held set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.energy.objective import join_energy
from airflow_provider_eaco.core.energy.outlook import (
    remaining_solo_s,
    slowdown_within_deadline,
    slowdown_within_stretch,
    units_total_of,
)
from airflow_provider_eaco.core.model.decision import Finding, Reason, SetPrediction
from airflow_provider_eaco.core.model.gpu import GpuGroup, Hardware
from airflow_provider_eaco.core.model.job import GpuRequest, JobKind
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import FamilySet, SoloProfile, family_set
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, PoolState
from airflow_provider_eaco.core.model.units import format_memory_mib
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetFacts, SetKind


@quick_init
@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason at one place. Of several with one reason, the least ``distance`` is nearest to fitting."""

    reason: Reason
    distance: float
    where: tuple[str, ...]
    numbers: dict[str, object] = field(compare=False)

    @property
    def finding(self) -> Finding:
        return Finding(self.reason, self.numbers)

    def nearness(self) -> tuple[float, tuple[str, ...]]:
        """Return what ranks obstacles with one reason, the nearest to fitting first."""
        return self.distance, self.where


def nearest(obstacles: Iterable[Obstacle]) -> dict[Reason, Obstacle]:
    """Return for each reason the obstacle that is nearest to fitting; names decide between equals."""
    best: dict[Reason, Obstacle] = {}
    for obstacle in obstacles:
        present = best.get(obstacle.reason)
        if present is None or obstacle.nearness() < present.nearness():
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
    """What a job needs of a node, whatever its limits.

    ``sized_by`` is the family whose measured peak stands in for the memory that was not asked for.
    """

    gpus: int
    gpu_memory_mib: int | None
    gpu_models: tuple[str, ...]
    host_memory_mib: int | None
    sized_by: str | None

    @classmethod
    def of(cls, request: GpuRequest) -> Needs:
        sized_by = request.family if request.gpu_memory_mib is None else None
        return cls(
            request.gpus, request.gpu_memory_mib, request.gpu_models, request.host_memory_mib, sized_by
        )


def fits_alone(needs: Needs, group: GpuGroup, facts: CycleFacts) -> bool:
    """Tell whether the model is acceptable, and the job alone fits the memory of one such GPU.

    A job of several GPUs does not fit partitions: CUDA shows a process only one of them.

    What was asked has to be there with the margin; unknown memory proves nothing (C47). A peak that was
    measured alone on this model needs no margin: it has been seen to fit.
    """
    if needs.gpu_models and group.model not in needs.gpu_models:
        return False
    if group.are_partitions and needs.gpus > 1:
        return False
    if needs.gpu_memory_mib is not None:
        asked_mib = needs.gpu_memory_mib + facts.settings.memory_margin_mib
        return group.usable_mib is not None and asked_mib <= group.usable_mib
    solo = None if needs.sized_by is None else facts.book.solo_of(needs.sized_by, group.model, needs.gpus)
    peak_mib = None if solo is None else solo.memory_peak_mib
    return peak_mib is None or group.usable_mib is None or peak_mib <= group.usable_mib


def fitting_groups(needs: Needs, built: Hardware, facts: CycleFacts) -> dict[str, list[GpuGroup]]:
    """Return per model the groups that fit, for models of which the node has enough GPUs at all."""
    by_model: dict[str, list[GpuGroup]] = {}
    for group in built.groups:
        if fits_alone(needs, group, facts):
            by_model.setdefault(group.model, []).append(group)
    return {
        model: groups
        for model, groups in by_model.items()
        if sum(group.total for group in groups) >= needs.gpus
    }


def node_trouble(
    needs: Needs, name: str, built: Hardware, fitting: Mapping[str, Sequence[GpuGroup]]
) -> list[Obstacle]:
    """Require a node that is up, takes new work, and has enough sound GPUs that nobody else uses."""
    if not built.available:
        return [Obstacle(Reason.NO_WORKER, 0, (name,), {})]
    if built.draining:
        return [Obstacle(Reason.DRAINING, 0, (name,), {"nodes": name})]
    if any(sum(group.sound for group in groups) >= needs.gpus for groups in fitting.values()):
        return []
    found = []
    for group in (group for groups in fitting.values() for group in groups):
        if group.unhealthy:
            names = ", ".join(group.unhealthy)
            found.append(Obstacle(Reason.GPU_UNHEALTHY, len(group.unhealthy), (name,), {"gpus": names}))
        if group.foreign:
            found.append(_foreign_use(group, name))
    return found


def _foreign_use(group: GpuGroup, name: str) -> Obstacle:
    told: dict[str, object] = {
        "foreign_mib": group.foreign_mib or None,
        "node": name,
        "who": group.foreign_who,
    }
    return Obstacle(Reason.FOREIGN_USE, group.foreign_mib, (name,), told)


def nodes_that_could_serve(needs: Needs, facts: CycleFacts) -> frozenset[str]:
    """Return the nodes that would take such a job, were all their GPUs free."""
    able: frozenset[str] = frozenset()
    for built, names in facts.alike().items():
        fitting = fitting_groups(needs, built, facts)
        if fitting and not node_trouble(needs, "", built, fitting):
            able |= names
    return able


def host_memory(needs: Needs, name: str, free_mib: int | None) -> Obstacle | None:
    """Require the host memory that the job asks for; unknown memory proves nothing (C16)."""
    wanted_mib = needs.host_memory_mib
    if wanted_mib is None or (free_mib is not None and free_mib >= wanted_mib):
        return None
    distance = math.inf if free_mib is None else wanted_mib - free_mib
    shown = None if free_mib is None else max(0, free_mib)
    return Obstacle(Reason.HOST_MEMORY, distance, (name,), {"wanted_mib": wanted_mib, "free_mib": shown})


def no_worker(snapshot: ClusterSnapshot) -> Finding | None:
    """Require a node of the pool that is there."""
    if any(state.node.available for state in snapshot.nodes.values()):
        return None
    return Finding(Reason.NO_WORKER, {"pool": snapshot.pool.settings.name})


def no_such_gpu(needs: Needs, snapshot: ClusterSnapshot, facts: CycleFacts) -> Finding:
    """Name what was asked and the largest that exists, once it is known that no node could ever fit (C09)."""
    wanted = [f"{needs.gpus} GPUs on one node"]
    if needs.gpu_models:
        wanted.append(f"of {' or '.join(needs.gpu_models)}")
    if needs.gpu_memory_mib is not None:
        wanted.append(f"with {needs.gpu_memory_mib} MiB each")
    groups = [group for state in snapshot.nodes.values() for group in facts.hardware(state.node).groups]
    offers = [(group.usable_mib or 0, group.total, group.model) for group in groups]
    usable_mib, total, model = max(offers, default=(0, 0, "GPU"))
    memory_text = format_memory_mib(max(0, usable_mib - facts.settings.memory_margin_mib) or None)
    largest = f"{total} x {model} with {memory_text} each, less reserve and margin"
    if needs.gpu_memory_mib is not None and any(group.usable_mib is None for group in groups):
        largest += "; memory of unknown size does not count before [eaco] gpu_memory names it"
    return Finding(Reason.NO_SUCH_GPU, {"wanted": " ".join(wanted), "largest": largest})


# --- one held set ------------------------------------------------------------------------------------------


def memory(needed_mib: int | None, held: SetFacts) -> Obstacle | None:
    """Require that all whole-run peaks and the margin fit together; an unknown one fits nowhere (C35).

    :param needed_mib: the newcomer's peak and the margin.
    """
    free_mib = held.free_mib
    if needed_mib is not None and free_mib is not None and needed_mib <= free_mib:
        return None
    distance = math.inf if needed_mib is None or free_mib is None else needed_mib - free_mib
    shown = None if free_mib is None else max(0, free_mib)
    numbers: dict[str, object] = {
        "needed_mib": needed_mib,
        "free_mib": shown,
        "usable_mib": held.usable_mib,
    }
    return Obstacle(Reason.MEMORY_WOULD_OVERFLOW, distance, _where(held), numbers)


def resident_limits(held: SetFacts, prediction: SetPrediction, now_s: float) -> Obstacle | None:
    """Require that every resident keeps its limits; one of which that cannot be told is not risked."""
    for tolerance in held.tolerances:
        predicted = prediction.slowdowns[tolerance.family]
        bears = tolerance.slowdown(now_s, undone=prediction.undone > 0)
        if bears is None or predicted > bears:
            numbers: dict[str, object] = {
                "who": tolerance.who,
                "predicted": predicted,
                "bears": _room(bears, "it bears {:.3f} times"),
            }
            distance = math.inf if bears is None else predicted - bears
            return Obstacle(Reason.RESIDENT_DEADLINE_AT_RISK, distance, _where(held), numbers)
    return None


def _room(bears: float | None, some: str) -> str:
    """Say in words how much slower than alone somebody may run; a late one bears less than nothing."""
    if bears is None:
        return "how much it bears is unknown"
    return "it has no time to spare" if bears < 1 else some.format(bears)


def _where(held: SetFacts) -> tuple[str, ...]:
    return held.placement.node, *held.placement.gpu_uuids


# --- all held sets of one kind -----------------------------------------------------------------------------


def resident_limit(settings: PoolSettings) -> Obstacle:
    """Say of sets with all the residents that they may have that there is no room for one more."""
    return Obstacle(Reason.RESIDENT_LIMIT, 0, (), {"limit": settings.max_residents})


def profile_missing(family: str, kind: SetKind, facts: CycleFacts) -> Obstacle:
    """Name who has no profile; when all have one, the set of which nothing can be predicted."""
    members = family_set((*kind.families, family))
    unknown = [
        member
        for member in dict.fromkeys(members)
        if facts.predict(family_set((member,)), kind.model, kind.gpus) is None
    ]
    if unknown:
        return _unknown(", ".join(unknown), kind, len(unknown), "nobody shares before a first run alone")
    return _unknown(_together(members), kind, 0, "nothing is known of such sets, so nobody joins")


def untried(family: str, kind: SetKind) -> Obstacle:
    """Name the set that was never measured, and may not be tried by somebody who could not leave it again."""
    consequence = f"a trial could not be undone, since {family} is not known to save checkpoints"
    return _unknown(_together(family_set((*kind.families, family))), kind, 0, consequence)


def _unknown(who: str, kind: SetKind, distance: float, consequence: str) -> Obstacle:
    numbers: dict[str, object] = {"family": who, "gpu_model": kind.model, "consequence": consequence}
    return Obstacle(Reason.PROFILE_MISSING, distance, (who, consequence), numbers)


def _together(members: FamilySet) -> str:
    return f"{' + '.join(members)} together"


def utilisation(family: str, kind: SetKind, prediction: SetPrediction, facts: CycleFacts) -> Obstacle | None:
    """Require that what the members ask of the GPUs keeps the pool's ``utilisation_limit_pct``; unknown is
    too much.
    """
    asked_pct = _asked_pct((*kind.families, family), kind, prediction, facts)
    if asked_pct is not None and asked_pct <= facts.settings.utilisation_limit_pct:
        return None
    slowdown = prediction.slowdowns[family]
    limit = f"{facts.settings.utilisation_limit_pct:.0f} % of it"
    return Obstacle(
        Reason.INTERFERENCE_TOO_HIGH,
        math.inf if asked_pct is None else slowdown,
        (kind.model, *kind.families),
        {"predicted": slowdown, "limit": limit, "utilisation_pct": asked_pct},
    )


def _asked_pct(
    members: Sequence[str], kind: SetKind, prediction: SetPrediction, facts: CycleFacts
) -> float | None:
    """Return the utilisation of the set, or the sum of what each member takes alone where that is more.

    A GPU of which more is asked than it has shows no more than 100 %.
    """
    shown_pct = prediction.utilisation_pct
    alone = [facts.predict(family_set((member,)), kind.model, kind.gpus) for member in members]
    alone_pct = [None if each is None else each.utilisation_pct for each in alone]
    known_pct = [pct for pct in alone_pct if pct is not None]
    if shown_pct is None or len(known_pct) < len(members):
        return shown_pct
    return max(shown_pct, math.fsum(known_pct))


def energy_gain(
    kind: SetKind, solo: SoloProfile, prediction: SetPrediction, facts: CycleFacts
) -> Obstacle | None:
    """Require fewer joules than running alone; joules that are not known are not a gain."""
    before = facts.predict(kind.families, kind.model, kind.gpus)
    energy = None if before is None else join_energy(solo, kind.families, before, prediction)
    if energy is not None and energy.saves:
        return None
    where = (kind.model, *kind.families)
    if energy is None:
        return Obstacle(Reason.NO_ENERGY_GAIN, math.inf, where, {"shared_j": None, "alone_j": None})
    numbers: dict[str, object] = {"shared_j": energy.shared_j, "alone_j": energy.alone_j}
    return Obstacle(Reason.NO_ENERGY_GAIN, energy.shared_j / energy.alone_j, where, numbers)


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


def own_limit_broken(predicted: float, bears: float | None, prediction: SetPrediction) -> Finding:
    """Say by how much the gentlest set is beyond the newcomer's own limits, or that this cannot be told."""
    limit = "unknown" if bears is None else _room(bears, "{:.3f} times")
    numbers = {"predicted": predicted, "limit": limit, "utilisation_pct": prediction.utilisation_pct}
    return Finding(Reason.INTERFERENCE_TOO_HIGH, numbers)


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
