"""Rules: what holds under any ordering and any policy (ADR 0009).

A rule may *refuse* jobs before the policy is asked, *age* them (change the priority that orderings see),
*promise* them reservations, *re-rank* what the ordering ranked, or *judge* the placements that the policy
chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Keeping

Rank = Callable[[Sequence[Job]], Sequence[Job]]


class Judge(Protocol):
    """Judges the admissions of one cycle in their order."""

    def judged(self, job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot) -> AdmissionDecision:
        """Return the admission as it stands, with notes, or a hold in its place.

        :param snapshot: the cluster in which the job would be placed.
        """


class Rule:
    """A rule that changes nothing; each rule overrides what it is there for.

    ``needs_past`` tells whether it looks at what the pool's state says of leases that have ended.
    """

    needs_past = False

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings

    def refusals(self, _jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> Mapping[str, Finding]:
        """Return, by job id, why jobs may not start now, whatever the policy would say."""
        return {}

    def aged_priority(self, job: Job, _now_s: float) -> int:
        """Return the priority that orderings see."""
        return job.priority

    def promised(self, _jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> frozenset[str]:
        """Return the ids of those that get reservations, ahead of all who have none."""
        return frozenset()

    def rerank(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot, _rank: Rank) -> Sequence[Job] | None:
        """Return the queue if the rule decides it, asking ``rank`` for parts of it; ``None``: it does not."""
        del jobs
        return None

    def judge(self, _snapshot: ClusterSnapshot, _keeping: Keeping) -> Judge | None:
        """Return who judges the admissions of the cycle that begins with this snapshot, if anybody does.

        :param keeping: what the ordering keeps from later jobs.
        """
        return None

    def look_again_s(self, _snapshot: ClusterSnapshot) -> float | None:
        """Return when who waits has to be looked at again though nothing happens until then."""
        return None


class ReserveRule(Rule):
    """A job that was passed over gets a reservation: somebody who was queued after it has been started.

    Promised jobs are served in the order in which they were first queued, whatever the ordering says, and no
    later job delays them. A job may be passed over for ``reserve_after_s`` before it is promised anything.
    """

    needs_past = True

    def promised(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> frozenset[str]:
        newest_s = _newest_started_queued_s(snapshot)
        before_s = min(newest_s, snapshot.now_s - self.settings.reserve_after_s)
        return frozenset(job.job_id for job in jobs if job.queued_s < newest_s and job.queued_s <= before_s)


class AgeingRule(Rule):
    """Every ``ageing_s`` of waiting is worth one point of priority.

    A job of priority p is passed at most by jobs that come within ``(P - p) * ageing_s`` after it, P being
    the highest priority in use, and within one step more, since points are whole.
    """

    def aged_priority(self, job: Job, now_s: float) -> int:
        return job.priority + int(max(0.0, now_s - job.queued_s) // self.settings.ageing_s)


def _newest_started_queued_s(snapshot: ClusterSnapshot) -> float:
    """Return when the newest of all jobs that were started here had been queued, as far as is known."""
    residents = (
        resident.job.queued_s
        for state in snapshot.nodes.values()
        for held in state.sets
        for resident in held.residents
    )
    known = snapshot.pool.newest_started_queued_s
    return max(residents, default=-math.inf) if known is None else max(known, max(residents, default=known))
