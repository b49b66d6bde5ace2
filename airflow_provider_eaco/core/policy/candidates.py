"""Candidates: what the held sets offer jobs of one shape, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.decision import Reason, SetPrediction
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.facts import memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle
from airflow_provider_eaco.core.policy.groups import GroupOrder, HeldSet, Meeting, SetGroup
from airflow_provider_eaco.core.policy.places import Cluster, Site


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
    group: SetGroup
    model_rank: int
    prediction: SetPrediction


class Offers:
    """The sets that take jobs of one shape; after a change only the groups that it touched are asked anew."""

    def __init__(self, shape: Shape, site: Site, cluster: Cluster) -> None:
        self.shape = shape
        self._site = site
        self._cluster = cluster
        self._seen = 0
        self._takers: dict[SetGroup, Candidate] = {}
        self._against: dict[SetGroup, Sequence[Obstacle]] = {}
        self._candidates: Sequence[Candidate] | None = None
        self._obstacles: dict[Reason, Obstacle] | None = None
        for group in cluster.groups(shape.needs.gpus):
            self._ask(group)
        self._seen = len(cluster.touched(shape.needs.gpus))

    def begin(self) -> None:
        """Begin a cycle that the cluster has begun."""
        self._seen = 0

    def sync(self) -> None:
        """Follow the cluster."""
        touched = self._cluster.touched(self.shape.needs.gpus)
        if self._seen != len(touched):
            for group in dict.fromkeys(touched[self._seen :]):
                self._ask(group)
            self._seen = len(touched)

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

    def obstacles(self) -> dict[Reason, Obstacle]:
        """Return for each reason that keeps the shape from a set the nearest case.

        That sets are full is a reason only where all are.
        """
        if self._obstacles is None:
            self._obstacles = filters.nearest(
                obstacle for against in self._against.values() for obstacle in against
            )
        best = self._obstacles
        if Reason.RESIDENT_LIMIT in best and (
            self._takers or len(best) > 1 or not self._cluster.all_open(self.shape.needs.gpus)
        ):
            best = {
                reason: obstacle for reason, obstacle in best.items() if reason is not Reason.RESIDENT_LIMIT
            }
        return best

    def _ask(self, group: SetGroup) -> None:
        """Ask the group's sets in order, until one has the room and residents that bear it."""
        self._candidates = self._obstacles = None
        self._takers.pop(group, None)
        self._against.pop(group, None)
        rank = self._site.rank(group.kind.model)
        if rank is None or not group.sets:
            return
        met = group.meeting(self.shape.family, insists=self.shape.insists)
        if isinstance(met, Obstacle):
            self._against[group] = (met,)
        elif met.untried is not None and not self.shape.may_try:
            self._against[group] = (met.untried,)
        else:
            self._ask_sets(group, met, rank)

    def _ask_sets(self, group: SetGroup, met: Meeting, rank: int) -> None:
        willing = group.willing(self.shape.family, met.prediction)
        against = [] if willing.at_risk is None else [willing.at_risk]
        for held in willing.sets:
            obstacle = self._lack_of_room(held, met)
            if obstacle is None:
                self._takers[group] = Candidate(held, group, rank, met.prediction)
                return
            against.append(obstacle)
        self._against[group] = against

    def _lack_of_room(self, held: HeldSet, met: Meeting) -> Obstacle | None:
        needs, settings = self.shape.needs, self._cluster.facts.settings
        peak_mib = memory_peak_mib(needs.gpu_memory_mib, met.solo)
        needed_mib = None if peak_mib is None else peak_mib + settings.memory_margin_mib
        return filters.host_memory(needs, held.facts.placement.node, held.host_free_mib) or filters.memory(
            needed_mib, held.facts
        )

    def _beside(self, candidate: Candidate, barred: frozenset[str]) -> Candidate | None:
        """Return the candidate if none of its GPUs is barred, else the next of its group without any."""
        if barred.isdisjoint(candidate.held.facts.placement.gpu_uuids):
            return candidate
        met = candidate.group.meeting(self.shape.family, insists=self.shape.insists)
        if isinstance(met, Meeting):
            for held in candidate.group.willing(self.shape.family, met.prediction).sets:
                clear = barred.isdisjoint(held.facts.placement.gpu_uuids)
                if clear and self._lack_of_room(held, met) is None:
                    return replace(candidate, held=held)
        return None


def _order_of_candidate(candidate: Candidate) -> GroupOrder:
    return candidate.group.order
