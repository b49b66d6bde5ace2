"""Energy rules: what a pool may draw and use in a day, and jobs that wait for cheaper or cleaner energy.

They hold under any ordering and any policy, and what runs is never stopped by them: a job that has done units
(it was asked to move, or its trial was undone) is bound by watts alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_eaco.core.energy.outlook import remaining_solo_s
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, hold
from airflow_provider_eaco.core.model.energy_budget import DAY_S, BudgetAction, EnergyBudget, Shift
from airflow_provider_eaco.core.model.energy_series import EnergySeries
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.pool_draw import Draw, PoolDraw
from airflow_provider_eaco.core.policy.rules import Judge, Rule

JOULES_PER_KWH = 3.6e6
# A node that falls asleep makes room for watts; who plans only when something happens looks so often.
_LOOK_S = 60.0
# So many times its run time alone has to fit before the deadline of a job that is shifted: a part of it may
# go to waiting for GPUs and to sharing them.
_DEADLINE_SHARE = 2.0


class EnergyBudgetRule(Rule):
    """Watts are judged by the placement that the policy chose, kilowatt-hours before it is asked."""

    def __init__(self, settings: PoolSettings, budget: EnergyBudget) -> None:
        super().__init__(settings)
        self._budget = budget
        self._holds = budget.action is BudgetAction.HOLD

    def refusals(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> Mapping[str, Finding]:
        """Return all jobs that have not begun, once the day's energy is used up."""
        spent = self._spent(snapshot) if self._holds else None
        if spent is None:
            return {}
        return {job.job_id: spent for job in jobs if not (job.progress.units_done or job.on_hold)}

    def judge(self, snapshot: ClusterSnapshot, keeping: Keeping) -> Judge | None:
        if self._holds and self._budget.power_w is None:
            return None
        spent = None if self._holds else self._spent(snapshot)
        return _BudgetJudge(self.settings.name, self._budget, snapshot, keeping, spent)

    def look_again_s(self, snapshot: ClusterSnapshot) -> float | None:
        """Return the beginning of the next day where energy is used up; sooner where nodes fall asleep."""
        if not self._holds:
            return None
        used = snapshot.pool.energy_used
        looks = [used.since_s + DAY_S] if used is not None and self._spent(snapshot) is not None else []
        powers = snapshot.pool.node_power.values()
        idle = any(power.power is NodePower.IDLE for power in powers)
        if self._budget.power_w is not None and snapshot.pool.asleep_w is not None and idle:
            looks.append(snapshot.now_s + _LOOK_S)
        return min(looks, default=None)

    def _spent(self, snapshot: ClusterSnapshot) -> Finding | None:
        limit_kwh, used = self._budget.kwh_per_day, snapshot.pool.energy_used
        if limit_kwh is None or used is None or used.energy_j is None:
            return None
        used_kwh = used.energy_j / JOULES_PER_KWH
        if used_kwh < limit_kwh:
            return None
        least = "at least " if used.partial else ""
        case = (
            f"{least}{used_kwh:.1f} of {limit_kwh:.1f} kWh are used since {_shown(used.since_s)}; "
            f"the next day begins at {_shown(used.since_s + DAY_S)}"
        )
        return _finding(self.settings.name, case, {"used_kwh": round(used_kwh, 1), "limit_kwh": limit_kwh})


class _BudgetJudge(Judge):
    """Judges the placements of one cycle, one after the other.

    :param spent: what to note of every admission, since the day's energy is used up and the budget warns.
    """

    def __init__(
        self,
        pool: str,
        budget: EnergyBudget,
        snapshot: ClusterSnapshot,
        keeping: Keeping,
        spent: Finding | None,
    ) -> None:
        self._pool = pool
        self._budget = budget
        self._keeps = keeping is not Keeping.NOTHING and budget.action is BudgetAction.HOLD
        self._spent = spent
        self._draw = PoolDraw(CycleFacts(snapshot), snapshot.pool.asleep_w)
        # The job that waits for watts which later ones must not take.
        self._kept_for: str | None = None

    def judged(self, job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot) -> AdmissionDecision:
        found = [each for each in (self._spent, self._over_power(job, decision, snapshot)) if each]
        if not found:
            return decision
        if self._budget.action is BudgetAction.WARN:
            return replace(decision, notes=(*decision.notes, *found))
        return hold(*found)

    def _over_power(self, job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot) -> Finding | None:
        limit_w, placement = self._budget.power_w, decision.placement
        if limit_w is None or placement is None:
            return None
        present, after = self._draw.of(snapshot), self._draw.with_launch(job, placement, snapshot)
        if after.unknown_sets:
            return self._unknown(present, after, snapshot)
        added_w = after.power_w - present.power_w
        numbers: dict[str, object] = {
            "drawn_w": round(present.power_w),
            "limit_w": limit_w,
            "added_w": round(added_w),
        }
        by = "" if present.by_meter else " by prediction"
        drawn = f"it draws {_kw(present.power_w)} of {_kw(limit_w)}{by}{_without(present)}"
        if after.power_w > limit_w:
            if self._can_ever(job, decision, snapshot, limit_w):
                if self._keeps and self._kept_for is None:
                    self._kept_for = job.job_id
                return _finding(self._pool, f"{drawn}, and the task would add {_kw(added_w)}", numbers)
            return _finding(
                self._pool, f"{_kw(limit_w)} are too little for the task even with nobody else", numbers
            )
        if self._kept_for == job.job_id:
            self._kept_for = None
        if self._kept_for is not None and added_w > 0:
            return _finding(self._pool, f"{drawn}, and an earlier task waits for what is left", numbers)
        return None

    def _unknown(self, present: Draw, after: Draw, snapshot: ClusterSnapshot) -> Finding | None:
        """Let a job of unknown draw start as the only one: its run then tells."""
        if not any(state.sets for state in snapshot.nodes.values()):
            return None
        whose = "a running task" if present.unknown_sets else "the task"
        case = f"nobody can tell what {whose} draws on these GPUs, so that nothing starts beside it"
        return _finding(self._pool, case, {"unknown": after.unknown_sets})

    def _can_ever(
        self, job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot, limit_w: float
    ) -> bool:
        if decision.placement is None:
            return False
        added_w = self._draw.added_alone_w(job.request.family, decision.placement, snapshot)
        return added_w is None or self._draw.of_nobody(snapshot).power_w + added_w <= limit_w


