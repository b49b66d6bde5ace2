"""Orderings that rank by one key within a priority; what the key cannot tell comes last, in fifo order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from airflow_provider_eaco.core.energy.outlook import remaining_solo_s
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.ordering import FirstProfiles, fifo_key


class KeyOrdering(ABC):
    """Highest priority first, then the least key, then fifo order, so that no tie is left."""

    keeping = Keeping.HEAD_OF_LINE

    def order(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        profiles = FirstProfiles(snapshot)
        return tuple(sorted(jobs, key=lambda job: (-job.priority, self.key(job, profiles), fifo_key(job))))

    @abstractmethod
    def key(self, job: Job, profiles: FirstProfiles) -> float:
        """Return what to sort by, infinite where it is not known."""


class PriorityOrdering(KeyOrdering):
    """Highest priority first, then who has waited longest since it was first queued.

    Unlike ``fifo`` the run's logical date does not count: a backfill of old dates does not overtake.
    """

    def key(self, job: Job, profiles: FirstProfiles) -> float:  # the age needs no profile
        return job.queued_s


class RemainingWorkOrdering(KeyOrdering):
    """Highest priority first, then the least remaining GPU seconds: remaining time alone x GPUs."""

    def key(self, job: Job, profiles: FirstProfiles) -> float:
        remaining_s = remaining_solo_s(job.progress, profiles.of(job.request))
        return math.inf if remaining_s is None else remaining_s * job.request.gpus


class EarliestDeadlineOrdering(KeyOrdering):
    """Highest priority first, then the earliest deadline; jobs without one come last."""

    def key(self, job: Job, profiles: FirstProfiles) -> float:  # a deadline needs no profile
        return math.inf if job.deadline_at_s is None else job.deadline_at_s


class LeastAttainedOrdering(KeyOrdering):
    """Highest priority first, then the least attained service: the GPU seconds that the run has had.

    Needs no prediction. Jobs that never ran come first, in fifo order.
    """

    def key(self, job: Job, profiles: FirstProfiles) -> float:  # the past needs no profile
        return job.progress.run_s * job.request.gpus
