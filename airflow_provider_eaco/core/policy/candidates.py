"""Candidates: what the held sets offer jobs of one shape, and what stands in the way."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import Reason, SetPrediction
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.profile import SoloProfile, family_set
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetKind, memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle
from airflow_provider_eaco.core.policy.places import Cluster, GroupOrder, HeldSet, SetGroup, Site


@dataclass(frozen=True, slots=True)
class Shape:
    """What jobs have in common that meet the same candidates; their own limits come on top.

    ``may_try``: a set that was never measured may be tried, since the trial can be undone or the author
    insists. ``insists``: also without a predicted gain.
    """

    family: str
    needs: Needs
    may_try: bool
    insists: bool

    @classmethod
    def of(cls, request: GpuRequest, can_yield: bool) -> Shape:
        insists = request.share is Share.ALWAYS
        return cls(request.family, Needs.of(request), can_yield or insists, insists)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set that the shape may join, if the job's own limits allow."""

    held: HeldSet
    kind: SetKind
    model_rank: int
    present_pct: float
    prediction: SetPrediction


@dataclass(frozen=True, slots=True)
class Meeting:
    """A family may join sets of a kind; ``untried`` stands against it where no trial can be undone."""

    prediction: SetPrediction
    solo: SoloProfile
    untried: Obstacle | None


class Meetings:
    """What comes of a family and a kind of set, whatever the room there and the limits of those concerned.

    It depends on profiles and settings alone, so it outlives the cycle for as long as these stay the same.
    """

    def __init__(self, facts: CycleFacts) -> None:
        self._facts = facts
        self._known: dict[tuple[str, bool, SetKind], Meeting | Obstacle] = {}

    def of(self, family: str, insists: bool, kind: SetKind) -> Meeting | Obstacle:
        """Return the meeting, or the obstacle: full, not predictable, too busy, or no gain in energy."""
        key = family, insists, kind
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._meet(family, insists, kind)
        return known

    def _meet(self, family: str, insists: bool, kind: SetKind) -> Meeting | Obstacle:
        facts = self._facts
        full = filters.resident_limit(kind, facts.settings)
        if full is not None:
            return full
        solo = facts.book.fresh_solo_of(family, kind.model, kind.gpus)
        members = family_set((*kind.families, family))
        prediction = None if solo is None else facts.predict(members, kind.model, kind.gpus)
        if solo is None or prediction is None:
            return filters.profile_missing(family, kind, facts)
        obstacle = filters.utilisation(family, kind, prediction, facts.settings)
        if obstacle is None and not insists:
            obstacle = filters.energy_gain(kind, solo, prediction, facts)
        if obstacle is not None:
            return obstacle
        tried = prediction.measured or solo.checkpoints
        return Meeting(prediction, solo, None if tried else filters.profile_missing(family, kind, facts))


@dataclass(slots=True)
class _Promise:
    """A group whose kind takes the shape, and the first of its sets that does so too, else why none does."""

    group: SetGroup
    prediction: SetPrediction
    model_rank: int
    needed_mib: int | None
    version: int = -1
    first: Candidate | None = None
    obstacles: tuple[Obstacle, ...] = ()


class Offers:
    """The sets that take jobs of one shape, kept up to date group by group."""

    def __init__(self, shape: Shape, site: Site, cluster: Cluster, meetings: Meetings) -> None:
        self.shape = shape
        self._meetings = meetings
        self._site = site
        self._cluster = cluster
        self._facts: CycleFacts = cluster.facts
        self._met = 0
        self._promises: list[_Promise] = []
        self._against_kinds: list[tuple[SetGroup, Obstacle]] = []

    def candidates(self) -> Iterator[Candidate]:
        """Return for each kind of set the first that takes the shape, busiest kind first."""
        self._meet_new_groups()
        for promise in self._promises:
            if promise.version != promise.group.version:
                self._ask(promise)
            if promise.first is not None:
                yield promise.first

    def obstacles(self) -> dict[Reason, Obstacle]:
        """Return for each reason that keeps the shape from a set the nearest case.

        That sets are full is a reason only where all are.
        """
        takers = any(True for _ in self.candidates())
        against_sets = [obstacle for promise in self._promises for obstacle in promise.obstacles]
        against_kinds = [obstacle for group, obstacle in self._against_kinds if group.sets]
        best = filters.nearest([*against_kinds, *against_sets])
        if takers or len(best) > 1 or not self._cluster.all_open(self.shape.needs.gpus):
            best.pop(Reason.RESIDENT_LIMIT, None)
        return best

    def _meet_new_groups(self) -> None:
        groups = self._cluster.groups(self.shape.needs.gpus)
        if len(groups) == self._met:
            return
        for group in groups[self._met :]:
            met = self._meet(group)
            if isinstance(met, _Promise):
                insort(self._promises, met, key=_order_of_promise)
            elif met is not None:
                self._against_kinds.append((group, met))
        self._met = len(groups)

    def _meet(self, group: SetGroup) -> _Promise | Obstacle | None:
        """Return whether the kind of set takes the shape, or what stands in the way; ``None``: wrong GPUs."""
        shape = self.shape
        rank = self._site.rank(group.kind.model)
        if rank is None:
            return None
        met = self._meetings.of(shape.family, shape.insists, group.kind)
        if isinstance(met, Obstacle):
            return met
        if met.untried is not None and not shape.may_try:
            return met.untried
        peak_mib = memory_peak_mib(shape.needs.gpu_memory_mib, met.solo)
        needed_mib = None if peak_mib is None else peak_mib + self._facts.settings.memory_margin_mib
        return _Promise(group, met.prediction, rank, needed_mib)

    def _ask(self, promise: _Promise) -> None:
        """Ask the group's sets in order, until one has the room and residents that bear it."""
        group, prediction = promise.group, promise.prediction
        promise.version, promise.first, promise.obstacles = group.version, None, ()
        found: list[Obstacle] = []
        for held in group.sets:
            obstacle = (
                filters.host_memory(self.shape.needs, held.facts.placement.node, held.host_free_mib)
                or filters.memory(promise.needed_mib, held.facts)
                or filters.resident_limits(held.facts, prediction)
            )
            if obstacle is None:
                promise.first = Candidate(
                    held, group.kind, promise.model_rank, group.utilisation_pct, prediction
                )
                return
            found.append(obstacle)
        promise.obstacles = tuple(filters.nearest(found).values())


def _order_of_promise(promise: _Promise) -> GroupOrder:
    return promise.group.order
