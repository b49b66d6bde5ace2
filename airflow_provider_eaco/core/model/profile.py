"""Profiles: how a family of jobs behaves alone, and how a set of families behaves together.

Keys: family, GPU model, number of GPUs; for a co-allocation the multiset of families. ``power_w`` is the draw
of the GPUs of the placement with their share of the node's host (``scope = node``), or of the boards alone
(``scope = board``). The two are never mixed in one prediction.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import NamedTuple, NewType

from airflow_provider_eaco.core.model.errors import InvalidProfileError

# What the columns of every store hold.
MAX_FAMILY_LENGTH = 200

FamilySet = NewType("FamilySet", tuple[str, ...])


def family_set(families: tuple[str, ...] | list[str]) -> FamilySet:
    """Return the multiset in canonical order, so that {a, b} and {b, a} are one key."""
    return FamilySet(tuple(sorted(families)))


class PowerScope(StrEnum):
    """What a power figure covers."""

    NODE = "node"
    BOARD = "board"


class ProfileSource(StrEnum):
    """Where a profile's numbers come from, most trusted first."""

    MEASURED = "measured"
    BUILT_IN = "built_in"
    IMPORTED = "imported"
    DECLARED = "declared"


class ProfileKey(NamedTuple):
    """What a profile is about. A tuple, since profiles are looked up by the thousand in every cycle."""

    families: FamilySet
    gpu_model: str
    gpu_count: int


@dataclass(frozen=True, slots=True)
class PowerLevel:
    """What a limit of ``limit_w`` per board does to a family or a set, against running at full power.

    ``slowdown``: unit time under the limit / at full power. ``power_ratio``: draw under the limit / at full
    power, in the profile's scope. Ratios hold on when the profile's own figures are learnt anew.
    """

    limit_w: float
    slowdown: float
    power_ratio: float


