"""Members of sets as the policy ``frontier`` weighs them: what is left of each, and what it still bears."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.energy.outlook import units_total_of
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.prices import ClassKey
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import GpuSet, Resident

# What a job needs to be under way again after a move, in seconds without progress. An assumption.
RESTART_S = 30.0
# A run of which nobody knows how long it will be is weighed as if this much were left.
UNKNOWN_LEFT_S = 4 * 3600.0
# By how much a set that nobody has reported of may have slowed its members down.
_CAREFUL = 1.25
# Nobody is about to end before the end was seen.
_LEAST_LEFT_S = 1.0
# Who outlasts what it told is taken to need this part of what it has done once more.
_OUTLASTS = 0.25


@dataclass(frozen=True, slots=True)
class Member:
    """One job in a set, now.

    ``work_s``: exclusive time of the whole run, ``left_s`` of its rest, ``spent_s`` time since it first
    started, all in device seconds; ``work_s`` is ``None`` where the total is not known. ``bears`` is the
    largest slowdown of the rest under which its own limits hold, however long that will be; ``slowdown`` is
    that of its present set.
    ``own`` is false for jobs of other GPU pools on nodes that pools share. It reported last ``quiet_s`` ago
    (infinite: nobody knows when), and ``fresh_s`` of its work are taken to be done since then.
    """

    job_id: str
    key: ClassKey
    work_s: float | None
    left_s: float
    spent_s: float
    bears: float
    movable: bool
    slowdown: float = 1.0
    own: bool = True
    quiet_s: float = 0.0
    fresh_s: float = 0.0

    @property
    def done_s(self) -> float:
        return 0.0 if self.work_s is None else self.work_s - self.left_s

    def done_if_ended_s(self, after_s: float) -> float:
        """Return the work of a run that has ended within these device seconds.

        It is what was told, unless there was no time to do all of that since the last report.
        """
        if self.work_s is None:
            return 0.0
        quiet_s, unseen_s = self.quiet_s + after_s, self.left_s + self.fresh_s
        return self.work_s - unseen_s + (unseen_s if quiet_s >= unseen_s else quiet_s / self.slowdown)


def class_of(job: Job, gpu_model: str) -> ClassKey:
    """Return the class that prices know the job by."""
    request = job.request
    return ClassKey(request.family, gpu_model, request.gpus, request.max_stretch)


@dataclass(frozen=True, slots=True)
class Moment:
    """The instant, what is believed then, and how many device seconds pass in one wall second."""

    now_s: float
    book: ProfileBook
    time_scale: float = 1.0


def newcomer(job: Job, gpu_model: str, moment: Moment) -> Member:
    """Return the waiting job as a member of a set that it would be in from now on."""
    progress = job.progress
    spent_s = 0.0
    if progress.units_done:
        spent_s = progress.run_s + (progress.lost_s or 0.0) + RESTART_S
        if progress.reported_s is not None:
            spent_s += (moment.now_s - progress.reported_s) * moment.time_scale
    return _member(job, class_of(job, gpu_model), moment, spent_s=spent_s)


def resident_member(
    resident: Resident, held: GpuSet, slowdown: float, moment: Moment, *, own: bool, slowest: float = 0.0
) -> Member:
    """Return the resident as it stands now, with its progress since the last report as predicted.

    :param slowdown: its own in the present set.
    :param own: whether it is a job of the pool that is planned.
    :param slowest: the largest that it may have had in the present set since the last report, if that is
        more: its own limits hold with that.
    """
    job, progress = resident.job, resident.job.progress
    quiet_s, since_told_s, fresh_s, sure_s = math.inf, 0.0, 0.0, 0.0
    # Units of which nobody knows when they were reported count as they were told, and nothing since.
    if not progress.units_done or progress.reported_s is not None:
        began_s = resident.granted_s
        since_s = began_s if progress.reported_s is None else progress.reported_s
        moved = progress.units_done > 0 and began_s >= since_s
        restart_s = RESTART_S if moved else 0.0
        before_s, after_s = _spans_s(resident, max(began_s, since_s) + restart_s / moment.time_scale, moment)
        fresh_s, sure_s = (
            (before_s / _slowdown_before(resident, held, slow, moment) + after_s / slow) * moment.time_scale
            for slow in (slowdown, max(slowdown, slowest))
        )
        quiet_s = since_told_s = max((moment.now_s - since_s) * moment.time_scale, restart_s)
    key = class_of(job, held.gpus[0].model)
    spent_s = progress.run_s + (progress.lost_s or 0.0) + since_told_s
    member = _member(job, key, moment, spent_s=spent_s, fresh_s=fresh_s, sure_s=sure_s)
    return replace(member, slowdown=slowdown, own=own, quiet_s=quiet_s, fresh_s=fresh_s)


def _spans_s(resident: Resident, from_s: float, moment: Moment) -> tuple[float, float]:
    """Return the seconds since ``from_s`` before the set's last change, and since then."""
    whole_s = max(0.0, moment.now_s - from_s)
    seen = resident.observation
    if seen is not None and seen.set_version == resident.set_version:
        return 0.0, whole_s
    changed_s = resident.trial_since_s
    # Who is alone again does not know since when.
    after_s = 0.0 if changed_s is None else min(whole_s, max(0.0, moment.now_s - changed_s))
    return whole_s - after_s, after_s


def _slowdown_before(resident: Resident, held: GpuSet, slowdown: float, moment: Moment) -> float:
    """Return the slowdown before the set's last change: as it was reported last, else a careful one."""
    seen, request = resident.observation, resident.job.request
    solo = moment.book.fresh_solo_of(request.family, held.gpus[0].model, request.gpus)
    if seen is None or seen.unit_s is None or solo is None or solo.unit_s is None:
        return max(slowdown, _CAREFUL)
    return max(slowdown, seen.unit_s / solo.unit_s)


def _member(
    job: Job, key: ClassKey, moment: Moment, *, spent_s: float, fresh_s: float = 0.0, sure_s: float = 0.0
) -> Member:
    """Return the member; ``fresh_s`` of its work was done since its last report, ``sure_s`` at the least."""
    progress, limit = job.progress, job.request.max_stretch
    solo = moment.book.fresh_solo_of(key.family, key.gpu_model, key.gpus)
    unit_s = solo.unit_s if progress.solo_unit_s is None and solo is not None else progress.solo_unit_s
    total = units_total_of(progress, solo)
    if unit_s is None or not total:
        bears = math.inf if limit is None else limit
        if job.deadline_at_s is not None:
            bears = 0.0
        return Member(job.job_id, key, None, UNKNOWN_LEFT_S, spent_s, bears, progress.can_yield)
    if progress.units_done > total:
        total = math.ceil((1 + _OUTLASTS) * progress.units_done)
    work_s, told_left_s = total * unit_s, (total - progress.units_done) * unit_s
    left_s, most_s = (max(_LEAST_LEFT_S, told_left_s - done_s) for done_s in (fresh_s, sure_s))
    # What was spared so far is no reason to be slower than the limit: the rest may be longer than was told.
    bears = math.inf if limit is None else min(limit, (limit * work_s - spent_s) / most_s)
    if job.deadline_at_s is not None:
        bears = min(bears, (job.deadline_at_s - moment.now_s) * moment.time_scale / most_s)
    return Member(job.job_id, key, work_s, left_s, spent_s, bears, progress.can_yield)


def slowdown_of(prediction: SetPrediction | None, family: str) -> float:
    """Return the family's slowdown in a set, 1 where nothing is predicted."""
    return 1.0 if prediction is None else max(1.0, prediction.slowdowns.get(family, 1.0))
