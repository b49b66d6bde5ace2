"""Jobs on GPUs in a what-if: how far each is, how fast it goes, and when it is through or at a boundary.

Work is counted in device seconds that the job would take alone. Nothing is known here of planning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.snapshot import Observation

# What sums of rates leave of a finished unit.
_ROUNDING_S = 1e-6
# Instants in seconds since the epoch are off by a quarter of a microsecond; on a node that is faster than the
# clock that is as many times more of its own time.
_ROUNDING_ULPS = 4


@dataclass(slots=True, eq=False)
class Run:
    """One job on its GPUs. ``None`` is unknown: without ``left_s`` or ``slowdown`` it never ends here.

    ``left_s``: work until it is through. ``unit_s``: work of one unit; ``unit_left_s`` of it until the
    present unit ends. ``slowdown``: device time / work in the present set. ``since_s``: up to when it was
    counted. ``seen`` is what it would have reported, ``news`` whether that has changed.
    """

    job_id: str
    family: str
    token: int
    placement: Placement
    model: str
    time_scale: float
    progress: Progress
    left_s: float | None
    unit_s: float | None
    unit_left_s: float | None
    since_s: float
    can_yield: bool
    slowdown: float | None = None
    set_version: int = 0
    watched: bool = False
    stamp: int = 0
    began_version: int | None = None
    unit_elapsed_s: float = 0.0
    seen: Observation | None = None
    news: bool = False

    def advance(self, now_s: float) -> None:
        """Let the time until ``now_s`` pass."""
        device_s = (now_s - self.since_s) * self.time_scale
        self.since_s = now_s
        if self.slowdown is None or device_s <= 0:
            return
        work_s = device_s / self.slowdown
        if self.left_s is not None:
            self.left_s = max(0.0, self.left_s - work_s)
        if self.unit_s is None or self.unit_left_s is None:
            return
        if work_s + self._rounding_s() < self.unit_left_s:
            self.unit_left_s -= work_s
            self.unit_elapsed_s += device_s
            return
        self._pass_units(work_s, self.unit_s, self.unit_left_s, self.slowdown)

    def _rounding_s(self) -> float:
        """Return how much work may be missing at the instant at which a unit ends, since that is rounded."""
        return _ROUNDING_S + _ROUNDING_ULPS * math.ulp(self.since_s) * self.time_scale

    def _pass_units(self, work_s: float, unit_s: float, unit_left_s: float, slowdown: float) -> None:
        first_s = self.unit_elapsed_s + unit_left_s * slowdown
        beyond_s = max(0.0, work_s - unit_left_s)
        more = math.floor((beyond_s + self._rounding_s()) / unit_s)
        rest_s = max(0.0, beyond_s - more * unit_s)
        whole = [first_s] if self.began_version == self.set_version else []
        self._see(
            len(whole) + more, math.fsum(whole) + more * unit_s * slowdown, first_s + more * unit_s * slowdown
        )
        done = self.progress.units_done + 1 + more
        total = self.progress.units_total
        self.progress = Progress(
            units_done=done if total is None else min(done, total),
            units_total=total,
            run_s=self.progress.run_s + first_s + more * unit_s * slowdown,
            can_yield=self.can_yield,
            solo_unit_s=self.progress.solo_unit_s,
            solo_units=self.progress.solo_units,
            solo_spread_s=self.progress.solo_spread_s,
            reported_s=self.since_s,
            lost_s=self.progress.lost_s,
            out_of_memory=self.progress.out_of_memory,
        )
        self.unit_left_s = unit_s - rest_s
        self.unit_elapsed_s = rest_s * slowdown
        self.began_version = self.set_version
        self.news = True

    def _see(self, units: int, under_s: float, elapsed_s: float) -> None:
        seen = self.seen
        if seen is None or seen.set_version != self.set_version:
            seen = Observation(self.set_version)
        if not units:
            self.seen = Observation(self.set_version, seen.units, seen.unit_s, seen.elapsed_s + elapsed_s)
            return
        before_s = (seen.unit_s or 0.0) * seen.units
        count = seen.units + units
        self.seen = Observation(
            self.set_version, count, (before_s + under_s) / count, seen.elapsed_s + elapsed_s
        )

    def end_s(self) -> float:
        """Return when it is through, infinite if that cannot be told."""
        return self._at(self.left_s)

    def boundary_s(self) -> float:
        """Return when its present unit ends, infinite if that cannot be told."""
        return self._at(self.unit_left_s)

    def _at(self, work_s: float | None) -> float:
        if work_s is None or self.slowdown is None:
            return math.inf
        return self.since_s + work_s * self.slowdown / self.time_scale
