"""Ways of running a set: at full power, or under one of the power limits of which something is known."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_eaco.core.model.profile import FamilySet, PowerLevel, ProfileBook


@dataclass(frozen=True, slots=True)
class Way:
    """A power limit per board (``None``: the boards' own) with what it does to a set.

    ``slowdown`` and ``power_ratio`` are against full power, as in a profile's levels.
    """

    limit_w: float | None
    slowdown: float
    power_ratio: float


FULL_POWER = Way(None, 1.0, 1.0)


def ways_of(families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook) -> tuple[Way, ...]:
    """Return the ways in which the set may be run with profit, full power first, then the faster first.

    Only what was measured of exactly this set counts: of any other set, and of one whose profile is stale,
    full power is all that is known. Left out is a limit under which work takes no less energy than under one
    that is faster.
    """
    ways = [FULL_POWER]
    for level in sorted(_levels(families, gpu_model, gpu_count, book), key=lambda each: each.slowdown):
        last = ways[-1]
        saves = level.power_ratio * level.slowdown < last.power_ratio * last.slowdown
        if saves and level.slowdown >= 1:
            ways.append(Way(level.limit_w, level.slowdown, level.power_ratio))
    return tuple(ways)


def _levels(families: FamilySet, gpu_model: str, gpu_count: int, book: ProfileBook) -> tuple[PowerLevel, ...]:
    if len(families) == 1:
        alone = book.fresh_solo_of(families[0], gpu_model, gpu_count)
        return () if alone is None else alone.levels
    together = book.coallocation_of(families, gpu_model, gpu_count)
    return () if together is None or together.stale or together.undone else together.levels
