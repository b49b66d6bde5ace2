"""One admission cycle: a snapshot in, a plan out. A reader learns the system from ``run_cycle``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, Verdict, reject
from airflow_provider_eaco.core.model.instruction import (
    Confirm,
    Instruction,
    KindDecision,
    Launch,
    Plan,
    Yield,
)
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.base import AdmissionPolicy, Ordering, Review
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.filters import Needs, nodes_that_could_serve

# A job held for one of these gets no GPUs however many become free, so none are kept for it.
_WAITS_FOR_NO_GPU = frozenset(
    {
        Reason.MISCONFIGURED,
        Reason.EXCEEDS_POOL,
        Reason.NO_SUCH_GPU,
        Reason.POOL_UNKNOWN,
        Reason.DEADLINE_UNREACHABLE,
        Reason.ON_HOLD,
        Reason.POOL_CLOSED,
        Reason.NO_WORKER,
        Reason.OVER_QUOTA,
        Reason.OVER_ENERGY_BUDGET,
    }
)


def run_cycle(policy: AdmissionPolicy, ordering: Ordering, snapshot: ClusterSnapshot) -> Plan:
    """Return what has to be done for one pool at ``snapshot.now_s``, and why everybody else waits.

    The same snapshot gives the same plan. Instructions stand in the order in which they have to be applied.
    """
    # 1. Review the sets that share GPUs: confirm, undo, or go on watching.
    reviews, present = _review(policy, snapshot)
    # 2. Order the queue.
    queue = ordering.order(snapshot.waiting, snapshot)
    line = _Line(policy, present, CycleFacts(present))
    for job in queue:
        # 3. Ask the policy, once for each kind of job: a launch only takes places away from the kinds that
        #    were held before it, since the free GPUs of every node that could serve them are kept (step 5).
        kind = job.kind
        decision = line.answers.get(kind) or policy.decide(job, line.snapshot)
        if decision.verdict is Verdict.ADMIT:
            # 4. Place it; the next in line sees the cluster with this job on it.
            line.launch(job, decision)
        else:
            # 5. Hold or reject it, and keep free GPUs for the earliest of those that wait for some.
            line.hold(job, kind, decision)
    # 6. One decision a kind, in queue order.
    return Plan(
        pool=snapshot.pool.settings.name,
        now_s=snapshot.now_s,
        instructions=(*reviews, *line.launches),
        decisions=line.decisions(),
        order=tuple(job.job_id for job in queue),
    )


def _review(policy: AdmissionPolicy, snapshot: ClusterSnapshot) -> tuple[list[Instruction], ClusterSnapshot]:
    """Return the reviews of all sets, and the snapshot in which they have been carried out."""
    reviews: list[Instruction] = []
    present = snapshot
    for name in sorted(snapshot.nodes):
        for held in snapshot.nodes[name].sets:
            if len(held.residents) < 2:
                continue
            review = policy.review(held, snapshot)
            if review is not None:
                reviews.append(review)
                present = present.with_set(held, _reviewed(held, review))
    return reviews, present


def _reviewed(held: GpuSet, review: Review) -> GpuSet:
    def after(resident: Resident) -> Resident:
        if isinstance(review, Yield):
            leaves = resident.job.job_id == review.job_id
            return replace(resident, state=LeaseState.YIELDING) if leaves else resident
        state = LeaseState.CONFIRMED if isinstance(review, Confirm) else LeaseState.UNCONFIRMED
        return replace(resident, state=state)

    return replace(held, residents=tuple(after(resident) for resident in held.residents))


@dataclass
class _Line:
    """The queue as it is worked off: the cluster so far, who was launched, who is held and why."""

    policy: AdmissionPolicy
    snapshot: ClusterSnapshot
    facts: CycleFacts
    launches: list[Launch] = field(default_factory=list)
    answers: dict[JobKind, AdmissionDecision] = field(default_factory=dict)
    _groups: dict[tuple[JobKind, Verdict] | str, list[Job]] = field(default_factory=dict)
    _decided: dict[tuple[JobKind, Verdict] | str, AdmissionDecision] = field(default_factory=dict)
    _kept_for: set[Needs] = field(default_factory=set)

    def launch(self, job: Job, decision: AdmissionDecision) -> None:
        if decision.placement is None:
            raise ValueError(f"policy {type(self.policy).__name__} admitted {job.label} without a placement")
        self.snapshot = self.snapshot.with_launch(job, decision.placement)
        self.launches.append(Launch(job, decision.placement, decision.co_residents))
        self._groups[job.job_id] = [job]
        self._decided[job.job_id] = decision

    def hold(self, job: Job, kind: JobKind, decision: AdmissionDecision) -> None:
        final = _after_patience(job, decision, self.snapshot)
        group = (kind, final.verdict)
        self._groups.setdefault(group, []).append(job)
        self._decided.setdefault(group, final)
        if kind in self.answers:
            return
        self.answers[kind] = decision
        if not any(finding.reason in _WAITS_FOR_NO_GPU for finding in decision.findings):
            self._keep_places(Needs.of(job.request))

    def decisions(self) -> tuple[KindDecision, ...]:
        return tuple(
            KindDecision(jobs[0].kind, _ids(jobs), self._decided[group])
            for group, jobs in self._groups.items()
        )

    def _keep_places(self, needs: Needs) -> None:
        if needs in self._kept_for:
            return
        self._kept_for.add(needs)
        kept = self.snapshot.kept_nodes | nodes_that_could_serve(needs, self.snapshot, self.facts)
        if kept != self.snapshot.kept_nodes:
            self.snapshot = replace(self.snapshot, kept_nodes=kept)


def _ids(jobs: Iterable[Job]) -> tuple[str, ...]:
    return tuple(job.job_id for job in jobs)


def _after_patience(job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot) -> AdmissionDecision:
    """Return the rejection of a job that has waited ``reject_after_s`` for a GPU that does not exist."""
    waited_s = snapshot.now_s - job.queued_s
    missing = any(finding.reason is Reason.NO_SUCH_GPU for finding in decision.findings)
    if missing and waited_s >= snapshot.pool.settings.reject_after_s:
        return reject(*decision.findings)
    return decision
