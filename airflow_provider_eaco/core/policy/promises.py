"""Promises: GPUs reserved in time during a cycle, and what that bars each later job from."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.forecast import Forecast
from airflow_provider_eaco.core.policy.timetable import Timetable

# Two ways to the same instant may differ in the last digits; a promise is not broken by that.
_ROUNDING_S = 1e-3
_NOBODY: frozenset[str] = frozenset()

Scope = tuple[str, float]


class _Barrier:
    """The reserved GPUs of one model and time scale, the first promised first."""

    def __init__(self) -> None:
        self._starts_s: list[float] = []
        self._uuids: list[str] = []
        self._barred: dict[int, frozenset[str]] = {0: _NOBODY}

    def add(self, start_s: float, uuid: str) -> None:
        place = bisect_left(self._starts_s, start_s)
        self._starts_s.insert(place, start_s)
        self._uuids.insert(place, uuid)
        self._barred = {0: _NOBODY}

    def before(self, end_s: float) -> frozenset[str]:
        """Return the GPUs that are promised to somebody before ``end_s``."""
        count = bisect_left(self._starts_s, end_s - _ROUNDING_S)
        known = self._barred.get(count)
        if known is None:
            known = self._barred[count] = frozenset(self._uuids[:count])
        return known


class Promises:
    """What is reserved in a cycle. The timetable behind it is made when the first job is promised a start."""

    def __init__(
        self, snapshot: ClusterSnapshot, facts: CycleFacts, reservations: Iterable[Reservation]
    ) -> None:
        self._snapshot = snapshot
        self._forecast = Forecast(snapshot, facts)
        self._reservations: list[Reservation] = []
        # Those of distant reservations apart.
        self._barriers: dict[tuple[Scope, bool], _Barrier] = {}
        self._timetable: Timetable | None = None
        self._joined: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        for reservation in reservations:
            self._reserve(reservation)

    def barred_for(self, job: Job) -> frozenset[str]:
        """Return the GPUs on which the job would still be when somebody else is promised them."""
        if not self._barriers:
            return _NOBODY
        parts = []
        for ((model, time_scale), is_distant), barrier in self._barriers.items():
            run_s = self._forecast.run_s(job.request, job.progress, model, time_scale)
            if not is_distant or run_s < math.inf:
                parts.append(barrier.before(self._snapshot.now_s + run_s))
        return parts[0] if len(parts) == 1 else self._union(tuple(parts))

    def promise(self, job: Job, present: ClusterSnapshot) -> bool:
        """Reserve the job's earliest predicted start; return whether one could be told.

        :param present: the cluster with everybody on it who was launched so far.
        """
        if self._timetable is None:
            self._timetable = Timetable(present, self._reservations, self._forecast)
        slot = self._timetable.first_slot(job)
        if slot is None:
            return False
        placement = self._timetable.placement(slot)
        self._timetable.take(placement, slot.start_s, slot.end_s)
        self._reserve(Reservation(placement, slot.start_s, slot.end_s, job.job_id))
        return True

    def launched(self, job: Job, placement: Placement) -> None:
        """Take the launched job's GPUs from the timetable until its predicted end."""
        if self._timetable is not None:
            node = self._snapshot.nodes[placement.node].node
            model = next(gpu.model for gpu in node.gpus if gpu.uuid in placement.gpu_uuids)
            run_s = self._forecast.run_s(job.request, job.progress, model, node.time_scale)
            self._timetable.take(placement, self._snapshot.now_s, self._snapshot.now_s + run_s)

    def _reserve(self, reservation: Reservation) -> None:
        self._reservations.append(reservation)
        state = self._snapshot.nodes.get(reservation.placement.node)
        if state is None or reservation.end_s <= self._snapshot.now_s:
            return
        names = frozenset(reservation.placement.gpu_uuids)
        for gpu in state.node.gpus:
            if gpu.uuid in names:
                scope = gpu.model, state.node.time_scale
                barrier = self._barriers.setdefault((scope, reservation.is_distant), _Barrier())
                barrier.add(reservation.start_s, gpu.uuid)

    def _union(self, parts: tuple[frozenset[str], ...]) -> frozenset[str]:
        known = self._joined.get(parts)
        if known is None:
            known = self._joined[parts] = frozenset().union(*parts)
        return known
