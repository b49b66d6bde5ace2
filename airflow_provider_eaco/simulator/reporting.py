"""What jobs report when they have completed epochs, and when it is taken into the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.engine.progress import Report, UnitTime, ingest_one
from airflow_provider_eaco.simulator.beliefs import UNIT_S
from airflow_provider_eaco.simulator.cluster import VirtualCluster
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from airflow_provider_eaco.simulator.running import Epoch

# A trial is judged when one of its members reports, and who is to leave does so at the end of an epoch.
_HEARD_AT_ONCE = frozenset({LeaseState.TRIAL, LeaseState.YIELDING})


class Reporting:
    """Tells the ledger of epochs that the cluster has passed.

    While nobody waits for GPUs nothing hangs on the report of a job that has its GPUs to itself until
    somebody plans, and on one of a set whose trial is over until somebody plans or any trial is judged. Such
    jobs are told of later, each epoch as of its own instant, but before anybody comes or leaves there.

    :param nodes: by name.
    :param told: is called with the lease of each job that was told of.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        ledger: MemoryLedger,
        profiles: MemoryProfileStore,
        nodes: Mapping[str, Node],
        told: Callable[[Lease], None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._profiles = profiles
        self._nodes = nodes
        self._told = told
        self._version_at_begin: dict[str, int] = {}
        # Who has passed an epoch that was not told of yet: alone on its GPUs, or beside others.
        self._alone: dict[str, None] = {}
        self._sharing: dict[str, None] = {}

    def begin(self, lease: Lease) -> None:
        """Note that the job of a lease has started."""
        self._version_at_begin[lease.job_id] = lease.set_version

    def forget(self, job_id: str) -> None:
        """Drop what is kept of a job that will not come back; whatever it has not told stays untold."""
        self._version_at_begin.pop(job_id, None)
        self._alone.pop(job_id, None)
        self._sharing.pop(job_id, None)

    def pass_quiet_epochs(self, until_s: float) -> None:
        """Pass what comes next on the cluster, as long as it is epochs that can be told of later.

        Nobody may wait for GPUs: reports have to be planned on then.
        """
        self._cluster.pass_epochs(until_s, self._is_quiet)

    def tell(self, job_id: str) -> Lease | None:
        """Take in what the job has completed; return its lease, ``None`` if it holds none."""
        self._alone.pop(job_id, None)
        self._sharing.pop(job_id, None)
        standing = self._ledger.standing_of(job_id)
        if standing is None:
            return None
        lease, record, residents = standing
        epochs = self._cluster.run_of(job_id).untold
        reports = [(epoch.ended_s, self._report(epoch, lease)) for epoch in epochs]
        epochs.clear()
        ingest_one(
            self._ledger,
            self._profiles,
            reports,
            lease=lease,
            record=record,
            residents=residents,
            node=self._nodes[lease.placement.node],
        )
        self._told(lease)
        return lease

    def tell_all(self) -> None:
        """Take in what was passed."""
        self.tell_sharing()
        for job_id in tuple(self._alone):
            self.tell(job_id)

    def tell_sharing(self) -> None:
        """Take in what was passed by jobs that share GPUs."""
        for job_id in tuple(self._sharing):
            self.tell(job_id)

    def tell_set(self, placement: Placement) -> None:
        """Take in what was passed by those who hold these GPUs, as long as they are the same."""
        for lease in self._ledger.leases_on(placement):
            if lease.job_id in self._sharing:
                self.tell(lease.job_id)

    def _is_quiet(self, job_id: str) -> bool:
        lease = self._ledger.lease_of(job_id)
        if lease is None or lease.state in _HEARD_AT_ONCE:
            return False
        passed = self._alone if lease.state is LeaseState.EXCLUSIVE else self._sharing
        passed[job_id] = None
        return True

    def _report(self, epoch: Epoch, lease: Lease) -> Report:
        done = max(1, math.floor(epoch.done_s / UNIT_S + 1e-6))
        began = self._version_at_begin[lease.job_id]
        self._version_at_begin[lease.job_id] = lease.set_version
        elapsed_s = epoch.elapsed_s * UNIT_S / epoch.work_s
        unit = UnitTime(done - 1, elapsed_s, began, lease.set_version, epoch.limited)
        return Report(lease.job_id, lease.token, done, can_yield=True, recent=(unit,))
