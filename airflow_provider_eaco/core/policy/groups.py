"""Groups: the open sets of one kind, and what they offer a family.

A family meets sets with equal members, GPU model, number of GPUs and pace alike: what profiles say of it is
found once a group, and which of the group's residents bear it once until the group changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.profile import SoloProfile, family_set
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import GpuSet
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetFacts, SetKind
from airflow_provider_eaco.core.policy.filters import Obstacle

SetOrder = tuple[str, tuple[str, ...]]
GroupOrder = tuple[float, str, float, tuple[str, ...]]


@quick_init
@dataclass(frozen=True, slots=True)
class HeldSet:
    """A set, with the host memory that its node has left."""

    order: SetOrder
    facts: SetFacts
    host_free_mib: int | None

    @classmethod
    def of(cls, facts: SetFacts, host_free_mib: int | None) -> HeldSet:
        return cls((facts.placement.node, facts.placement.gpu_uuids), facts, host_free_mib)

    def after_reports(self, held: GpuSet) -> HeldSet:
        """Return the set with what its residents have reported since."""
        facts = self.facts.after_reports(held)
        return self if facts is self.facts else HeldSet(self.order, facts, self.host_free_mib)


@quick_init
@dataclass(frozen=True, slots=True)
class Meeting:
    """A family may join sets of a kind; ``untried`` stands against it where no trial can be undone."""

    prediction: SetPrediction
    solo: SoloProfile
    untried: Obstacle | None


class Willing:
    """The sets of a group whose residents bear a family's coming, found one by one as somebody asks."""

    def __init__(self, sets: Sequence[HeldSet], prediction: SetPrediction, now_s: float) -> None:
        self._sets = sets
        self._prediction = prediction
        self._now_s = now_s
        self._asked = 0
        self._found: list[HeldSet] = []
        self._at_risk: Obstacle | None = None

    def __iter__(self) -> Iterator[HeldSet]:
        """Yield the willing sets by node and UUID."""
        place = 0
        while place < len(self._found) or self._find():
            yield self._found[place]
            place += 1

    def at_risk(self) -> Obstacle | None:
        """Return the nearest case of a set that does not bear it, once no other is left to ask."""
        while self._find():
            pass
        return self._at_risk

    def _find(self) -> bool:
        """Ask on until one more is willing; return whether there was one."""
        while self._asked < len(self._sets):
            held = self._sets[self._asked]
            self._asked += 1
            obstacle = filters.resident_limits(held.facts, self._prediction, self._now_s)
            if obstacle is None:
                self._found.append(held)
                return True
            if self._at_risk is None or obstacle.nearness() < self._at_risk.nearness():
                self._at_risk = obstacle
        return False


@dataclass(slots=True, eq=False)
class SetGroup:
    """The open sets of one kind, by node and UUID. ``order`` ranks groups: busiest first, those whose
    utilisation is unknown last; model, time scale and families decide between equals. ``dated`` of the sets
    stand otherwise at another instant.
    """

    kind: SetKind
    facts: CycleFacts
    utilisation_pct: float | None = field(init=False)
    order: GroupOrder = field(init=False)
    sets: list[HeldSet] = field(default_factory=list)
    dated: int = 0
    _met: dict[tuple[str, bool], Meeting | Obstacle] = field(default_factory=dict)
    _willing: dict[str, Willing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = self.kind
        present = self.facts.predict(kind.families, kind.model, kind.gpus)
        self.utilisation_pct = None if present is None else present.utilisation_pct
        busiest_first = math.inf if self.utilisation_pct is None else -self.utilisation_pct
        self.order = busiest_first, kind.model, kind.time_scale, kind.families

    def add(self, held: HeldSet) -> None:
        insort(self.sets, held, key=_order_of_set)
        self.dated += held.facts.dated
        self._willing.clear()

    def remove(self, held: HeldSet) -> None:
        del self.sets[bisect_left(self.sets, held.order, key=_order_of_set)]
        self.dated -= held.facts.dated
        self._willing.clear()

    def renew(self, before: HeldSet, after: HeldSet) -> bool:
        """Put a set in the place of one that differs in what its residents bear.

        :return: whether an answer that somebody got here may differ by that.
        """
        self.sets[bisect_left(self.sets, before.order, key=_order_of_set)] = after
        asked = bool(self._willing)
        self._willing.clear()
        return asked

    def pass_time(self) -> None:
        """Be about the facts' new instant."""
        self._willing.clear()

    def forget(self, families: Iterable[str]) -> None:
        """Drop what was found about these families as newcomers."""
        for family in families:
            for insists in (False, True):
                self._met.pop((family, insists), None)
            self._willing.pop(family, None)

    def made_anew(self) -> SetGroup:
        """Return a group of the same sets about which nothing was found yet; this one is empty then."""
        group = SetGroup(self.kind, self.facts, sets=self.sets, dated=self.dated)
        self.sets, self.dated = [], 0
        return group

    def meeting(self, family: str, *, insists: bool) -> Meeting | Obstacle:
        """Return the meeting, or the obstacle: not predictable, too busy, or no gain in energy.

        It depends on profiles and settings alone, whatever the room there and the limits of those concerned.
        """
        met = self._met.get((family, insists))
        if met is None:
            met = self._met[family, insists] = self._meet(family, insists)
        return met

    def willing(self, family: str, prediction: SetPrediction) -> Willing:
        """Return the sets whose residents bear the family's coming as predicted."""
        willing = self._willing.get(family)
        if willing is None:
            willing = self._willing[family] = Willing(self.sets, prediction, self.facts.now_s)
        return willing

    def _meet(self, family: str, insists: bool) -> Meeting | Obstacle:
        facts, kind = self.facts, self.kind
        solo = facts.book.fresh_solo_of(family, kind.model, kind.gpus)
        members = family_set((*kind.families, family))
        prediction = None if solo is None else facts.predict(members, kind.model, kind.gpus)
        if solo is None or prediction is None:
            return filters.profile_missing(family, kind, facts)
        obstacle = filters.utilisation(family, kind, prediction, facts)
        if obstacle is None and not insists:
            obstacle = filters.energy_gain(kind, solo, prediction, facts)
        if obstacle is not None:
            return obstacle
        tried = prediction.measured or solo.checkpoints
        return Meeting(prediction, solo, None if tried else filters.untried(family, kind))


def _order_of_set(held: HeldSet) -> SetOrder:
    return held.order
