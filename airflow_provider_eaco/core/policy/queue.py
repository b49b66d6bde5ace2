"""The queue of a cycle: where rules and ordering meet (ADR 0009)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.decision import Finding
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Agenda, as_planning
from airflow_provider_eaco.core.policy.base import Ordering
from airflow_provider_eaco.core.policy.ordering import fifo_key
from airflow_provider_eaco.core.policy.rules import Rule


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting jobs in the order in which they are looked at.

    ``refused``: by job id, why a rule lets them not start now. ``promised``: ids of those that get
    reservations; they stand first. ``offers``: a plan's starts of the present step, ``None`` without a plan.
    """

    jobs: tuple[Job, ...]
    refused: Mapping[str, Finding] = field(default_factory=dict)
    promised: frozenset[str] = frozenset()
    offers: Mapping[str, Placement] | None = None


def line_up(ordering: Ordering, rules: Sequence[Rule], snapshot: ClusterSnapshot) -> Queue:
    """Return the queue: promised jobs as they came, then the rest as ordering and rules rank it.

    Refused jobs stand last: they take nobody's place.
    """
    waiting = snapshot.waiting
    if not waiting:
        return Queue(())
    if not rules:
        return _ranked(ordering, (), waiting, (), snapshot)
    refused: dict[str, Finding] = {}
    for rule in rules:
        refused.update(rule.refusals(waiting, snapshot))
    able = [job for job in waiting if job.job_id not in refused]
    promised = frozenset[str]().union(*(rule.promised(able, snapshot) for rule in rules))
    ahead = sorted((job for job in able if job.job_id in promised), key=_by_age)
    rest = [job for job in able if job.job_id not in promised]
    queue = _ranked(ordering, ahead, rest, rules, snapshot)
    last = sorted((job for job in waiting if job.job_id in refused), key=fifo_key)
    return replace(queue, jobs=(*queue.jobs, *last), refused=refused, promised=promised)


def _ranked(
    ordering: Ordering,
    ahead: Sequence[Job],
    rest: Sequence[Job],
    rules: Sequence[Rule],
    snapshot: ClusterSnapshot,
) -> Queue:
    original = {job.job_id: job for job in (*ahead, *rest)}
    aged = [_aged(job, rules, snapshot.now_s) for job in rest] if rules else rest
    fixed = _reranked(ordering, rules, aged, snapshot)
    planning = as_planning(ordering)
    if planning is not None:
        first, free_order = ((*ahead, *fixed), ()) if fixed is not None else (ahead, aged)
        agenda: Agenda = planning.plan(first, free_order, snapshot)
        return Queue(tuple(original[job.job_id] for job in agenda.order), offers=agenda.offers)
    ranked = ordering.order(aged, snapshot) if fixed is None else fixed
    return Queue((*ahead, *(original[job.job_id] for job in ranked)))


def _reranked(
    ordering: Ordering, rules: Sequence[Rule], jobs: Sequence[Job], snapshot: ClusterSnapshot
) -> Sequence[Job] | None:
    for rule in rules:
        fixed = rule.rerank(jobs, snapshot, lambda part: ordering.order(part, snapshot))
        if fixed is not None:
            return fixed
    return None


def _aged(job: Job, rules: Sequence[Rule], now_s: float) -> Job:
    priority = max((rule.aged_priority(job, now_s) for rule in rules), default=job.priority)
    return job if priority == job.priority else replace(job, priority=priority)


def _by_age(job: Job) -> tuple[object, ...]:
    return job.queued_s, fifo_key(job)