class ShiftRule(Rule):
    """Jobs that are shiftable wait while energy is dear, never longer than the pool says or their deadline
    allows.
    """

    def __init__(self, settings: PoolSettings, shift: Shift) -> None:
        super().__init__(settings)
        self._shift = shift

    def refusals(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> Mapping[str, Finding]:
        dear = [each for each in snapshot.pool.series if self._is_dear(each, snapshot.now_s)]
        if not dear:
            return {}
        found: dict[str, Finding] = {}
        for job in jobs:
            latest_s = self._latest_s(job, snapshot)
            if latest_s is not None and snapshot.now_s < latest_s:
                found[job.job_id] = self._waits(dear, snapshot.now_s)
        return found

    def look_again_s(self, snapshot: ClusterSnapshot) -> float | None:
        """Return when one of those who wait for energy may go on, or the series say something else."""
        now_s = snapshot.now_s
        dear = [each for each in snapshot.pool.series if self._is_dear(each, now_s)]
        if not dear:
            return None
        latest = (self._latest_s(job, snapshot) for job in snapshot.waiting)
        ahead = [latest_s for latest_s in latest if latest_s is not None and latest_s > now_s]
        steps = (each.next_step_s(now_s) for each in dear)
        return min((*ahead, *(at_s for at_s in steps if at_s is not None))) if ahead else None

    def _is_dear(self, series: EnergySeries, at_s: float) -> bool:
        return series.is_dear(at_s, self._shift.horizon_s, self._shift.factor)

    def _latest_s(self, job: Job, snapshot: ClusterSnapshot) -> float | None:
        """Return until when the job may be kept waiting, ``None`` if it may not be."""
        if not job.request.shiftable or job.progress.units_done or job.on_hold:
            return None
        until_s = job.queued_s + self._shift.max_shift_s
        if job.deadline_at_s is None:
            return until_s
        needed_s = _longest_alone_s(job, snapshot)
        return None if needed_s is None else min(until_s, job.deadline_at_s - _DEADLINE_SHARE * needed_s)

    def _waits(self, dear: Sequence[EnergySeries], now_s: float) -> Finding:
        series = dear[0]
        mean = series.mean(now_s, now_s + self._shift.horizon_s)
        numbers: dict[str, object] = {
            "series": series.name,
            "now": _number(series.at(now_s)),
            "limit": _number(None if mean is None else mean * self._shift.factor),
            "factor": _number(self._shift.factor),
            "hours": _number(self._shift.horizon_s / 3600),
            "better": _shown(self._better_s(dear, now_s)),
            "most": _number(self._shift.max_shift_s / 3600),
        }
        return Finding(Reason.WAITING_FOR_ENERGY, numbers)

    def _better_s(self, dear: Sequence[EnergySeries], now_s: float) -> float | None:
        """Return the first step at which none of the series is dear any more."""
        instants = sorted({at_s for each in dear for at_s, _ in each.steps if at_s > now_s})
        return next((at_s for at_s in instants if not any(self._is_dear(each, at_s) for each in dear)), None)


def _longest_alone_s(job: Job, snapshot: ClusterSnapshot) -> float | None:
    """Return the wall time of its run alone where it takes longest, ``None`` if that is not known."""
    request = job.request
    found: list[float] = []
    for state in snapshot.nodes.values():
        for model in {gpu.model for gpu in state.node.gpus}:
            if request.gpu_models and model not in request.gpu_models:
                continue
            solo = snapshot.profiles.fresh_solo_of(request.family, model, request.gpus)
            left_s = remaining_solo_s(job.progress, solo)
            if left_s is None:
                return None
            found.append(left_s / state.node.time_scale)
    return max(found, default=None)


def _finding(pool: str, case: str, numbers: Mapping[str, object]) -> Finding:
    return Finding(Reason.OVER_ENERGY_BUDGET, {"pool": pool, "case": case, **numbers})


def _kw(power_w: float) -> str:
    return f"{power_w / 1000:.1f} kW"


def _without(draw: Draw) -> str:
    return f" without {draw.unknown_idle} idle GPUs that nobody meters" if draw.unknown_idle else ""


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _shown(at_s: float | None) -> str | None:
    if at_s is None or not math.isfinite(at_s):
        return None
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
