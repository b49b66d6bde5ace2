"""Forecast: how long jobs will run, and when held sets will be gone, as far as profiles can tell."""

from __future__ import annotations

import math

from airflow_provider_eaco.core.energy.outlook import remaining_solo_s, units_left
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import GpuRequest, Progress
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.trial import observed_slowdown

# A run that is over its prediction is expected to take this part of its time so far, and at least a second.
_OVERRUN = 0.1
_LEAST_S = 1.0


class Forecast:
    """Predicted ends under one snapshot's profiles. What cannot be told is infinite: nobody waits for it."""

    def __init__(self, snapshot: ClusterSnapshot, facts: CycleFacts) -> None:
        self._snapshot = snapshot
        self.facts = facts
        self._ends: dict[int, tuple[GpuSet, float]] = {}

    def run_s(self, request: GpuRequest, progress: Progress, model: str, time_scale: float) -> float:
        """Return the wall seconds that the rest of such a job takes alone on GPUs of the model."""
        solo = self.facts.book.solo_of(request.family, model, request.gpus)
        left_s = remaining_solo_s(progress, solo)
        return math.inf if left_s is None else left_s / time_scale

    def end_s(self, held: GpuSet, node: Node) -> float:
        """Return the instant at which the last resident is predicted to leave."""
        known = self._ends.get(id(held))
        if known is None:
            end_s = max(self._resident_end_s(resident, held, node) for resident in held.residents)
            known = self._ends[id(held)] = (held, end_s)
        return known[1]

    def _resident_end_s(self, resident: Resident, held: GpuSet, node: Node) -> float:
        now_s = self._snapshot.now_s
        request, progress = resident.job.request, resident.job.progress
        solo = self.facts.book.solo_of(request.family, held.gpus[0].model, len(held.gpus))
        left_s = remaining_solo_s(progress, solo)
        if left_s is None:
            return math.inf
        so_far_s = max(0.0, now_s - resident.granted_s) * node.time_scale
        left = units_left(progress, solo)
        slowdown = self._slowdown(resident, held)
        # Time since the grant that no finished unit accounts for was spent on the present one.
        unit_s = left_s / left if left else 0.0
        begun_s = min(max(0.0, so_far_s - progress.run_s) / slowdown, unit_s)
        rest_s = (left_s - begun_s) * slowdown
        if rest_s <= 0:
            rest_s = max(_OVERRUN * so_far_s, _LEAST_S)
        return now_s + rest_s / node.time_scale

    def _slowdown(self, resident: Resident, held: GpuSet) -> float:
        if len(held.residents) == 1:
            return 1.0
        seen = observed_slowdown(resident, held, self._snapshot)
        if seen is not None:
            return seen
        members = family_set(held.families)
        prediction = self.facts.predict(members, held.gpus[0].model, len(held.gpus))
        return 1.0 if prediction is None else prediction.slowdowns[resident.job.request.family]
