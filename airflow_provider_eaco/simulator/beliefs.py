"""What the policy believes at the start of a run: the profile store, filled from the truth or left empty.

``known``: all sets up to the resident limit as they are. ``solo``: every family alone. ``empty``: nothing.
What runs out of memory together is known in all three, as the sum of the families' peaks would tell; the
published tables have no memory peaks. What a power limit does is known of whatever has a profile. Work is
counted in units of one second of exclusive progress, so a unit takes every family one second alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from itertools import combinations_with_replacement

import numpy as np

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerLevel,
    ProfileBook,
    ProfileSource,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.simulator.truth import Truth

UNIT_S = 1.0
REFERENCE = "the simulated cluster's truth"

# What a set that does not fit is believed to do: nothing that any limit or energy gain would accept.
_NEVER = 1e9


class Belief(StrEnum):
    """How much is believed before the first job has run."""

    KNOWN = "known"
    SOLO = "solo"
    EMPTY = "empty"


def believed_book(
    truth: Truth,
    belief: Belief,
    *,
    gpu_counts: Iterable[int],
    max_residents: int,
    unit_s: float | None = UNIT_S,
    error: float,
    draws: np.random.Generator,
) -> ProfileBook:
    """Return the profiles that the run begins with.

    :param gpu_counts: how many GPUs the jobs of the run take.
    :param unit_s: how long a unit takes alone; ``None`` where each job tells its own run time.
    :param error: standard deviation of the logarithm by which slowdowns and power of sets are wrong.
    """
    counts = sorted(set(gpu_counts))
    solo: list[SoloProfile] = []
    if belief is not Belief.EMPTY:
        solo = [_solo(truth, family, count, unit_s) for family in sorted(truth.families) for count in counts]
    sets = []
    for count in counts:
        for families in _sets(truth, max_residents):
            known = _known_set(truth, families, count, error, draws)
            if known.power_w is None or belief is Belief.KNOWN:
                sets.append(known)
    return ProfileBook({each.key: each for each in solo}, {each.key: each for each in sets}, revision=1)


def _sets(truth: Truth, max_residents: int) -> Iterable[FamilySet]:
    for size in range(2, max_residents + 1):
        for families in combinations_with_replacement(sorted(truth.families), size):
            yield family_set(families)


def _solo(truth: Truth, family: str, gpus: int, unit_s: float | None) -> SoloProfile:
    alone = family_set((family,))
    performance = truth.performance(alone, gpus)
    return SoloProfile(
        family,
        truth.gpu_model,
        gpus,
        unit_s=unit_s,
        samples=1,
        power_w=None if performance is None else performance.power_w,
        utilisation_pct=truth.utilisation_pct(alone),
        checkpoints=True,
        scope=truth.scope,
        source=ProfileSource.IMPORTED,
        reference=REFERENCE,
        levels=_levels(truth, alone, gpus),
    )


def _known_set(
    truth: Truth, families: FamilySet, gpus: int, error: float, draws: np.random.Generator
) -> CoallocationProfile:
    wrong, wrong_w = (math.exp(error * draws.standard_normal()) for _ in range(2)) if error else (1.0, 1.0)
    performance = truth.performance(families, gpus)
    if performance is None:
        return _misfit(truth, families, gpus)
    return CoallocationProfile(
        families,
        truth.gpu_model,
        gpus,
        slowdowns={family: wrong / rate for family, rate in zip(families, performance.rates, strict=True)},
        power_w=performance.power_w * wrong_w,
        utilisation_pct=truth.utilisation_pct(families),
        samples=1,
        scope=truth.scope,
        source=ProfileSource.IMPORTED,
        reference=REFERENCE,
        levels=_levels(truth, families, gpus),
    )


def _levels(truth: Truth, families: FamilySet, gpus: int) -> tuple[PowerLevel, ...]:
    full = truth.performance(families, gpus) if truth.limits_w else None
    if full is None:
        return ()
    limited = {limit_w: truth.performance(families, gpus, limit_w) for limit_w in truth.limits_w}
    return tuple(
        PowerLevel(limit_w, full.rates[0] / under.rates[0], under.power_w / full.power_w)
        for limit_w, under in limited.items()
        if under is not None
    )


def _misfit(truth: Truth, families: FamilySet, gpus: int) -> CoallocationProfile:
    return CoallocationProfile(
        families,
        truth.gpu_model,
        gpus,
        slowdowns=dict.fromkeys(families, _NEVER),
        scope=truth.scope,
        source=ProfileSource.DECLARED,
        reference="runs out of memory",
    )
