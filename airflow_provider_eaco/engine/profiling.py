"""What runs and trials teach: complete runs become solo profiles, trials become co-allocation profiles.

Only what was measured is stored, under exactly the GPU model and count it was measured on.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    ProfileBook,
    ProfileKey,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.core.model.snapshot import GpuSet, Resident
from airflow_provider_eaco.core.ports import JobRecord, ProfileStore, RunMeter
from airflow_provider_eaco.engine.running_mean import RunningMean


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job as it was when it ended, on which GPUs, and how: only ``FINISHED`` is a complete run."""

    job: Job
    phase: JobPhase
    gpu_model: str
    gpu_count: int
    meter: RunMeter | None = None


def ended_run(
    record: JobRecord, lease: Lease, nodes: Sequence[Node], phase: JobPhase, meter: RunMeter | None = None
) -> EndedRun | None:
    """Return the run of ``record`` that held ``lease`` and ended in ``phase``.

    ``None`` if its GPUs are not in the inventory or are of more than one model: then it has no profile key.
    """
    held = set(lease.placement.gpu_uuids)
    models = [gpu.model for node in nodes for gpu in node.gpus if gpu.uuid in held]
    if len(models) != len(held) or len(set(models)) != 1:
        return None
    return EndedRun(record.job, phase, models[0], len(models), meter)


def learn_run(profiles: ProfileStore, run: EndedRun, now_s: float) -> SoloProfile | None:
    """Take a complete run into its family's profile; return the profile, or ``None`` if it taught nothing.

    A failed, killed or yielded run teaches nothing (C62). Unit times count only as far as the job ran alone;
    a run that never did leaves them with their source, age and samples. The memory peak is that of the
    hungriest complete run and never falls (C37).
    """
    progress = run.job.progress
    meter = run.meter or RunMeter()
    if run.phase is not JobPhase.FINISHED or not (progress.solo_units or meter != RunMeter()):
        return None
    family = run.job.request.family
    known = profiles.book().solo_of(family, run.gpu_model, run.gpu_count)
    before = known or SoloProfile(family, run.gpu_model, run.gpu_count)
    learned = with_meter(before, meter)
    own = RunningMean(progress.solo_units, progress.solo_unit_s, progress.solo_spread_s)
    if own.mean is not None and own.mean > 0:
        units = _measured_units(known).merged(own)
        learned = replace(learned, unit_s=units.mean, spread_s=units.spread, samples=units.samples)
        learned = replace(learned, source=ProfileSource.MEASURED, updated_s=now_s)
    elif known is None:
        learned = replace(learned, updated_s=now_s)
    complete = progress.units_total is not None and progress.units_done >= progress.units_total
    learned = replace(
        learned,
        units_total=progress.units_total if complete else before.units_total,
        checkpoints=progress.can_yield,
        stale=False,
    )
    profiles.save_solo(learned)
    return learned


def learn_memory(
    profiles: ProfileStore, key: ProfileKey, needed_mib: int, now_s: float
) -> SoloProfile | None:
    """Raise a family's memory peak to what a run was seen to need, whatever became of it; return the profile,
    or ``None`` if that much was known. Nothing else of a run that failed is believed (C62).

    :param key: of the family alone.
    """
    (family,) = key.families
    known = profiles.book().solo_of(family, key.gpu_model, key.gpu_count)
    if known is not None and (known.memory_peak_mib or 0) >= needed_mib:
        return None
    before = known or SoloProfile(family, key.gpu_model, key.gpu_count, source=ProfileSource.MEASURED)
    learned = replace(before, memory_peak_mib=needed_mib, updated_s=now_s)
    profiles.save_solo(learned)
    return learned


