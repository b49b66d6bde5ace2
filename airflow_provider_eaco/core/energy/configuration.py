"""The configuration program: how little energy a mix of jobs can take, and at what price each of them.

Jobs of equal family and limit form a class. A configuration is a multiset of classes that shares one unit
(the GPUs of one placement). A schedule is, in the limit, the time that all units together spend in each
configuration; no schedule with the same profiles can use less energy than the best such times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobClass:
    """Jobs of one family under one stretch limit (``None``: no limit) with ``work_s`` exclusive seconds."""

    family: str
    stretch_limit: float | None
    work_s: float


@dataclass(frozen=True, slots=True)
class SetPerformance:
    """How a set behaves: ``power_w`` of the unit, ``rates`` of progress of the members in their order."""

    power_w: float
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ConfigurationProgram:
    """Classes, configurations, and what a second in each configuration gives and costs.

    ``members[s]`` lists the class indices in configuration s, sorted. ``power_w`` has shape (S,);
    ``progress`` (C, S) work seconds of class c per second in s; ``presence`` (C, S) members of class c in s.
    """

    classes: tuple[JobClass, ...]
    members: tuple[tuple[int, ...], ...]
    power_w: FloatArray
    progress: FloatArray
    presence: FloatArray

    @property
    def work_s(self) -> FloatArray:
        return np.array([job_class.work_s for job_class in self.classes], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ConfigurationSolution:
    """The best times and the prices.

    ``energy_j`` in all; ``time_s`` (S,) in each configuration; ``price_w`` (C,) joules per work second of a
    class at the margin: a placement is worth its power when the prices of the work that it does exceed it.
    ``mean_stretch`` is work-weighted: time present / work. ``presence_w`` (C,) is what a second in which a
    member of the class is present takes from the limits, in joules: that of the mean stretch and its own.
    """

    energy_j: float
    time_s: FloatArray
    price_w: FloatArray
    mean_stretch: float
    presence_w: FloatArray


def configuration_program(
    classes: Sequence[JobClass],
    performance_of: Callable[[tuple[str, ...]], Sequence[SetPerformance]],
    max_residents: int,
) -> ConfigurationProgram:
    """Return the program over all multisets of up to ``max_residents`` classes.

    ``performance_of`` takes the families of a set and returns its ways of running (one for each power limit,
    say); an empty answer forbids the set. It is asked once for each multiset of families.
    """
    known: dict[tuple[str, ...], Sequence[SetPerformance]] = {}
    members: list[tuple[int, ...]] = []
    ways: list[SetPerformance] = []
    # Classes are sorted by family, so that every multiset of them names its families in canonical order.
    ordered = tuple(sorted(classes, key=lambda c: (c.family, c.stretch_limit or float("inf"))))
    for size in range(1, max_residents + 1):
        for chosen in combinations_with_replacement(range(len(ordered)), size):
            families = tuple(ordered[index].family for index in chosen)
            if families not in known:
                known[families] = performance_of(families)
            for way in known[families]:
                members.append(chosen)
                ways.append(way)
    progress = np.zeros((len(ordered), len(members)))
    presence = np.zeros_like(progress)
    for column, (chosen, way) in enumerate(zip(members, ways, strict=True)):
        for index, rate in zip(chosen, way.rates, strict=True):
            progress[index, column] += rate
            presence[index, column] += 1
    power_w = np.array([way.power_w for way in ways], dtype=np.float64)
    return ConfigurationProgram(ordered, tuple(members), power_w, progress, presence)
