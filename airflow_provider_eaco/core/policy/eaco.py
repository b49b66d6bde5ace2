"""EaCO (arXiv 2412.08294): let jobs share GPUs where that saves energy and breaks nobody's limit.

The paper's open points are closed in ADR 0005. The first epoch of every co-allocation is a trial
(:mod:`~airflow_provider_eaco.core.policy.trial`).
"""

from __future__ import annotations

import math

from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    Verdict,
    hold,
    reject,
)
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.candidates import FreePlace, JoinClass, Shape, Spot, Table
from airflow_provider_eaco.core.policy.facts import CycleFacts, is_exclusive
from airflow_provider_eaco.core.policy.trial import review_set

_REJECTS = frozenset({Reason.EXCEEDS_POOL, Reason.DEADLINE_UNREACHABLE})


class EacoPolicy:
    """The paper's ``Schedule(j)`` for one kind of job, and its early-stage observation."""

    shares = True

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._facts: CycleFacts | None = None
        self._tables: dict[Shape, Table] = {}

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        kind = job.kind
        facts = self._facts_of(snapshot)

        # 1. What keeps the job from every GPU.
        found = [filters.airflow_pool(kind, snapshot.pool), filters.hold_mark(kind)]
        if any(found):
            return _refuse(found)

        # 2. FindCandidates: sets that it may join, and free GPUs.
        alone = not self.shares or is_exclusive(job, self._settings)
        table = self._table(Shape.of(kind.request, alone, kind.progress.can_yield), facts, snapshot)
        found = [
            filters.cluster(table.shape.needs, snapshot, table.summary.fits, facts),
            filters.deadline(kind, table.summary.scopes, facts),
        ]
        if any(found):
            return _refuse(found)

        # 3. The busiest set that keeps the job's own limits, and the best free GPUs.
        join, too_slow = self._busiest_set(kind, table, facts)
        free = table.first_free(snapshot.kept_nodes)

        # 4. Sets before free GPUs in a packing pool; a preferred GPU model before either.
        if join is not None and (free is None or self._joins_first(join[0], free)):
            return self._admit_to_set(*join)
        if free is not None:
            return self._admit_alone(free.placement)

        # 5. No candidate: hold with all reasons; nothing is preempted.
        return hold(*table.summary.findings, *too_slow, self._no_free_gpus(table, snapshot))

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        return review_set(held, snapshot)

    def _facts_of(self, snapshot: ClusterSnapshot) -> CycleFacts:
        if self._facts is None or not self._facts.hold_for(snapshot):
            self._facts = CycleFacts(snapshot)
            self._tables = {}
        return self._facts

    def _table(self, shape: Shape, facts: CycleFacts, snapshot: ClusterSnapshot) -> Table:
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = Table(shape, facts)
        table.sync(snapshot.nodes)
        return table

    def _busiest_set(
        self, kind: JobKind, table: Table, facts: CycleFacts
    ) -> tuple[tuple[JoinClass, Spot] | None, tuple[Finding, ...]]:
        """Return the first set within the job's own limits, else why the gentlest is beyond them."""
        family = kind.request.family
        best: tuple[JoinClass, Spot] | None = None
        gentlest: tuple[float, JoinClass, float | None] | None = None
        for cls, spot in table.joins():
            slowdown = cls.prediction.slowdowns[family]
            bears = filters.own_tolerance(kind, cls.model, cls.time_scale, cls.prediction.undone > 0, facts)
            if bears is not None and slowdown <= bears:
                if best is None or (cls.order, spot) < (best[0].order, best[1]):
                    best = cls, spot
            elif gentlest is None or slowdown < gentlest[0]:
                gentlest = slowdown, cls, bears
        if gentlest is None:
            return best, ()
        slowdown, cls, bears = gentlest
        numbers = filters.interference_numbers(
            slowdown, bears, cls.prediction.utilisation_pct, self._settings
        )
        return best, (Finding(Reason.INTERFERENCE_TOO_HIGH, numbers),)

    def _joins_first(self, cls: JoinClass, free: FreePlace) -> bool:
        if cls.model_rank != free.model_rank:
            return cls.model_rank < free.model_rank
        return self._settings.spreading is Spreading.PACK

    def _admit_to_set(self, cls: JoinClass, spot: Spot) -> AdmissionDecision:
        node, gpu_uuids, job_ids = spot
        busy = cls.prediction.utilisation_pct or math.nan
        return AdmissionDecision(
            Verdict.ADMIT,
            placement=Placement(node, gpu_uuids),
            co_residents=job_ids,
            prediction=cls.prediction,
            choice=f"{self._settings.spreading}: joins the busiest fitting set, then {busy:.0f} % utilised",
        )

    def _admit_alone(self, placement: Placement) -> AdmissionDecision:
        which = "fewest" if self._settings.spreading is Spreading.PACK else "most"
        choice = f"{self._settings.spreading}: free GPUs of the fitting node with the {which} free"
        return AdmissionDecision(Verdict.ADMIT, placement=placement, choice=choice)

    def _no_free_gpus(self, table: Table, snapshot: ClusterSnapshot) -> Finding:
        wanted = table.shape.needs.gpus
        kept = table.kept_free(snapshot.kept_nodes)
        if kept:
            return Finding(Reason.RESERVED_FOR_EARLIER_JOB, {"free": kept, "wanted": "GPUs there"})
        sharing = "it takes GPUs of its own" if table.shape.alone else table.summary.sharing
        numbers = {"wanted": wanted, "free": table.summary.free_best, "sharing": sharing}
        return Finding(Reason.WAITING_FOR_GPU, numbers)


def _refuse(found: list[Finding | None]) -> AdmissionDecision:
    findings = [finding for finding in found if finding is not None]
    refuses = any(finding.reason in _REJECTS for finding in findings)
    return reject(*findings) if refuses else hold(*findings)
