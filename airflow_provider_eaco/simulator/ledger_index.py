"""What planning wants to know of a ledger, kept up to date change by change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import JobRecord, LedgerIndex, Member


class LiveIndex:
    """The index of a ledger that tells of every change.

    A node's members stay the same object until one of them changes, so that a planner sees at once which
    nodes it has to look at.
    """

    def __init__(self) -> None:
        self._members: dict[str, tuple[Member, ...]] = {}
        self._leases: dict[str, dict[int, Lease]] = {}
        self._stale: set[str] = set()
        self._waiting: dict[str, JobRecord] = {}
        self._used_slots: Counter[str] = Counter()

    def job_saved(self, record: JobRecord, lease: Lease | None) -> None:
        """Follow a job that came, changed or ended; ``lease`` is what it holds now."""
        if record.phase is JobPhase.WAITING:
            self._waiting[record.job.job_id] = record
        else:
            self._waiting.pop(record.job.job_id, None)
        if lease is not None:
            self._stale.add(lease.placement.node)

    def lease_saved(self, lease: Lease) -> None:
        """Follow a lease that was granted or changed."""
        node = lease.placement.node
        self._leases.setdefault(node, {})[lease.token] = lease
        self._stale.add(node)

    def lease_ended(self, lease: Lease) -> None:
        node = lease.placement.node
        del self._leases[node][lease.token]
        self._stale.add(node)

    def slots_used(self, record: JobRecord, sign: int) -> None:
        """Count the slots of a job that got a lease (``sign`` 1) or gave it up (-1)."""
        self._used_slots[record.job.pool] += sign * record.job.pool_slots

    def present(self, jobs: Mapping[str, JobRecord]) -> LedgerIndex:
        """Return the index now.

        :param jobs: the ledger's jobs that have not ended, by id.
        """
        for node in self._stale:
            leases = self._leases.get(node, {}).values()
            self._members[node] = tuple([(lease, jobs.get(lease.job_id)) for lease in leases])
        self._stale.clear()
        return LedgerIndex(dict(self._members), tuple(self._waiting.values()), dict(self._used_slots))
