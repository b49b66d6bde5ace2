"""Energy prices: what the work of each class of jobs is worth in joules, and what it costs to slow one down.

They are the duals of the configuration program (:mod:`airflow_provider_eaco.core.energy.configuration`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ClassKey(NamedTuple):
    """Jobs of one family on GPUs of one model and count, under one stretch limit (``None``: no limit)."""

    family: str
    gpu_model: str
    gpus: int
    stretch_limit: float | None


class ClassPrice(NamedTuple):
    """``work_w``: joules that a second of exclusive work of the class is worth. ``presence_w``: joules by
    which a second in which one of the class is present is dearer than the power of its set.
    """

    work_w: float
    presence_w: float


@dataclass(frozen=True, slots=True)
class EnergyPrices:
    """Prices of one pool, from ``solved_s`` on.

    ``stretch_w`` is the price of one second of run time above the exclusive run time, under the pool's bound
    on the mean. ``ended_work_s`` and ``ended_run_s`` are the exclusive and the real run time of the jobs that
    have ended, as far back as the pool's mean is kept.
    """

    solved_s: float
    stretch_w: float
    classes: Mapping[ClassKey, ClassPrice] = field(default_factory=dict)
    ended_work_s: float = 0.0
    ended_run_s: float = 0.0
