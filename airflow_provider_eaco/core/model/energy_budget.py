"""What a pool may draw and use, and when jobs that allow it wait for cheaper or cleaner energy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DAY_S = 24 * 3600.0


class BudgetAction(StrEnum):
    """What follows when a job would break the pool's energy budget.

    ``WARN``: it starts, and its decision says so. ``HOLD``: it waits.
    """

    WARN = "warn"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class EnergyBudget:
    """What the nodes of a pool may draw at any time, and what jobs may use there in one day (UTC).

    ``None``: no such limit. A budget never stops what runs.
    """

    power_w: float | None = None
    kwh_per_day: float | None = None
    action: BudgetAction = BudgetAction.HOLD


@dataclass(frozen=True, slots=True)
class EnergyUsed:
    """What jobs have used on the nodes of a pool since ``since_s``, the beginning of the day.

    ``energy_j`` is ``None`` when nothing of it is known; ``partial``: a part is missing, it is a lower bound.
    """

    since_s: float
    energy_j: float | None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class UsedEnergy:
    """What a job used on a node between two instants, spread evenly over them; ``partial``: at least that.

    ``energy_j`` is ``None`` where nothing was measured.
    """

    job_id: str
    node: str
    begin_s: float
    end_s: float
    energy_j: float | None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """How long a job that allows it waits for a better hour.

    It waits while a series (price, carbon) stands above ``factor`` times its mean of the next ``horizon_s``,
    for at most ``max_shift_s`` after it was first queued.
    """

    max_shift_s: float = 12 * 3600.0
    horizon_s: float = 24 * 3600.0
    factor: float = 1.0


def day_began_s(now_s: float) -> float:
    """Return the instant at which the day (UTC) of ``now_s`` began."""
    return now_s // DAY_S * DAY_S
