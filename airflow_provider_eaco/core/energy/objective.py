"""Joules: what a job costs when it joins a set, against what it costs alone on GPUs of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.profile import SoloProfile


@dataclass(frozen=True, slots=True)
class JoinEnergy:
    """Predicted joules of a newcomer's work: added to the set that it joins, and alone."""

    shared_j: float
    alone_j: float

    @property
    def saves(self) -> bool:
        return self.shared_j < self.alone_j


def join_energy(
    solo: SoloProfile,
    residents: tuple[str, ...],
    before: SetPrediction,
    after: SetPrediction,
    units: float = 1.0,
) -> JoinEnergy | None:
    """Return the joules of ``units`` units of the newcomer's work, ``None`` when a power is unknown.

    While the newcomer works, the set draws its new power; the residents' work in that time would have taken
    the old power for a little less long. The difference is what the newcomer adds. Which of the two ways is
    cheaper does not depend on ``units``.
    """
    if solo.unit_s is None or solo.power_w is None or before.power_w is None or after.power_w is None:
        return None
    speedup = [before.slowdowns[family] / after.slowdowns[family] for family in residents]
    added_w = after.power_w - before.power_w * math.fsum(speedup) / len(speedup)
    work_s = units * solo.unit_s
    return JoinEnergy(added_w * after.slowdowns[solo.family] * work_s, solo.power_w * work_s)
