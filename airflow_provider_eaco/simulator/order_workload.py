"""The days of the benchmark ``order``: gang jobs, and in ``mixed`` a service that needs GPUs by the hour."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
GPUS_PER_NODE = 8

_SIZES = (1, 2, 4, 8)
_CHANCES = (0.35, 0.25, 0.25, 0.15)
_SHORTEST_H, _LONGEST_H = 0.5, 12.0
_ARRIVALS_H = 12.0


class Scenario(StrEnum):
    """``BATCH``: training jobs only. ``MIXED``: node 0 also serves real-time inference."""

    BATCH = "batch"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class OrderJob:
    """A gang job. ``believed_s`` is the run time that the orderings are told, ``work_s`` the true one."""

    job_id: str
    gpus: int
    submit_s: float
    work_s: float
    believed_s: float


@dataclass(frozen=True, slots=True)
class OrderDay:
    """One day: jobs by submission, and how many GPUs of node 0 the service needs in each hour."""

    gpus: int
    jobs: tuple[OrderJob, ...]
    demand: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return self.gpus // GPUS_PER_NODE

    @property
    def demand_gpu_s(self) -> float:
        return sum(self.demand) * HOUR_S


def daily_demand(scenario: Scenario) -> tuple[int, ...]:
    """Return the GPUs of node 0 that real-time inference needs in each hour: 1 at night, 4 at noon."""
    if scenario is Scenario.BATCH:
        return (0,) * 24
    return tuple(round(2.5 + 1.5 * math.sin(2 * math.pi * (hour - 6) / 24)) for hour in range(24))


def draw_day(scenario: Scenario, gpus: int, load: float, seed: int) -> OrderDay:
    """Return a day whose jobs and demand ask for ``load`` of the GPUs' time, with run times known exactly.

    Jobs are drawn one by one (size, then run time, log-uniform and in whole seconds) until their GPU time
    reaches the load less the demand; then half of them, whichever, are there at 0, and the others come in the
    first 12 hours.
    """
    draws = np.random.default_rng(seed)
    demand = daily_demand(scenario)
    wanted_gpu_s = load * gpus * DAY_S - sum(demand) * HOUR_S
    drawn: list[tuple[int, float]] = []
    while sum(size * work_s for size, work_s in drawn) < wanted_gpu_s:
        size = int(draws.choice(_SIZES, p=_CHANCES))
        hours = math.exp(draws.uniform(math.log(_SHORTEST_H), math.log(_LONGEST_H)))
        drawn.append((size, float(round(hours * HOUR_S))))
    submits_s = draws.uniform(0, _ARRIVALS_H * HOUR_S, size=len(drawn)).round()
    submits_s[draws.permutation(len(drawn))[: len(drawn) // 2]] = 0.0
    jobs = [
        OrderJob(f"job-{number:04d}", size, float(submit_s), work_s, work_s)
        for number, ((size, work_s), submit_s) in enumerate(zip(drawn, submits_s, strict=True))
    ]
    jobs.sort(key=lambda job: (job.submit_s, job.job_id))
    return OrderDay(gpus, tuple(jobs), demand)


def with_duration_error(day: OrderDay, sigma: float, seed: int) -> OrderDay:
    """Return the day with believed run times that are off by a log-normal factor; the truth stays."""
    factors = np.random.default_rng([seed, 1]).lognormal(0.0, sigma, size=len(day.jobs))
    jobs = tuple(
        replace(job, believed_s=float(max(1, round(job.work_s * factor))))
        for job, factor in zip(day.jobs, factors, strict=True)
    )
    return replace(day, jobs=jobs)


def bound_gpu_s(day: OrderDay) -> float:
    """Return a GPU time that no schedule can exceed on the day, told all run times from the start.

    In every stretch of time demand and submitted jobs together can use no more than the GPUs; no job uses
    more than runs between its submission and the end, and one that fits no node beside the least demand
    uses nothing.
    """
    jobs = [job for job in day.jobs if job.gpus <= _widest(day)]
    edges = sorted({0.0, DAY_S, *(job.submit_s for job in jobs if job.submit_s < DAY_S)})
    used = backlog = 0.0
    for begin_s, end_s in pairwise(edges):
        backlog += sum(
            job.gpus * min(job.work_s, DAY_S - job.submit_s) for job in jobs if job.submit_s == begin_s
        )
        room = day.gpus * (end_s - begin_s) - _demand_gpu_s(day, begin_s, end_s)
        served = min(backlog, room)
        backlog -= served
        used += served
    return used + _demand_gpu_s(day, 0.0, DAY_S)


def _widest(day: OrderDay) -> int:
    """Return the GPUs of the largest aligned block that is ever free of demand on any node."""
    beside = GPUS_PER_NODE if day.nodes > 1 else GPUS_PER_NODE - min(day.demand)
    return GPUS_PER_NODE if beside == GPUS_PER_NODE else GPUS_PER_NODE // 2


def _demand_gpu_s(day: OrderDay, begin_s: float, end_s: float) -> float:
    first, last = int(begin_s // HOUR_S), math.ceil(end_s / HOUR_S)
    return sum(
        day.demand[hour % 24] * (min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S))
        for hour in range(first, last)
    )
