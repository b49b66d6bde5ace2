"""Orderings: which waiting job is looked at first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from airflow_provider_eaco.core.energy.outlook import remaining_solo_s
from airflow_provider_eaco.core.model.job import GpuRequest, Job
from airflow_provider_eaco.core.model.profile import SoloProfile
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot

FifoKey = tuple[int, float, str, str, int, str]


def fifo_key(job: Job) -> FifoKey:
    """Return the sort key of first-in first-out: priority, oldest run, DAG, task, map index, job (C04)."""
    order = job.order
    return (-job.priority, order.run_after_s, order.dag_id, order.task_id, order.map_index, order.job_id)


class FifoOrdering:
    """Highest priority first, then the oldest run; names decide the rest, so that no tie is left."""

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        return tuple(sorted(jobs, key=fifo_key))


class ShortestFirstOrdering:
    """Highest priority first, then the least predicted remaining time alone; unknown last, in fifo order.

    The prediction is the job's remaining units times the unit time of its solo profile on the first GPU model
    that it accepts and this cluster has.
    """

    def order(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        profiles = FirstProfiles(snapshot)

        def key(job: Job) -> tuple[int, float, FifoKey]:
            remaining_s = remaining_solo_s(job.progress, profiles.of(job.request))
            return -job.priority, math.inf if remaining_s is None else remaining_s, fifo_key(job)

        return tuple(sorted(jobs, key=key))


class FirstProfiles:
    """Solo profiles on the first GPU model that a request accepts and this cluster has."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._book = snapshot.profiles
        self._present = sorted({gpu.model for state in snapshot.nodes.values() for gpu in state.node.gpus})
        self._known: dict[tuple[str, int, tuple[str, ...]], SoloProfile | None] = {}

    def of(self, request: GpuRequest) -> SoloProfile | None:
        """Return the profile to rank by, ``None`` if there is none on any of these models."""
        wanted = (request.family, request.gpus, request.gpu_models)
        if wanted not in self._known:
            self._known[wanted] = self._first(request)
        return self._known[wanted]

    def _first(self, request: GpuRequest) -> SoloProfile | None:
        for model in request.gpu_models or self._present:
            if model in self._present:
                profile = self._book.solo_of(request.family, model, request.gpus)
                if profile is not None:
                    return profile
        return None
