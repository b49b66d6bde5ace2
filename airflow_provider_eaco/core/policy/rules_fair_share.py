"""Fair share: the team that has used least in relation to its share comes first; quotas, and borrowing."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from airflow_provider_eaco.core.model.decision import Finding, Reason
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings, TeamSource
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.rules import Rank, Rule

# What a job is charged when it is ranked, in seconds on each of its GPUs: enough to let the next team in.
_CHARGE_S = 3600.0
_HOUR_S = 3600.0
_NO_BUNDLE = "(no bundle)"


class FairShareRule(Rule):
    """Ranks team by team, each team's own jobs as the pool's ordering ranks them."""

    needs_past = True

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        fair = settings.fair_share
        self._by = fair.by
        self._shares = dict(fair.shares)
        self._quotas_gpu_s = {team: hours * _HOUR_S for team, hours in fair.quotas_gpu_h}

    def refusals(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> Mapping[str, Finding]:
        """Return the jobs of teams beyond their quota, where nothing may be borrowed."""
        if self.settings.fair_share.borrowing or not self._quotas_gpu_s:
            return {}
        used_gpu_s = used_by_team(snapshot)
        return {
            job.job_id: self._over_quota(team, used_gpu_s[team])
            for job in jobs
            if self._is_over(team := team_of(job, self._by), used_gpu_s)
        }

    def rerank(self, jobs: Sequence[Job], snapshot: ClusterSnapshot, rank: Rank) -> Sequence[Job]:
        """Return the jobs, always that of the team next which has had least of its share so far.

        What is ranked counts as had. Teams beyond their quota come after all others.
        """
        of_team: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            of_team[team_of(job, self._by)].append(job)
        used_gpu_s = used_by_team(snapshot)
        heap = []
        for team in sorted(of_team):
            had = used_gpu_s.get(team, 0.0) / self._share(team)
            heap.append((self._is_over(team, used_gpu_s), had, team, iter(rank(of_team[team]))))
        heapq.heapify(heap)
        queue: list[Job] = []
        while heap:
            is_over, had, team, rest = heap[0]
            following = next(rest, None)
            if following is None:
                heapq.heappop(heap)
                continue
            queue.append(following)
            had += following.request.gpus * _CHARGE_S / self._share(team)
            heapq.heapreplace(heap, (is_over, had, team, rest))
        return queue

    def _share(self, team: str) -> float:
        return self._shares.get(team, 1.0)

    def _is_over(self, team: str, used_gpu_s: Mapping[str, float]) -> bool:
        quota_gpu_s = self._quotas_gpu_s.get(team)
        return quota_gpu_s is not None and used_gpu_s.get(team, 0.0) >= quota_gpu_s

    def _over_quota(self, team: str, used_gpu_s: float) -> Finding:
        used_h, quota_h = used_gpu_s / _HOUR_S, self._quotas_gpu_s[team] / _HOUR_S
        return Finding(Reason.OVER_QUOTA, {"team": team, "used": used_h, "quota": quota_h})


def team_of(job: Job, by: TeamSource) -> str:
    """Return the job's team: what the administrator's setting says, never what the request says."""
    return team_named(by, job.pool, job.bundle, job.order.dag_id)


def team_named(by: TeamSource, pool: str, bundle: str | None, dag_id: str) -> str:
    """Return the team of who comes from this Airflow pool, DAG bundle and DAG."""
    if by is TeamSource.POOL:
        return pool
    if by is TeamSource.DAG:
        return dag_id
    return _NO_BUNDLE if bundle is None else bundle


def used_by_team(snapshot: ClusterSnapshot) -> dict[str, float]:
    """Return the decayed GPU seconds of every team: ended leases, and residents up to now.

    Residents that share GPUs share their seconds.
    """
    fair, now_s = snapshot.pool.settings.fair_share, snapshot.now_s
    used: dict[str, float] = defaultdict(float, snapshot.pool.past_gpu_s)
    for name in sorted(snapshot.nodes):
        for held in snapshot.nodes[name].sets:
            gpus, members = len(held.gpus), len(held.residents)
            for resident in held.residents:
                since_s, before_s = resident.charged_since_s, resident.charged_s
                own_s = charged_s(resident.granted_s, since_s, before_s, now_s, fair.half_life_s)
                own_s += decayed_s(since_s, now_s, now_s, fair.half_life_s) / members
                used[team_of(resident.job, fair.by)] += gpus * own_s
    return used


def charged_s(begin_s: float, end_s: float, total_s: float, now_s: float, half_life_s: float) -> float:
    """Return ``total_s`` seconds, spread evenly between the instants, as they count at ``now_s``."""
    if end_s <= begin_s:
        return 0.0
    return total_s / (end_s - begin_s) * decayed_s(begin_s, end_s, now_s, half_life_s)


def decayed_s(begin_s: float, end_s: float, now_s: float, half_life_s: float) -> float:
    """Return the seconds between the instants as they count at ``now_s``: half for each half-life ago."""
    if end_s <= begin_s:
        return 0.0
    rate = math.log(2) / half_life_s
    return (math.exp(-rate * (now_s - end_s)) - math.exp(-rate * (now_s - begin_s))) / rate
