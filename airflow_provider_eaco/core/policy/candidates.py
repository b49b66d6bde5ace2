"""Candidates: what the held sets offer jobs of one shape, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.decision import Finding, Reason, SetPrediction
from airflow_provider_eaco.core.model.job import GpuRequest, JobKind, Share
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.cluster import Cluster
from airflow_provider_eaco.core.policy.facts import memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle
from airflow_provider_eaco.core.policy.groups import GroupOrder, HeldSet, Meeting, SetGroup
from airflow_provider_eaco.core.policy.places import Site


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


@quick_init
@dataclass(frozen=True, slots=True)
class Candidate:
    """A set that the shape may join, if the job's own limits allow."""

    held: HeldSet
    group: SetGroup
    model_rank: int
    prediction: SetPrediction


# More kinds are not remembered: those with progress of their own are new kinds all the time.
_MOST_CHOICES = 1000
# The busiest candidate within a job's own limits, else why the gentlest is beyond them.
Choice = tuple[Candidate | None, Finding | None]


class Offers:
    """The sets that take jobs of one shape; after a change only the groups that it touched are asked anew."""

    def __init__(self, shape: Shape, site: Site, cluster: Cluster) -> None:
        self.shape = shape
        self._site = site
        self._cluster = cluster
        self._takers: dict[SetGroup, Candidate] = {}
        self._candidates: Sequence[Candidate] | None = None
        self._choices: dict[JobKind, Choice] = {}
        self._against: dict[SetGroup, Sequence[Obstacle]] = {}
        self._obstacles: dict[Reason, Obstacle] | None = None
        self._changes = cluster.touched(shape.needs.gpus)
        for group in cluster.groups(shape.needs.gpus):
            self._ask(group)
        self._seen = self._changes.end

    @property
    def can_follow(self) -> bool:
        """Whether the cluster still knows all that has changed since it was followed last."""
        return self._changes.reaches(self._seen)

    def sync(self) -> None:
        """Follow the cluster."""
        if self._seen != self._changes.end:
            for group in self._changes.since(self._seen):
                self._ask(group)
            self._seen = self._changes.end

    def candidates(self, barred: frozenset[str] = frozenset()) -> Sequence[Candidate]:
        """Return for each kind of set the first that takes the shape, busiest kind first.

        :param barred: UUIDs of GPUs that may not be taken.
        """
        if self._candidates is None:
            self._candidates = sorted(self._takers.values(), key=_order_of_candidate)
        if not barred:
            return self._candidates
        beside = (self._beside(candidate, barred) for candidate in self._candidates)
        return [candidate for candidate in beside if candidate is not None]

    def busiest(self, kind: JobKind, barred: frozenset[str]) -> Choice:
        """Return the first candidate within the job's own limits, else why the gentlest is beyond them.

        :param barred: UUIDs of GPUs that may not be taken.
        """
        if barred or kind.deadline_at_s is not None:
            return self._choose(kind, self.candidates(barred))
        choice = self._choices.get(kind)
        if choice is None:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            choice = self._choices[kind] = self._choose(kind, self.candidates())
        return choice

    def obstacles(self) -> dict[Reason, Obstacle]:
        """Return for each reason that keeps the shape from a set the nearest case.

        That sets are full is a reason only where all are.
        """
        if self._obstacles is None:
            self._obstacles = filters.nearest(
                obstacle for against in self._against.values() for obstacle in against
            )
        if self._takers or self._obstacles or not self._are_all_full():
            return self._obstacles
        return {Reason.RESIDENT_LIMIT: filters.resident_limit(self._cluster.facts.settings)}

    def _are_all_full(self) -> bool:
        gpus = self.shape.needs.gpus
        acceptable = any(self._site.rank(model) is not None for model in self._cluster.full(gpus))
        return acceptable and self._cluster.all_open(gpus)

    def _choose(self, kind: JobKind, candidates: Sequence[Candidate]) -> Choice:
        tolerances: dict[tuple[str, float, bool], float | None] = {}
        best: Candidate | None = None
        gentlest: tuple[float, float | None, Candidate] | None = None
        for candidate in candidates:
            if best is not None and candidate.model_rank >= best.model_rank:
                continue
            group, prediction = candidate.group, candidate.prediction
            scope = group.kind.model, group.kind.time_scale, prediction.undone > 0
            if scope not in tolerances:
                tolerances[scope] = filters.own_tolerance(kind, *scope, self._cluster.facts)
            bears = tolerances[scope]
            slowdown = prediction.slowdowns[kind.request.family]
            if bears is not None and slowdown <= bears:
                best = candidate
                if best.model_rank == 0:
                    break
            elif gentlest is None or slowdown < gentlest[0]:
                gentlest = slowdown, bears, candidate
        if best is not None or gentlest is None:
            return best, None
        return None, filters.own_limit_broken(*gentlest[:2], gentlest[2].prediction)

    def _ask(self, group: SetGroup) -> None:
        """Take down what the group offers now."""
        took, stood_against = self._takers.pop(group, None), self._against.pop(group, ())
        rank = self._site.rank(group.kind.model)
        taker, against = (None, ()) if rank is None or not group.sets else self.answer(group, rank)
        if taker is not None:
            self._takers[group] = taker
        if against:
            self._against[group] = against
        if taker != took:
            self._candidates = None
            self._choices.clear()
        self._exchange_obstacles(stood_against, against)

    def answer(self, group: SetGroup, rank: int) -> tuple[Candidate | None, Sequence[Obstacle]]:
        """Return the group's first set that takes the shape, else what stands against it at all of them."""
        met = group.meeting(self.shape.family, insists=self.shape.insists)
        if isinstance(met, Obstacle):
            return None, (met,)
        if met.untried is not None and not self.shape.may_try:
            return None, (met.untried,)
        willing = group.willing(self.shape.family, met.prediction)
        needed_mib = self._needed_mib(met)
        against = []
        for held in willing:
            lack = self._lack_of_room(held, needed_mib)
            if lack is None:
                return Candidate(held, group, rank, met.prediction), ()
            against.append(lack)
        at_risk = willing.at_risk()
        if at_risk is not None:
            against.append(at_risk)
        return None, tuple(filters.nearest(against).values())

    def _exchange_obstacles(self, gone: Sequence[Obstacle], come: Sequence[Obstacle]) -> None:
        """Keep the nearest cases up to date; where one of them is gone they have to be found anew."""
        best = self._obstacles
        if best is not None:
            lost = any(best[obstacle.reason] == obstacle for obstacle in gone)
            self._obstacles = None if lost else filters.nearest((*best.values(), *come))

    def _needed_mib(self, met: Meeting) -> int | None:
        peak_mib = memory_peak_mib(self.shape.needs.gpu_memory_mib, met.solo)
        return None if peak_mib is None else peak_mib + self._cluster.facts.settings.memory_margin_mib

    def _lack_of_room(self, held: HeldSet, needed_mib: int | None) -> Obstacle | None:
        node = held.facts.placement.node
        return filters.host_memory(self.shape.needs, node, held.host_free_mib) or filters.memory(
            needed_mib, held.facts
        )

    def _beside(self, candidate: Candidate, barred: frozenset[str]) -> Candidate | None:
        """Return the candidate if none of its GPUs is barred, else the next of its group without any."""
        if barred.isdisjoint(candidate.held.facts.placement.gpu_uuids):
            return candidate
        met = candidate.group.meeting(self.shape.family, insists=self.shape.insists)
        if isinstance(met, Meeting):
            for held in candidate.group.willing(self.shape.family, met.prediction):
                clear = barred.isdisjoint(held.facts.placement.gpu_uuids)
                if clear and self._lack_of_room(held, self._needed_mib(met)) is None:
                    return replace(candidate, held=held)
        return None


def _order_of_candidate(candidate: Candidate) -> GroupOrder:
    return candidate.group.order
