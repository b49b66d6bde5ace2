"""EaCO (arXiv 2412.08294): let jobs share GPUs where that saves energy and breaks nobody's limit.

The paper's open points are closed in ADR 0005. The first epoch of every co-allocation is a trial
(:mod:`~airflow_provider_eaco.core.policy.trial`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    Verdict,
    hold,
    reject,
)
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.candidates import Candidate, Offers, Shape
from airflow_provider_eaco.core.policy.cluster import Cluster
from airflow_provider_eaco.core.policy.facts import CycleFacts, exclusive_because
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.places import FreePlace, Kept, Site
from airflow_provider_eaco.core.policy.reviews import Reviews


class EacoPolicy:
    """The paper's ``Schedule(j)`` for one kind of job, and its early-stage observation."""

    shares = True
    sets_alone = True

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._view: _View | None = None
        self._reviews = Reviews()

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        kind = job.kind
        view = self._view_of(snapshot)

        # 1. What keeps the job from every GPU.
        refusal = _refuse(
            filters.airflow_pool(kind, snapshot.pool), filters.hold_mark(kind), filters.no_worker(snapshot)
        )
        if refusal is not None:
            return refusal
        site = view.site(Needs.of(kind.request))
        if not site.scopes:
            return hold(filters.no_such_gpu(site.needs, snapshot, view.facts))
        refusal = _refuse(filters.deadline(kind, site.scopes, view.facts))
        if refusal is not None:
            return refusal

        # 2. FindCandidates: free GPUs, and sets that it may join.
        free, kept = site.pick(snapshot)
        alone = exclusive_because(job, self._settings) if self.shares else "the pool's policy never shares"
        offers = None if alone else view.offers(Shape.of(kind.request, kind.progress.can_yield), site)

        # 3. The busiest set that keeps the job's own limits.
        joined, too_slow = (None, None) if offers is None else offers.busiest(kind, snapshot.barred)

        # 4. Sets before free GPUs in a packing pool; a preferred GPU model before either.
        if joined is not None and (free is None or self._joins_first(joined, free)):
            return self._admit_to_set(joined)
        if free is not None:
            return self._admit_alone(free)

        # 5. No candidate: hold with all reasons; nothing is preempted.
        obstacles = [*site.trouble(), *site.short_of_host_memory()]
        if offers is not None:
            obstacles += offers.obstacles().values()
        sharing = alone or view.cluster.sharing(site.needs.gpus)
        findings = [obstacle.finding for obstacle in filters.nearest(obstacles).values()]
        findings += [] if too_slow is None else [too_slow]
        return hold(*findings, _no_free_gpus(site, kept, sharing))

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        return self._reviews.review(held, snapshot)

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        return self._reviews.all_due(snapshot)

    def _view_of(self, snapshot: ClusterSnapshot) -> _View:
        view, settings = self._view, snapshot.pool.settings
        if view is None or (view.facts.settings is not settings and view.facts.settings != settings):
            view = self._view = _View(snapshot, shares=self.shares)
        view.follow(snapshot)
        return view

    def _joins_first(self, joined: Candidate, free: FreePlace) -> bool:
        if joined.model_rank != free.model_rank:
            return joined.model_rank < free.model_rank
        return self._settings.spreading is Spreading.PACK

    def _admit_to_set(self, joined: Candidate) -> AdmissionDecision:
        busy_pct = joined.group.utilisation_pct
        shown = "utilisation unknown" if busy_pct is None else f"{busy_pct:.0f} %"
        return AdmissionDecision(
            Verdict.ADMIT,
            placement=joined.held.facts.placement,
            co_residents=joined.held.facts.job_ids,
            prediction=joined.prediction,
            choice=f"{self._settings.spreading}: the busiest set that fits ({shown})",
        )

    def _admit_alone(self, free: FreePlace) -> AdmissionDecision:
        which = "fewest" if self._settings.spreading is Spreading.PACK else "most"
        choice = f"{self._settings.spreading}: of the fitting nodes the one with the {which} free GPUs"
        return AdmissionDecision(Verdict.ADMIT, placement=free.placement, choice=choice)


# With more sites and offers than this it is looked every cycle for some to drop.
_MANY = 1000


class _View:
    """What a policy has derived from snapshots with the same settings; it holds no decision.

    It follows the snapshots; what nobody has asked for, for so long that it cannot follow, is dropped.
    """

    def __init__(self, snapshot: ClusterSnapshot, *, shares: bool) -> None:
        self.facts = CycleFacts(snapshot)
        self.cluster = Cluster(self.facts, shares=shares)
        self._sites: dict[Needs, Site] = {}
        self._offers: dict[Shape, Offers] = {}

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Be about this snapshot; another instant or other readings begin another cycle."""
        if not self.facts.are_of(snapshot):
            self._begin(snapshot)
        self.cluster.sync(snapshot.nodes)

    def site(self, needs: Needs) -> Site:
        site = self._sites.get(needs)
        if site is None or not site.can_follow:
            site = self._sites[needs] = Site(needs, self.cluster)
        site.sync()
        return site

    def offers(self, shape: Shape, site: Site) -> Offers:
        offers = self._offers.get(shape)
        if offers is None or not offers.can_follow:
            offers = self._offers[shape] = Offers(shape, site, self.cluster)
        offers.sync()
        return offers

    def _begin(self, snapshot: ClusterSnapshot) -> None:
        read_anew = self.facts.readings != snapshot.readings
        self.facts.move_to(snapshot)
        self.cluster.begin(read_anew=read_anew)
        # Of a set that is predicted otherwise the cluster tells those who meet it.
        changed = self.facts.changed.families
        if changed or len(self._sites) + len(self._offers) > _MANY:
            self._sites = {
                needs: site
                for needs, site in self._sites.items()
                if site.can_follow and needs.sized_by not in changed
            }
            self._offers = {
                shape: offers
                for shape, offers in self._offers.items()
                if offers.can_follow and shape.family not in changed
            }


def _no_free_gpus(site: Site, kept: Kept, sharing: str) -> Finding:
    if kept.free:
        wanted = f"{kept.wanted} GPUs on one node" if kept.wanted else "its planned start"
        return Finding(Reason.RESERVED_FOR_EARLIER_JOB, {"free": kept.free, "wanted": wanted})
    numbers = {"wanted": site.needs.gpus, "free": site.free_best(), "sharing": sharing}
    return Finding(Reason.WAITING_FOR_GPU, numbers)


# Nothing can make these fit; what else keeps a job from every GPU may change.
_FINAL = frozenset({Reason.EXCEEDS_POOL, Reason.DEADLINE_UNREACHABLE})


def _refuse(*found: Finding | None) -> AdmissionDecision | None:
    findings: Iterable[Finding] = [finding for finding in found if finding is not None]
    if not findings:
        return None
    final = any(finding.reason in _FINAL for finding in findings)
    return reject(*findings) if final else hold(*findings)