@dataclass(frozen=True, slots=True)
class SoloProfile:
    """One family alone on its GPUs. ``None`` means not known.

    ``unit_s``: mean seconds for one unit (epoch); ``spread_s``: its standard deviation over ``samples``
    units. ``memory_peak_mib``: per GPU, the highest of any complete run; it never falls because of a shorter
    look. ``utilisation_pct``: mean GPU utilisation. ``checkpoints``: whether its last complete run saved
    checkpoints, so that it can be asked to yield. ``levels``: the power limits of which something is known,
    highest first.
    """

    family: str
    gpu_model: str
    gpu_count: int
    unit_s: float | None = None
    spread_s: float | None = None
    samples: int = 0
    power_w: float | None = None
    utilisation_pct: float | None = None
    utilisation_max_pct: float | None = None
    memory_utilisation_pct: float | None = None
    memory_peak_mib: int | None = None
    units_total: int | None = None
    checkpoints: bool | None = None
    scope: PowerScope = PowerScope.NODE
    source: ProfileSource = ProfileSource.MEASURED
    updated_s: float | None = None
    reference: str = ""
    stale: bool = False
    levels: tuple[PowerLevel, ...] = ()

    def __post_init__(self) -> None:
        for name in ("unit_s", "power_w", "memory_peak_mib"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidProfileError(f"profile {self.family!r}: {name} is {value!r}, must be above 0")

    @property
    def key(self) -> ProfileKey:
        return ProfileKey(family_set((self.family,)), self.gpu_model, self.gpu_count)


@dataclass(frozen=True, slots=True)
class CoallocationProfile:
    """A multiset of families on the same GPUs.

    ``slowdowns`` gives shared unit time / solo unit time per family (1 = as fast as alone). ``undone`` counts
    trials of this set that were undone; the slowdown measured then stays, so the set is remembered as bad.
    ``levels`` as for one family alone.
    """

    families: FamilySet
    gpu_model: str
    gpu_count: int
    slowdowns: Mapping[str, float]
    power_w: float | None = None
    utilisation_pct: float | None = None
    utilisation_max_pct: float | None = None
    memory_utilisation_pct: float | None = None
    samples: int = 0
    spread: float | None = None
    undone: int = 0
    scope: PowerScope = PowerScope.NODE
    source: ProfileSource = ProfileSource.MEASURED
    updated_s: float | None = None
    reference: str = ""
    stale: bool = False
    levels: tuple[PowerLevel, ...] = ()

    def __post_init__(self) -> None:
        if len(self.families) < 2 or tuple(sorted(self.families)) != self.families:
            raise InvalidProfileError(f"co-allocation {self.families!r}: needs two or more families, sorted")
        if set(self.slowdowns) != set(self.families):
            raise InvalidProfileError(f"co-allocation {self.families!r}: one slowdown per family is needed")
        for family, slowdown in self.slowdowns.items():
            if not slowdown > 0:
                raise InvalidProfileError(
                    f"co-allocation {self.families!r}: slowdown of {family!r} must be > 0"
                )

    @property
    def key(self) -> ProfileKey:
        return ProfileKey(self.families, self.gpu_model, self.gpu_count)


@dataclass(frozen=True, slots=True)
class ProfileBook:
    """All that is believed about families, as one immutable view.

    ``revision`` changes whenever a profile changes; predictions may be kept for as long as it stays.
    """

    solo: Mapping[ProfileKey, SoloProfile] = field(default_factory=dict)
    coallocation: Mapping[ProfileKey, CoallocationProfile] = field(default_factory=dict)
    revision: int = 0

    def solo_of(self, family: str, gpu_model: str, gpu_count: int) -> SoloProfile | None:
        """Return the profile for exactly this GPU model and count; another model's is never reused (C60)."""
        return self.solo.get(ProfileKey(FamilySet((family,)), gpu_model, gpu_count))

    def fresh_solo_of(self, family: str, gpu_model: str, gpu_count: int) -> SoloProfile | None:
        """Return the profile unless it is stale; nothing about sharing is decided by a stale one (C61)."""
        profile = self.solo_of(family, gpu_model, gpu_count)
        return None if profile is None or profile.stale else profile

    def coallocation_of(
        self, families: FamilySet, gpu_model: str, gpu_count: int
    ) -> CoallocationProfile | None:
        return self.coallocation.get(ProfileKey(families, gpu_model, gpu_count))

    def families_changed_since(self, before: ProfileBook) -> frozenset[str]:
        """Return the families of which another thing is believed than before, alone or in some set."""
        return self.families_changed_alone_since(before) | _families_changed(
            before.coallocation, self.coallocation
        )

    def families_changed_alone_since(self, before: ProfileBook) -> frozenset[str]:
        """Return the families of which another thing is believed than before where they run alone."""
        return _families_changed(before.solo, self.solo)

    def sets_changed_since(self, before: ProfileBook) -> frozenset[FamilySet]:
        """Return the sets of several families of which another thing is believed than before."""
        return frozenset(_changed(before.coallocation, self.coallocation))


def _families_changed(old: Mapping[ProfileKey, object], new: Mapping[ProfileKey, object]) -> frozenset[str]:
    return frozenset().union(*_changed(old, new))


def _changed(old: Mapping[ProfileKey, object], new: Mapping[ProfileKey, object]) -> list[FamilySet]:
    return [key.families for key in _exchanged(old, new) if old.get(key) != new.get(key)]


def _exchanged(old: Mapping[ProfileKey, object], new: Mapping[ProfileKey, object]) -> Iterable[ProfileKey]:
    """Return the keys under which not the same object stands.

    A book that was made of another mostly has its keys in the same order; then none has to be looked up.
    """
    if old is new:
        return ()
    if len(old) == len(new) and all(map(operator.is_, old, new)):
        return compress(new, map(operator.is_not, old.values(), new.values()))
    return [key for key in old.keys() | new.keys() if old.get(key) is not new.get(key)]
