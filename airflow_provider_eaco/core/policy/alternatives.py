"""Alternatives of a decision, found again from the snapshot when somebody wants to know.

Nothing of it is computed in a cycle: a decision is explained when it is stored, or when it is asked for. The
figures are those of the pool's predictor; why a policy preferred one of several that fit is its own sentence.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_provider_eaco.core.energy.objective import join_energy
from airflow_provider_eaco.core.energy.outlook import units_left
from airflow_provider_eaco.core.model.alternative import Alternative, Way, shown_mj
from airflow_provider_eaco.core.model.decision import AdmissionDecision, SetPrediction
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.job import JobKind, Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import FamilySet, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.base import AdmissionPolicy
from airflow_provider_eaco.core.policy.candidates import Candidate, Offers, Shape
from airflow_provider_eaco.core.policy.cluster import Cluster
from airflow_provider_eaco.core.policy.facts import CycleFacts, exclusive_because
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.groups import SetGroup
from airflow_provider_eaco.core.policy.places import Site

# Of a decision with more alternatives the best are kept.
MOST = 5


class Explainer:
    """Explains the decisions of one plan; what is asked for last is no more work than the first.

    :param snapshot: what the plan was made from.
    """

    def __init__(self, policy: AdmissionPolicy, snapshot: ClusterSnapshot, plan: Plan) -> None:
        self._shares = getattr(policy, "shares", True)
        self._plan = plan
        self._begun = snapshot
        # After so many of the plan's launches.
        self._after = [snapshot]
        self._sites: dict[Needs, Site] = {}
        self._offers_of: dict[Shape, Offers] = {}

    def alternatives(self, item: KindDecision) -> tuple[Alternative, ...]:
        """Return the best ways for the jobs of this decision to run: what was taken, what fits, the rest."""
        seen = self._seen_by(item)
        self._cluster.sync(seen.nodes)
        shape = Shape.of(item.kind.request, item.kind.progress.can_yield)
        site = self._site(shape.needs)
        return _Case(self._cluster, site, self._offers(shape, site), seen, item, self._shares).alternatives()

    def _site(self, needs: Needs) -> Site:
        site = self._sites.get(needs)
        if site is None or not site.can_follow:
            site = self._sites[needs] = Site(needs, self._cluster)
        site.sync()
        return site

    def _offers(self, shape: Shape, site: Site) -> Offers:
        offers = self._offers_of.get(shape)
        if offers is None or not offers.can_follow:
            offers = self._offers_of[shape] = Offers(shape, site, self._cluster)
        offers.sync()
        return offers

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(CycleFacts(self._begun))

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {job_id: place for place, job_id in enumerate(self._plan.order)}

    def _seen_by(self, item: KindDecision) -> ClusterSnapshot:
        """Return the cluster as it was when the first of the jobs was looked at."""
        rank = min((self._rank[job_id] for job_id in item.job_ids if job_id in self._rank), default=0)
        before = bisect_left(self._launches, rank, key=self._rank_of)
        while len(self._after) <= before:
            step = self._launches[len(self._after) - 1]
            self._after.append(self._after[-1].with_launch(step.job, step.placement))
        return self._after[before]

    def _rank_of(self, step: Launch) -> int:
        return self._rank.get(step.job.job_id, 0)

    @cached_property
    def _launches(self) -> list[Launch]:
        return sorted(
            (each for each in self._plan.instructions if isinstance(each, Launch)), key=self._rank_of
        )


@dataclass
class _Case:
    """One decision in the cluster in which it was made."""

    cluster: Cluster
    site: Site
    offers: Offers
    snapshot: ClusterSnapshot
    item: KindDecision
    shares: bool

    def __post_init__(self) -> None:
        self.facts = self.cluster.facts
        self.kind: JobKind = self.item.kind
        self.decision: AdmissionDecision = self.item.decision
        self.progress: Progress = _progress_of(self.item, self.snapshot)
        self.needs = self.site.needs

    def alternatives(self) -> tuple[Alternative, ...]:
        taken = self._taken()
        found = [] if taken is None else [taken]
        others = [other for other in self._others() if taken is None or not _same(other, taken)]
        found += [self._against(other, taken) for other in sorted(others, key=_order)]
        return tuple(found[:MOST])

    def _taken(self) -> Alternative | None:
        placement, decision = self.decision.placement, self.decision
        if placement is None:
            return None
        there = self.snapshot.nodes[placement.node]
        for held in there.sets:
            if held.placement == placement:
                return self._join(
                    family_set(held.families), held.gpus[0].model, placement, decision.prediction
                )
        models = [gpu.model for gpu in there.node.gpus if gpu.uuid in placement.gpu_uuids]
        return self._alone(models[0] if models else "", placement)

    def _others(self) -> Iterator[Alternative]:
        free, kept = self.site.pick(replace(self.snapshot, offered=None))
        if free is not None:
            yield self._alone(free.order[3], free.placement)
        else:
            models = [model for model, _ in self.site.scopes]
            lost = "no node has as many GPUs free"
            if kept.free:
                lost = f"{kept.free} free GPUs are kept for somebody else"
            if models:
                yield replace(self._alone(models[0], None), lost=lost)
        for group in self.cluster.groups(self.needs.gpus):
            if group.sets and self.site.rank(group.kind.model) is not None:
                yield self._set(group)
        closed = [*self._closed()]
        if closed:
            yield Alternative(Way.CLOSED, lost=", ".join(closed))

    def _closed(self) -> Iterator[str]:
        gpus = self.needs.gpus
        if not self.cluster.all_open(gpus):
            yield self.cluster.sharing(gpus)
        if self.cluster.full(gpus):
            yield "some have all the residents that they may have"

    def _set(self, group: SetGroup) -> Alternative:
        rank = self.site.rank(group.kind.model) or 0
        taker, against = self.offers.answer(group, rank)
        held = group.sets[0] if taker is None else taker.held
        families = family_set((*group.kind.families, self.kind.request.family))
        seen = self.facts.predict(families, group.kind.model, group.kind.gpus)
        found = self._join(group.kind.families, group.kind.model, held.facts.placement, seen)
        if taker is None:
            best = min(filters.nearest(against).values(), key=lambda each: each.reason.severity, default=None)
            return replace(found, lost="it takes nobody" if best is None else best.finding.text)
        return replace(found, lost=self._beyond_own_limits(taker))

    def _beyond_own_limits(self, taker: Candidate) -> str:
        kind, prediction = taker.group.kind, taker.prediction
        undone = prediction.undone > 0
        bears = filters.own_tolerance(self.kind, kind.model, kind.time_scale, undone, self.facts)
        slowdown = prediction.slowdowns[self.kind.request.family]
        if bears is not None and slowdown <= bears:
            return ""
        return filters.own_limit_broken(slowdown, bears, prediction).text

    def _alone(self, model: str, placement: Placement | None) -> Alternative:
        request = self.kind.request
        solo = self.facts.book.solo_of(request.family, model, request.gpus)
        if solo is None or solo.power_w is None or solo.unit_s is None:
            return Alternative(Way.ALONE, placement=placement, slowdown=1.0)
        left = units_left(self.progress, solo)
        energy_j = solo.power_w * solo.unit_s * (1 if left is None else left)
        return Alternative(Way.ALONE, (), placement, 1.0, energy_j, per_unit=left is None)

    def _join(
        self, residents: FamilySet, model: str, placement: Placement, after: SetPrediction | None
    ) -> Alternative:
        request = self.kind.request
        solo = self.facts.book.fresh_solo_of(request.family, model, request.gpus)
        before = self.facts.predict(residents, model, request.gpus)
        slowdown = None if after is None else after.slowdowns.get(request.family)
        found = Alternative(Way.JOIN, tuple(residents), placement, slowdown)
        if solo is None or before is None or after is None:
            return found
        left = units_left(self.progress, solo)
        energy = join_energy(solo, residents, before, after, 1.0 if left is None else left)
        return replace(found, energy_j=None if energy is None else energy.shared_j, per_unit=left is None)

    def _against(self, other: Alternative, taken: Alternative | None) -> Alternative:
        """Return the alternative with what spoke against it, if it would have been possible."""
        if other.lost:
            return other
        if other.way is Way.JOIN and not self.shares:
            return replace(other, lost=f"policy {self.facts.settings.policy} shares no GPUs")
        alone = exclusive_because(self.kind, self.facts.settings)
        if other.way is Way.JOIN and alone is not None:
            return replace(other, lost=alone)
        if taken is not None:
            return replace(other, lost=_compared(other, taken, self.decision.choice))
        held = self.decision.reason
        why = "the decision says" if held is None else f"it would fit; the task waits for {held.code}"
        return replace(other, lost=why)


def _progress_of(item: KindDecision, snapshot: ClusterSnapshot) -> Progress:
    """Return the progress of the one job meant; jobs of a kind may differ in the length of their runs."""
    if len(item.job_ids) == 1:
        for job in snapshot.waiting:
            if job.job_id == item.job_ids[0]:
                return job.progress
    return item.kind.progress


def _compared(other: Alternative, taken: Alternative, choice: str) -> str:
    if other.energy_j is None or taken.energy_j is None or other.per_unit != taken.per_unit:
        return f"the policy chose by its own rule ({choice})"
    more_j = other.energy_j - taken.energy_j
    if more_j >= 0:
        return f"it takes {shown_mj(more_j)} more"
    return f"it takes {shown_mj(-more_j)} less, and the policy chose by its own rule ({choice})"


def _same(one: Alternative, other: Alternative) -> bool:
    """Tell whether these are the same way: sets of equal families are alike, wherever they are."""
    return one.way is other.way and one.families == other.families


def _order(found: Alternative) -> tuple[bool, bool, float, tuple[str, ...]]:
    """Return what ranks alternatives: what fits first, sets that take nobody last, then the least joules."""
    energy_j = math.inf if found.energy_j is None else found.energy_j
    return found.way is Way.CLOSED, bool(found.lost), energy_j, found.families
