"""The first epoch of a co-allocation: confirm it, undo it, or go on watching.

Confirmed sets are reviewed in the same way, with what their members have reported since.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_eaco.core.energy.outlook import (
    predicted_stretch,
    remaining_solo_s,
    slowdown_within_deadline,
    units_total_of,
)
from airflow_provider_eaco.core.model.instruction import Confirm, Unconfirmed, Yield
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.base import Review

# Two sums of the same measured times may differ in the last digits; a limit is not broken by that.
_ROUNDING = 1e-9


def review_set(held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
    """Return what a set of residents needs now, as in the paper's early-stage observation.

    A trial ends when every member has one complete unit under the set's version: confirmed if all limits
    hold for the whole runs, else the newest member that can is asked to yield; with nobody who can, the set
    stays and is closed to newcomers. Without that evidence it ends unconfirmed after the pool's
    ``trial_limit_s``. A confirmed set is judged by what its members have reported so far.
    """
    states = [resident.state for resident in held.residents]
    if len(held.residents) < 2 or LeaseState.YIELDING in states:
        return None
    version = held.residents[0].set_version
    in_trial = states.count(LeaseState.CONFIRMED) < len(states)
    closed = LeaseState.UNCONFIRMED in states
    # Most reports of trials come while somebody is still at its first unit.
    complete = not in_trial or all(map(_has_unit, held.residents))
    reported = _reported(held, snapshot) if complete else []

    if in_trial and len(reported) < len(held.residents):
        over = snapshot.now_s - trial_since_s(held) >= snapshot.pool.settings.trial_limit_s
        return Unconfirmed(held.placement, version) if over and not closed else None
    broken = _first_broken_limit(reported, held, snapshot)
    if broken is None:
        return Confirm(held.placement, version) if in_trial else None
    leaver = newest_that_can_yield(held)
    if leaver is not None:
        return Yield(leaver.job.job_id, held.placement, version, broken)
    return None if closed else Unconfirmed(held.placement, version)


def trial_since_s(held: GpuSet) -> float:
    """Return the instant of the set's last change of members."""
    return max(
        [
            resident.granted_s if resident.trial_since_s is None else resident.trial_since_s
            for resident in held.residents
        ]
    )


def observed_slowdown(resident: Resident, held: GpuSet, snapshot: ClusterSnapshot) -> float | None:
    """Return the measured unit time under the present set / the unit time alone, ``None`` without evidence.

    Only units that began and ended under the present set's version count. The time alone is this run's own
    where it has run alone, else its family's.
    """
    seen = resident.observation
    if seen is None or seen.unit_s is None or not _has_unit(resident):
        return None
    solo_s = resident_unit_s(resident, resident_profile(resident, held, snapshot.profiles))
    return None if solo_s is None else seen.unit_s / solo_s


def _has_unit(resident: Resident) -> bool:
    """Tell whether it has a complete unit under the present set's version."""
    seen = resident.observation
    return (
        seen is not None
        and seen.set_version == resident.set_version
        and seen.units > 0
        and seen.unit_s is not None
    )


def _reported(held: GpuSet, snapshot: ClusterSnapshot) -> list[tuple[Resident, float]]:
    """Return who gives evidence, with the slowdown that it has seen."""
    slowdowns = [(resident, observed_slowdown(resident, held, snapshot)) for resident in held.residents]
    return [(resident, slowdown) for resident, slowdown in slowdowns if slowdown is not None]


def resident_profile(resident: Resident, held: GpuSet, book: ProfileBook) -> SoloProfile | None:
    """Return what is freshly believed about the resident's family on exactly these GPUs."""
    return book.fresh_solo_of(resident.job.request.family, held.gpus[0].model, len(held.gpus))


def resident_unit_s(resident: Resident, solo: SoloProfile | None) -> float | None:
    """Return the unit time alone of this very run where it was seen, else its family's."""
    measured = resident.job.progress.solo_unit_s
    if measured is not None:
        return measured
    return None if solo is None else solo.unit_s


def newest_that_can_yield(held: GpuSet) -> Resident | None:
    """Return the member that came last among those with a checkpoint."""
    able = [resident for resident in held.residents if resident.job.progress.can_yield]
    return max(able, key=lambda r: (r.granted_s, r.token, r.job.job_id), default=None)


def _first_broken_limit(
    reported: Iterable[tuple[Resident, float]], held: GpuSet, snapshot: ClusterSnapshot
) -> str | None:
    for resident, slowdown in sorted(reported, key=lambda pair: (pair[0].granted_s, pair[0].job.job_id)):
        why = _broken_limit(resident, slowdown, held, snapshot)
        if why is not None:
            return why
    return None


def _broken_limit(resident: Resident, slowdown: float, held: GpuSet, snapshot: ClusterSnapshot) -> str | None:
    job = resident.job
    limit = job.request.max_stretch
    if limit is None and job.request.deadline_s is None:
        return None
    solo = resident_profile(resident, held, snapshot.profiles)
    stretch = predicted_stretch(
        job.progress, units_total_of(job.progress, solo), resident_unit_s(resident, solo), slowdown
    )
    if limit is not None and stretch > limit * (1 + _ROUNDING):
        return (
            f"{job.label} runs at {slowdown:.3f} times its unit time alone;"
            f" its whole run would stretch to {stretch:.3f}, its limit is {limit:.3f}"
        )
    node = snapshot.nodes[held.placement.node].node
    bearable = slowdown_within_deadline(
        remaining_solo_s(job.progress, solo), job.deadline_at_s, snapshot.now_s, node.time_scale
    )
    if bearable is not None and slowdown > bearable * (1 + _ROUNDING):
        return (
            f"{job.label} runs at {slowdown:.3f} times its unit time alone;"
            f" its deadline allows {bearable:.3f} from now on"
        )
    return None
