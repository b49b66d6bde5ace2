"""What ``fifo_packed`` and ``gandiva`` share, as Gavel has them (OSDI 2020): pairs, and only under shortage.

A job gets free GPUs of its own while there are any. Else it may join a job that runs alone. Neither looks at
stretch limits, deadlines or energy: they are the baselines of the EaCO paper, which do not know any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, SetPrediction, Verdict
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.instruction import Confirm, Yield
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.cluster import host_free_mib
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetFacts, is_exclusive, memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.trial import newest_that_can_yield, observed_slowdown

PAIR = 2

# Who waits for these lacks GPUs and nothing else.
_SHORTAGE = frozenset({Reason.WAITING_FOR_GPU, Reason.RESERVED_FOR_EARLIER_JOB})


@dataclass(frozen=True, slots=True)
class Partner:
    """A job that runs alone and has room; ``prediction`` is of the pair, ``None`` where it is unknown."""

    facts: SetFacts
    prediction: SetPrediction | None

    @property
    def combined(self) -> float | None:
        """The pair's progress per second: 2 for two jobs that do not slow each other down."""
        if self.prediction is None:
            return None
        rates = [1 / slowdown for slowdown in self.prediction.slowdowns.values()]
        # Two of one family are one entry.
        return PAIR * math.fsum(rates) / len(rates)


class PairingPolicy:
    """Free GPUs first; under shortage the partner that :meth:`choose` takes.

    A pair is confirmed once both have a complete unit. One whose measured combined progress is below
    ``least_combined`` is undone: the newest that can gives way.
    """

    least_combined = 0.0

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._alone = ExclusivePolicy(settings)
        self._facts: CycleFacts | None = None
        self._sets: dict[int, tuple[GpuSet, SetFacts]] = {}

    def choose(self, job: Job, partners: list[Partner], snapshot: ClusterSnapshot) -> Partner | None:
        """Return the partner to join, ``None`` to wait for free GPUs."""
        raise NotImplementedError

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        decision = self._alone.decide(job, snapshot)
        short = all(finding.reason in _SHORTAGE for finding in decision.findings)
        if decision.verdict is not Verdict.HOLD or not short or not self._may_pair(job):
            return decision
        chosen = self.choose(job, list(self._partners(job, snapshot)), snapshot)
        if chosen is None:
            return decision
        combined = chosen.combined
        known = "unknown" if combined is None else f"{combined:.2f}"
        return AdmissionDecision(
            Verdict.ADMIT,
            placement=chosen.facts.placement,
            co_residents=chosen.facts.job_ids,
            prediction=chosen.prediction,
            choice=f"no free GPUs: a pair with a combined progress of {known}",
        )

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        states = {resident.state for resident in held.residents}
        seen = [observed_slowdown(resident, held, snapshot) for resident in held.residents]
        slowdowns = [slowdown for slowdown in seen if slowdown is not None]
        if LeaseState.YIELDING in states or len(slowdowns) < len(held.residents):
            return None
        version = held.residents[0].set_version
        combined = math.fsum(1 / slowdown for slowdown in slowdowns)
        leaver = newest_that_can_yield(held)
        if combined < self.least_combined and leaver is not None:
            why = f"the pair's combined progress is {combined:.2f}, below {self.least_combined:.2f}"
            return Yield(leaver.job.job_id, held.placement, version, why)
        return Confirm(held.placement, version) if states != {LeaseState.CONFIRMED} else None

    def _may_pair(self, job: Job) -> bool:
        return self._settings.max_residents >= PAIR and not is_exclusive(job, self._settings)

    def _partners(self, job: Job, snapshot: ClusterSnapshot) -> Iterator[Partner]:
        facts = self._facts_of(snapshot)
        needs = Needs.of(job.request)
        for state in snapshot.nodes.values():
            if filters.host_memory(needs, state.node.name, host_free_mib(state)) is not None:
                continue
            for held in state.sets:
                pairs = len(held.residents) == 1 and len(held.gpus) == needs.gpus
                if pairs and not (snapshot.barred and snapshot.barred.intersection(held.placement.gpu_uuids)):
                    there = self._seen(held, state.node, facts)
                    if self._takes(there, needs, job.request.family, facts):
                        kind = there.kind
                        members = family_set((*kind.families, job.request.family))
                        yield Partner(there, facts.predict(members, kind.model, kind.gpus))

    def _takes(self, there: SetFacts, needs: Needs, family: str, facts: CycleFacts) -> bool:
        kind = there.kind
        if there.closed is not None or (needs.gpu_models and kind.model not in needs.gpu_models):
            return False
        peak_mib = memory_peak_mib(needs.gpu_memory_mib, facts.book.solo_of(family, kind.model, kind.gpus))
        needed_mib = None if peak_mib is None else peak_mib + self._settings.memory_margin_mib
        return filters.memory(needed_mib, there) is None

    def _seen(self, held: GpuSet, node: Node, facts: CycleFacts) -> SetFacts:
        known = self._sets.get(id(held))
        if known is None:
            # The set is kept with its facts, so that its id stays its own.
            known = self._sets[id(held)] = (held, facts.held(held, node))
        return known[1]

    def _facts_of(self, snapshot: ClusterSnapshot) -> CycleFacts:
        facts = self._facts
        if (
            facts is None
            or facts.now_s != snapshot.now_s
            or facts.book is not snapshot.profiles
            or facts.readings is not snapshot.readings
        ):
            facts = self._facts = CycleFacts(snapshot)
            self._sets.clear()
        return facts
