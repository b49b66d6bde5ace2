"""Days in small: jobs come, the cycle decides, jobs end. No store, no sharing unless the policy shares."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.instruction import Launch, Plan
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import NodeState
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from airflow_provider_eaco.core.policy.rules_fair_share import decayed_s, team_of
from tests.builders import make_snapshot
from tests.invariants import check_plan


class Day:
    """Runs jobs that come at their ``queued_s`` and take ``run_s`` each, and remembers when they started."""

    def __init__(
        self,
        nodes: Sequence[NodeState],
        settings: PoolSettings,
        book: ProfileBook,
        run_s: Mapping[str, float],
    ) -> None:
        self.settings = settings
        self.starts_s: dict[str, float] = {}
        self.ends_s: dict[str, float] = {}
        self.plans: list[Plan] = []
        self._run_s = run_s
        self._snapshot = make_snapshot(*nodes, settings=settings, profiles=book, now_s=0.0)
        self._past: list[tuple[Job, float, float]] = []

    def go(self, jobs: Sequence[Job], until_s: float = math.inf) -> None:
        """Plan at every arrival and end until then; ends come before arrivals."""
        coming = sorted(jobs, key=lambda job: (job.queued_s, job.job_id))
        ends: list[tuple[float, str]] = []
        while coming or ends:
            now_s = min([job.queued_s for job in coming[:1]] + [end[0] for end in ends[:1]])
            if now_s > until_s:
                return
            self._snapshot = replace(self._snapshot, now_s=now_s)
            while ends and ends[0][0] <= now_s:
                self._release(heapq.heappop(ends)[1])
            while coming and coming[0].queued_s <= now_s:
                self._snapshot = replace(self._snapshot, waiting=(*self._snapshot.waiting, coming.pop(0)))
            for job in self._decide():
                self.ends_s[job.job_id] = now_s + self._run_s[job.job_id]
                heapq.heappush(ends, (self.ends_s[job.job_id], job.job_id))

    def _decide(self) -> list[Job]:
        pool = replace(self._snapshot.pool, past_gpu_s=self._past_gpu_s())
        snapshot = replace(self._snapshot, pool=pool)
        settings = self.settings
        plan = run_cycle(
            make_policy(settings), make_ordering(settings.ordering), snapshot, make_rules(settings)
        )
        check_plan(snapshot, plan)
        self.plans.append(plan)
        launches = [step for step in plan.instructions if isinstance(step, Launch)]
        for step in launches:
            self.starts_s[step.job.job_id] = snapshot.now_s
            self._snapshot = self._snapshot.with_launch(step.job, step.placement)
        newest = max([step.job.queued_s for step in launches], default=-math.inf)
        pool = self._snapshot.pool
        known = pool.newest_started_queued_s
        newest = newest if known is None else max(known, newest)
        self._snapshot = replace(
            self._snapshot,
            waiting=tuple(job for job in self._snapshot.waiting if job.job_id not in self.starts_s),
            pool=replace(pool, newest_started_queued_s=newest),
        )
        return [step.job for step in launches]

    def _release(self, job_id: str) -> None:
        nodes = {name: self._without(state, job_id) for name, state in self._snapshot.nodes.items()}
        self._snapshot = replace(self._snapshot, nodes=nodes)

    def _without(self, state: NodeState, job_id: str) -> NodeState:
        sets = []
        for held in state.sets:
            left = tuple(resident for resident in held.residents if resident.job.job_id != job_id)
            for resident in held.residents:
                if resident not in left:
                    self._past.append((resident.job, resident.granted_s, self._snapshot.now_s))
            if left:
                sets.append(replace(held, residents=left))
        if sets == list(state.sets):
            return state
        taken = {gpu.uuid for held in sets for gpu in held.gpus}
        free = tuple(gpu for gpu in state.node.gpus if gpu.uuid not in taken)
        return NodeState(state.node, tuple(sets), free)

    def _past_gpu_s(self) -> dict[str, float]:
        fair = self.settings.fair_share
        used: dict[str, float] = {}
        for job, begin_s, end_s in self._past:
            seconds = decayed_s(begin_s, end_s, self._snapshot.now_s, fair.half_life_s)
            team = team_of(job, fair.by)
            used[team] = used.get(team, 0.0) + job.request.gpus * seconds
        return used
