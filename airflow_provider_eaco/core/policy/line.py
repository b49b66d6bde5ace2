"""The line: the queue as it is worked off in one cycle, and what is kept for those that wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, Verdict, reject
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.base import AdmissionPolicy, Ordering
from airflow_provider_eaco.core.policy.bookings import Bookings, reservations_of
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.filters import Needs, nodes_that_could_serve
from airflow_provider_eaco.core.policy.promises import Promises
from airflow_provider_eaco.core.policy.queue import Queue

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
        Reason.WAITING_FOR_ENERGY,
    }
)
# So many starts are looked for in one cycle; who is promised one beyond them has the nodes kept instead.
_MOST_PROMISES = 50

_NOBODY: frozenset[str] = frozenset()

_Group = tuple[JobKind, Verdict, tuple[Reason, ...], str]


class Line:
    """The cluster so far, who was launched, who is held and why."""

    def __init__(
        self, policy: AdmissionPolicy, ordering: Ordering, queue: Queue, snapshot: ClusterSnapshot
    ) -> None:
        self.snapshot = snapshot
        self.launches: list[Launch] = []
        self._policy = policy
        self._queue = queue
        self.keeping = getattr(ordering, "keeping", Keeping.HEAD_OF_LINE)
        self._begun = snapshot
        self._demand = reservations_of(snapshot)
        self._promised = 0
        # A plan stands until the policy refuses one of its starts.
        self._planned = queue.offers is not None
        self._answers: dict[tuple[JobKind, frozenset[str]], AdmissionDecision] = {}
        self._groups: dict[_Group | str, list[Job]] = {}
        self._decided: dict[_Group | str, AdmissionDecision] = {}
        self._kept_for: set[tuple[Needs, frozenset[str]]] = set()

    # Few cycles promise anything, or keep places for somebody.
    @cached_property
    def _facts(self) -> CycleFacts:
        return CycleFacts(self._begun)

    @cached_property
    def _promises(self) -> Promises:
        return Promises(self._begun, self._facts, self._demand)

    @cached_property
    def _bookings(self) -> Bookings:
        return Bookings(self._begun, self._facts)

    def ask(self, job: Job, kind: JobKind) -> AdmissionDecision:
        """Return the policy's answer for the job."""
        offered = self._queue.offers.get(job.job_id) if self._queue.offers and self._planned else None
        if offered is not None:
            return self._policy.decide(job, replace(self.snapshot, offered=offered))
        if self._planned:
            self._keep_nodes(self.snapshot.nodes, 0)
        barred = self._promises.barred_for(job) if self._demand or self._promised else _NOBODY
        key = kind, barred
        answer = self._answers.get(key)
        if answer is None:
            seen = replace(self.snapshot, barred=barred) if barred else self.snapshot
            answer = self._policy.decide(job, seen)
            if answer.verdict is not Verdict.ADMIT:
                self._answers[key] = answer
        return answer

    def ask_to_join(self, job: Job) -> AdmissionDecision:
        """Return the policy's answer if no free GPUs were to be had."""
        barred = self._promises.barred_for(job) if self._demand or self._promised else _NOBODY
        kept = dict.fromkeys(self.snapshot.nodes, job.request.gpus)
        return self._policy.decide(job, replace(self.snapshot, barred=barred, kept_nodes=kept))

    def remember(self, job: Job, decision: AdmissionDecision) -> None:
        """Let a rule's hold of an admission stand for the rest of its kind."""
        barred = self._promises.barred_for(job) if self._demand or self._promised else _NOBODY
        self._answers[job.kind, barred] = decision

    def launch(self, job: Job, decision: AdmissionDecision) -> None:
        """Place the job as the policy decided."""
        if decision.placement is None:
            raise ValueError(f"policy {type(self._policy).__name__} admitted {job.label} without a placement")
        placed = len(set(decision.placement.gpu_uuids))
        if placed != job.request.gpus:
            name = type(self._policy).__name__
            raise ValueError(f"policy {name} placed {job.label} on {placed} GPUs, not {job.request.gpus}")
        self.snapshot = self.snapshot.with_launch(job, decision.placement)
        if self._demand or self._promised:
            self._promises.launched(job, decision.placement)
        self.launches.append(Launch(job, decision.placement, decision.co_residents))
        self._groups[job.job_id] = [job]
        self._decided[job.job_id] = decision

    def refuse(self, job: Job, kind: JobKind, decision: AdmissionDecision) -> None:
        """Let the job wait without asking anybody, and keep nothing for it."""
        group = _group(kind, decision, decision.findings[0].text)
        self._groups.setdefault(group, []).append(job)
        self._decided.setdefault(group, decision)

    def hold(self, job: Job, kind: JobKind, decision: AdmissionDecision) -> None:
        """Let the job wait, and keep for it what it is entitled to."""
        final = _after_patience(job, decision, self.snapshot)
        shut = _NOBODY
        if self._begun.bookings:
            barred = self._promises.barred_for(job)
            final = self._bookings.told(final, job, barred, self.snapshot)
            shut = self._bookings.shut_to(job, barred)
        group = _group(kind, final)
        self._groups.setdefault(group, []).append(job)
        self._decided.setdefault(group, final)
        if self._planned and self._queue.offers and job.job_id in self._queue.offers:
            self._planned = False
        reasons = {finding.reason for finding in decision.findings}
        # Who waits for a partner and for nothing else has left the free GPUs to others.
        if reasons.isdisjoint(_WAITS_FOR_NO_GPU) and reasons != {Reason.WAITING_FOR_PARTNER}:
            self._keep_for(job, shut)

    def decisions(self) -> tuple[KindDecision, ...]:
        """Return one decision for each kind and answer."""
        return tuple(
            KindDecision(jobs[0].kind, _ids(jobs), self._decided[group])
            for group, jobs in self._groups.items()
        )

    def _keep_for(self, job: Job, shut: frozenset[str]) -> None:
        easy = self.keeping is Keeping.FIRST_RESERVED
        if job.job_id in self._queue.promised or (easy and not self._promised):
            self._promised += 1
            if self._promised <= _MOST_PROMISES and self._promises.promise(job, self.snapshot):
                return
        elif easy or self._planned or self.keeping is Keeping.NOTHING:
            return
        self._keep_places(Needs.of(job.request), shut)

    def _keep_places(self, needs: Needs, shut: frozenset[str]) -> None:
        if (needs, shut) not in self._kept_for:
            self._kept_for.add((needs, shut))
            able = nodes_that_could_serve(needs, self._facts)
            # A node that is booked cannot serve it: shorter jobs may use it until then.
            self._keep_nodes(able - shut if shut else able, needs.gpus)

    def _keep_nodes(self, names: Iterable[str], gpus: int) -> None:
        kept = self.snapshot.kept_nodes
        if len(kept) < len(self.snapshot.nodes):
            more = {name: gpus for name in names if name not in kept}
            if more:
                self.snapshot = replace(self.snapshot, kept_nodes={**kept, **more})


def _group(kind: JobKind, decision: AdmissionDecision, why: str = "") -> _Group:
    return kind, decision.verdict, tuple(finding.reason for finding in decision.findings), why


def _ids(jobs: Iterable[Job]) -> tuple[str, ...]:
    return tuple(job.job_id for job in jobs)


def _after_patience(job: Job, decision: AdmissionDecision, snapshot: ClusterSnapshot) -> AdmissionDecision:
    """Return the rejection of a job that has waited ``reject_after_s`` for a GPU that does not exist."""
    waited_s = snapshot.now_s - job.queued_s
    missing = any(finding.reason is Reason.NO_SUCH_GPU for finding in decision.findings)
    if missing and waited_s >= snapshot.pool.settings.reject_after_s:
        return reject(*decision.findings)
    return decision