def learn_set(
    profiles: ProfileStore, held: GpuSet, now_s: float, *, undone: bool
) -> CoallocationProfile | None:
    """Take what the members of a set have reported together into its profile; return it, or ``None``.

    The slowdown of a family is its mean unit time under the present set / its unit time alone, this run's own
    where it has run alone, else its profile's. An undone set is remembered at no less than what undid it,
    however well it did before, so that it is not tried again at once (C59). Without a unit of every member
    and a reference for each, or under a power limit, nothing is measured; ``undone`` still counts where the
    set has a profile.
    """
    models = {gpu.model for gpu in held.gpus}
    if len(held.residents) < 2 or len(models) != 1:
        return None
    book = profiles.book()
    model, count = models.pop(), len(held.gpus)
    known = book.coallocation_of(family_set(held.families), model, count)
    seen = _observed(held, book)
    if seen is None:
        return _count_undone(profiles, known, now_s) if undone else None
    measured, spread = seen
    learned = known or CoallocationProfile(family_set(held.families), model, count, measured)
    slowdowns = measured
    if known is not None and known.source is ProfileSource.MEASURED:
        slowdowns = _weighted(known.slowdowns, known.samples, measured, spread.samples)
        spread = RunningMean(known.samples, _mean(known.slowdowns), known.spread).merged(spread)
    if undone:
        slowdowns = {family: max(slowdowns[family], measured[family]) for family in measured}
    learned = replace(
        learned,
        slowdowns=slowdowns,
        samples=spread.samples,
        spread=spread.spread,
        undone=learned.undone + undone,
        source=ProfileSource.MEASURED,
        updated_s=now_s,
        stale=False,
    )
    profiles.save_coallocation(learned)
    return learned


def _measured_units(known: SoloProfile | None) -> RunningMean:
    """Return the samples that were measured here; numbers of another source are replaced, not averaged."""
    if known is None or known.source is not ProfileSource.MEASURED:
        return RunningMean()
    return RunningMean(known.samples, known.unit_s, known.spread_s)


def with_meter(profile: SoloProfile, meter: RunMeter) -> SoloProfile:
    """Return the profile with what the meter has seen; what that does not know stays, no peak ever falls."""
    peaks = [peak for peak in (profile.memory_peak_mib, meter.memory_peak_mib) if peak]
    learned = replace(profile, memory_peak_mib=max(peaks, default=None))
    for name in ("utilisation_pct", "utilisation_max_pct", "memory_utilisation_pct"):
        value = getattr(meter, name)
        if value is not None:
            learned = replace(learned, **{name: value})
    if meter.power_w is not None and meter.power_w > 0:
        learned = replace(learned, power_w=meter.power_w, scope=meter.scope)
    return learned


def _observed(held: GpuSet, book: ProfileBook) -> tuple[dict[str, float], RunningMean] | None:
    """Return the slowdown of each family under the present set, and mean, spread and units over all.

    The samples are those of the member with the fewest units.
    """
    by_family: dict[str, list[float]] = defaultdict(list)
    spreads: list[float] = []
    units: list[int] = []
    for resident in held.residents:
        solo_s, seen = _solo_unit_s(resident, held, book), resident.observation
        if solo_s is None or seen is None or seen.set_version != resident.set_version or not seen.unit_s:
            return None
        if seen.limited:
            return None
        by_family[resident.job.request.family].append(seen.unit_s / solo_s)
        units.append(seen.units)
        if seen.spread_s is not None:
            spreads.append(seen.spread_s / solo_s)
    slowdowns = {family: math.fsum(values) / len(values) for family, values in by_family.items()}
    spread = math.fsum(spreads) / len(spreads) if len(spreads) == len(units) else None
    samples = min(units)
    return slowdowns, RunningMean(samples, _mean(slowdowns), spread if samples > 1 else None)


def _solo_unit_s(resident: Resident, held: GpuSet, book: ProfileBook) -> float | None:
    own = resident.job.progress.solo_unit_s
    if own:
        return own
    profile = book.solo_of(resident.job.request.family, held.gpus[0].model, len(held.gpus))
    return None if profile is None else profile.unit_s


def _count_undone(
    profiles: ProfileStore, known: CoallocationProfile | None, now_s: float
) -> CoallocationProfile | None:
    if known is None:
        return None
    counted = replace(known, undone=known.undone + 1, updated_s=now_s)
    profiles.save_coallocation(counted)
    return counted


def _weighted(
    known: Mapping[str, float], known_samples: int, measured: Mapping[str, float], samples: int
) -> dict[str, float]:
    total = known_samples + samples
    return {
        family: (known[family] * known_samples + slowdown * samples) / total
        for family, slowdown in measured.items()
    }


def _mean(slowdowns: Mapping[str, float]) -> float:
    return math.fsum(slowdowns.values()) / len(slowdowns)
