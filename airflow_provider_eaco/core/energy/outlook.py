"""What a run's past and its limits leave room for: remaining time, predicted stretch, tolerated slowdown.

Times are device seconds; an instant or a deadline is wall time, and ``time_scale`` device seconds pass in one
wall second.
"""

from __future__ import annotations

import math

from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.profile import SoloProfile


def units_total_of(progress: Progress, solo: SoloProfile | None) -> int | None:
    """Return how many units the run has in all: what the job told, else what its family needed before."""
    if progress.units_total is not None:
        return progress.units_total
    return None if solo is None else solo.units_total


def units_left(progress: Progress, solo: SoloProfile | None) -> int | None:
    """Return how many units are still to do, ``None`` when the total is not known."""
    total = units_total_of(progress, solo)
    return None if total is None else max(0, total - progress.units_done)


def remaining_solo_s(progress: Progress, solo: SoloProfile | None) -> float | None:
    """Return the device seconds that the rest would take alone, ``None`` when total or pace is unknown."""
    left = units_left(progress, solo)
    unit_s = progress.solo_unit_s if solo is None or solo.unit_s is None else solo.unit_s
    return None if left is None or unit_s is None else left * unit_s


def predicted_stretch(
    progress: Progress, units_total: int | None, solo_unit_s: float | None, slowdown: float
) -> float:
    """Return run time / exclusive run time of the whole run, if its rest runs at ``slowdown``.

    The done part counts as it was, trials included. Without a known total or pace, the slowdown itself.
    """
    if not units_total or solo_unit_s is None:
        return slowdown
    left = max(0, units_total - progress.units_done)
    return (progress.run_s + left * solo_unit_s * slowdown) / (units_total * solo_unit_s)


def slowdown_within_stretch(
    progress: Progress, units_total: int | None, solo_unit_s: float | None, max_stretch: float | None
) -> float:
    """Return the largest slowdown of the rest under which the whole run keeps ``max_stretch``.

    This is :func:`predicted_stretch` solved for the slowdown: infinite without a limit or when nothing is
    left to do, and below 1 when even a run alone from now on would be late.
    """
    if max_stretch is None:
        return math.inf
    if not units_total or solo_unit_s is None:
        return max_stretch
    left_s = max(0, units_total - progress.units_done) * solo_unit_s
    if left_s == 0:
        return math.inf
    return (max_stretch * units_total * solo_unit_s - progress.run_s) / left_s


def slowdown_within_deadline(
    left_s: float | None, deadline_at_s: float | None, now_s: float, time_scale: float
) -> float | None:
    """Return the largest slowdown under which ``left_s`` device seconds of solo work end by the deadline.

    Infinite without a deadline or without work; ``None`` when there is a deadline and the work is unknown.
    """
    if deadline_at_s is None:
        return math.inf
    if left_s is None:
        return None
    return math.inf if left_s == 0 else (deadline_at_s - now_s) * time_scale / left_s
