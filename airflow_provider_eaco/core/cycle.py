"""One admission cycle: a snapshot in, a plan out. A reader learns the system from ``run_cycle``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict, hold
from airflow_provider_eaco.core.model.instruction import Confirm, Instruction, Plan, Yield
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.base import (
    AdmissionPolicy,
    Ordering,
    Review,
    Steering,
    as_steering,
    as_watching,
)
from airflow_provider_eaco.core.policy.bookings import next_edge_s
from airflow_provider_eaco.core.policy.line import Line
from airflow_provider_eaco.core.policy.queue import Queue, line_up
from airflow_provider_eaco.core.policy.rules import Judge, Rule


def run_cycle(
    policy: AdmissionPolicy, ordering: Ordering, snapshot: ClusterSnapshot, rules: Sequence[Rule] = ()
) -> Plan:
    """Return what has to be done for one pool at ``snapshot.now_s``, and why everybody else waits.

    The same snapshot gives the same plan. Instructions stand in the order in which they have to be applied.
    """
    # 1. Review the sets that share GPUs: confirm, undo, or go on watching.
    reviews, present = _review(policy, snapshot)
    # 2. Line the jobs up: rules refuse and age, the ordering ranks or plans, rules bound it.
    queue = line_up(ordering, rules, present)
    if as_steering(policy) is not None:
        # Who was asked to move has its run interrupted until it is placed again.
        queue = replace(queue, jobs=tuple(sorted(queue.jobs, key=lambda job: not job.progress.units_done)))
    line = Line(policy, ordering, queue, _without_refused(present, queue))
    judges = _judges(rules, line)
    for job in queue.jobs:
        kind = job.kind
        if job.job_id in queue.refused:
            line.refuse(job, kind, hold(queue.refused[job.job_id]))
            continue
        # 3. Ask the policy, once for each kind of job and what is barred from it: later launches and promises
        #    only take places away from the kinds that were held before.
        decision = line.ask(job, kind)
        if judges and decision.verdict is Verdict.ADMIT:
            decision = _judged(judges, job, decision, line)
        if decision.verdict is Verdict.ADMIT:
            # 4. Place it; the next in line sees the cluster with this job on it.
            line.launch(job, decision)
        else:
            # 5. Hold or reject it, and keep for those that wait for GPUs what ordering and rules say.
            line.hold(job, kind, decision)
    # 6. Ask what is to be done to nodes and power limits, now that it is known who runs where.
    steering = _steering(policy, line, queue)
    # 7. One decision a kind, in queue order.
    return Plan(
        pool=snapshot.pool.settings.name,
        now_s=snapshot.now_s,
        instructions=(*reviews, *line.launches, *steering.instructions),
        decisions=line.decisions(),
        order=tuple(job.job_id for job in queue.jobs),
        look_again_s=_look_again_s(rules, steering, present),
    )


def _judges(rules: Sequence[Rule], line: Line) -> list[Judge]:
    asked = (rule.judge(line.snapshot, line.keeping) for rule in rules)
    return [judge for judge in asked if judge is not None]


def _judged(judges: Sequence[Judge], job: Job, decision: AdmissionDecision, line: Line) -> AdmissionDecision:
    """Return the admission, or the hold of the first judge that lets the job not start.

    Who may not have GPUs of its own is asked about once more for a set to join, which takes less.
    """
    judged = _by_all(judges, job, decision, line)
    if judged.verdict is not Verdict.ADMIT and not decision.co_residents:
        joined = line.ask_to_join(job)
        if joined.verdict is Verdict.ADMIT:
            again = _by_all(judges, job, joined, line)
            judged = again if again.verdict is Verdict.ADMIT else judged
    if judged.verdict is not Verdict.ADMIT:
        line.remember(job, judged)
    return judged


def _by_all(judges: Sequence[Judge], job: Job, decision: AdmissionDecision, line: Line) -> AdmissionDecision:
    for judge in judges:
        decision = judge.judged(job, decision, line.snapshot)
        if decision.verdict is not Verdict.ADMIT:
            break
    return decision


def _without_refused(present: ClusterSnapshot, queue: Queue) -> ClusterSnapshot:
    """Return what the policy sees: who may not start now is nobody to leave a place to."""
    if not queue.refused:
        return present
    return replace(present, waiting=tuple(job for job in present.waiting if job.job_id not in queue.refused))


def _look_again_s(rules: Sequence[Rule], steering: Steering, snapshot: ClusterSnapshot) -> float | None:
    looks = [steering.look_again_s]
    if snapshot.waiting:
        looks += [rule.look_again_s(snapshot) for rule in rules]
        looks.append(next_edge_s(snapshot))
    return min((at_s for at_s in looks if at_s is not None), default=None)


def _steering(policy: AdmissionPolicy, line: Line, queue: Queue) -> Steering:
    steering = as_steering(policy)
    if steering is None:
        return Steering()
    gone = {launch.job.job_id for launch in line.launches} | queue.refused.keys()
    waiting = tuple(job for job in queue.jobs if job.job_id not in gone)
    return steering.steer(replace(line.snapshot, waiting=waiting, kept_nodes={}))


def _review(policy: AdmissionPolicy, snapshot: ClusterSnapshot) -> tuple[list[Instruction], ClusterSnapshot]:
    """Return the reviews of all sets, and the snapshot in which they have been carried out."""
    reviews: list[Instruction] = []
    present = snapshot
    watching = as_watching(policy)
    due = _all_due(policy, snapshot) if watching is None else watching.all_due(snapshot)
    for held, review in due:
        reviews.append(review)
        present = present.with_set(held, _reviewed(held, review))
    return reviews, present


def _all_due(policy: AdmissionPolicy, snapshot: ClusterSnapshot) -> Iterator[tuple[GpuSet, Review]]:
    for name in sorted(snapshot.nodes):
        for held in snapshot.nodes[name].shared_sets:
            review = policy.review(held, snapshot)
            if review is not None:
                yield held, review


def _reviewed(held: GpuSet, review: Review) -> GpuSet:
    def after(resident: Resident) -> Resident:
        if isinstance(review, Yield):
            leaves = resident.job.job_id == review.job_id
            return replace(resident, state=LeaseState.YIELDING) if leaves else resident
        state = LeaseState.CONFIRMED if isinstance(review, Confirm) else LeaseState.UNCONFIRMED
        return replace(resident, state=state)

    return replace(held, residents=tuple(after(resident) for resident in held.residents))
