"""What a book of profiles teaches about GPUs of one model and number: measured sets, as a learner sees them.

Figures are rounded to what a measurement tells, so that measuring the same thing again teaches nothing new
and a fit of the same experience can be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_eaco.core.energy.interference import rule_slowdown
from airflow_provider_eaco.core.energy.similarity import Trait, trait_of
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerScope,
    ProfileBook,
    ProfileKey,
    ProfileSource,
    SoloProfile,
)

# What somebody declares is no measurement; and a slowdown beyond this says "never together", not how slow, as
# its inverse says that the time alone was wrong.
_TEACHING = frozenset({ProfileSource.MEASURED, ProfileSource.BUILT_IN, ProfileSource.IMPORTED})
_LARGEST_SLOWDOWN = 50.0

# A fit costs the cube of its rows; beyond this many sets those with the fewest samples are left out.
_MOST_SETS = 400


class Hardware(NamedTuple):
    """The GPUs that an experience is about; what was seen on others says nothing of these (C60)."""

    gpu_model: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Alone:
    """One family alone, as far as a learner looks at it; ``None`` is not known."""

    trait: Trait
    utilisation_pct: float | None = None
    power_w: float | None = None
    scope: PowerScope | None = None


@dataclass(frozen=True, slots=True)
class MeasuredSet:
    """A measured set; ``log_slowdowns`` in the order of its distinct families."""

    families: FamilySet
    log_slowdowns: tuple[float, ...]
    power_w: float | None
    scope: PowerScope


@dataclass(frozen=True, slots=True)
class Experience:
    """The measured sets on some GPUs by their families, and their members alone, by name."""

    hardware: Hardware
    sets: tuple[MeasuredSet, ...]
    alone: tuple[Alone, ...]

    @property
    def rows(self) -> int:
        """How many members' slowdowns were measured, a family once in each set."""
        return sum(len(each.log_slowdowns) for each in self.sets)


def rule_log_slowdown(members: Sequence[Alone], hardware: Hardware) -> float:
    """Return the logarithm of the slowdown to start from, before anything was measured.

    It is that of the published rule where every member's utilisation is known. Else it lies halfway, in
    logarithms, between running undisturbed and an even share of the GPUs.
    """
    busy = [member.utilisation_pct for member in members if member.utilisation_pct is not None]
    if len(busy) == len(members):
        scopes = {member.scope for member in members if member.scope is not None}
        slowdown = rule_slowdown(len(members), math.fsum(busy), hardware.gpu_model, scopes)
        if slowdown is not None:
            return math.log(slowdown)
    return math.log(len(members)) / 2


class ExperienceReader:
    """Reads one book after the other; what a profile says is worked out once for as long as it stays."""

    def __init__(self) -> None:
        self._sets: dict[ProfileKey, tuple[CoallocationProfile, MeasuredSet | None]] = {}
        self._alone: dict[ProfileKey, tuple[SoloProfile, Alone]] = {}

    def experience(self, book: ProfileBook, hardware: Hardware) -> Experience:
        """Return what the book teaches about these GPUs, in an order that is not the book's."""
        taught = [
            (key.families, profile.samples, seen)
            for key, profile in book.coallocation.items()
            if (key.gpu_model, key.gpu_count) == hardware and (seen := self._seen(key, profile)) is not None
        ]
        if len(taught) > _MOST_SETS:
            taught = sorted(taught, key=lambda each: (-each[1], each[0]))[:_MOST_SETS]
        sets = tuple(seen for _, _, seen in sorted(taught, key=lambda each: each[0]))
        families = sorted({family for each in sets for family in each.families})
        return Experience(hardware, sets, tuple(self.alone(book, family, hardware) for family in families))

    def alone(self, book: ProfileBook, family: str, hardware: Hardware) -> Alone:
        """Return what the book says of the family alone; a stale profile says nothing (C61)."""
        solo = book.fresh_solo_of(family, *hardware)
        if solo is None:
            return Alone(trait_of(family, None))
        known = self._alone.get(solo.key)
        if known is None or known[0] is not solo:
            known = self._alone[solo.key] = (solo, _alone(solo))
        return known[1]

    def _seen(self, key: ProfileKey, profile: CoallocationProfile) -> MeasuredSet | None:
        known = self._sets.get(key)
        if known is None or known[0] is not profile:
            known = self._sets[key] = (profile, _seen(profile))
        return known[1]


def _alone(solo: SoloProfile) -> Alone:
    return Alone(
        trait_of(solo.family, solo.unit_s),
        None if solo.utilisation_pct is None else round(solo.utilisation_pct),
        None if solo.power_w is None else round(solo.power_w, 1),
        solo.scope,
    )


def _seen(profile: CoallocationProfile) -> MeasuredSet | None:
    slowdowns = [profile.slowdowns[family] for family in dict.fromkeys(profile.families)]
    if profile.stale or profile.source not in _TEACHING:
        return None
    if not 1 / _LARGEST_SLOWDOWN <= min(slowdowns) <= max(slowdowns) <= _LARGEST_SLOWDOWN:
        return None
    logs = tuple(round(math.log(slowdown), 3) for slowdown in slowdowns)
    power_w = None if profile.power_w is None else round(profile.power_w, 1)
    return MeasuredSet(profile.families, logs, power_w, profile.scope)
