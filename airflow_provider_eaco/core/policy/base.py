"""What a policy and an ordering have to offer; the cycle knows nothing more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_provider_eaco.core.model.decision import AdmissionDecision
from airflow_provider_eaco.core.model.instruction import Confirm, Unconfirmed, Yield
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet

Review = Confirm | Unconfirmed | Yield


class AdmissionPolicy(Protocol):
    """Decides who may run where. A policy is built from the ``PoolSettings`` of its pool.

    Both methods are functions of their arguments: the same snapshot gives the same answer, whatever was asked
    before. A policy may keep what it has computed for parts that successive snapshots share.
    """

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        """Return the answer for every waiting job of ``job.kind``.

        Only ``job.kind`` may be looked at, never the job's identity. Free GPUs of ``snapshot.kept_nodes``
        belong to earlier jobs.
        """

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        """Return what is to be done about a set of two or more residents; ``None``: nothing now."""


class Ordering(Protocol):
    """Ranks the queue."""

    def order(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        """Return the jobs, the first to be looked at first; independent of the order they come in."""
