"""The leases that have ended, in memory, by the instant of their end."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import PastLease

_released_s = operator.attrgetter("released_s")


class LeaseHistory:
    """Leases in the order in which they ended."""

    def __init__(self) -> None:
        self._ended: list[PastLease] = []

    def remember(self, lease: Lease, job: Job, now_s: float, members: int) -> None:
        """Keep a lease that ends now, of a set that had so many members until now."""
        self._ended.append(
            PastLease(
                token=lease.token,
                node=lease.placement.node,
                gpus=len(lease.placement.gpu_uuids),
                granted_s=lease.granted_s,
                released_s=now_s,
                charged_s=lease.charged_at(now_s, members),
                pool=job.pool,
                bundle=job.bundle,
                dag_id=job.order.dag_id,
                queued_s=job.queued_s,
            )
        )

    def between(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        """Return those that ended after the one instant and not after the other."""
        first, end = (bisect_right(self._ended, at_s, key=_released_s) for at_s in (after_s, until_s))
        return self._ended[first:end]
