"""The days of the benchmark ``order``: gang jobs, and in ``mixed`` a service that needs GPUs by the hour."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob
from airflow_provider_eaco.simulator.workload import data_folder

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
GPUS_PER_NODE = 8
# One family for all: nobody shares, so that nothing hangs on what a job trains.
FAMILY = "gang"

_SIZES = (1, 2, 4, 8)
_CHANCES = (0.35, 0.25, 0.25, 0.15)
_SHORTEST_H, _LONGEST_H = 0.5, 12.0
_ARRIVALS_H = 12.0
# A day of a real trace stands for a load if its own is so near to it.
_NEAR = 0.15
_ITP_CLUSTERS = ("01", "03", "04", "06", "08", "09", "10")


class DayKind(StrEnum):
    """``BATCH``: training jobs only. ``MIXED``: node 0 also serves real-time inference. ``ITP``: a day of a
    real trace, as it is.
    """

    BATCH = "batch"
    MIXED = "mixed"
    ITP = "itp"


class DemandKept(StrEnum):
    """What is kept for inference: its demand hour by hour, or its daily peak at any hour."""

    CURVE = "curve"
    PEAK = "peak"


class Oversized(StrEnum):
    """What becomes of jobs for which no node is ever wide enough beside the demand: they do not come to the
    queue, or they wait in it for ever, and with a strict head of line so does everybody behind them.
    """

    LEAVE_OUT = "leave-out"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class DayChoices:
    """What the user of the benchmark ``order`` chooses beside load, seed and size."""

    kind: DayKind = DayKind.BATCH
    demand: DemandKept = DemandKept.CURVE
    oversized: Oversized = Oversized.LEAVE_OUT


USUAL_DAY = DayChoices()


@dataclass(frozen=True, slots=True)
class OrderDay:
    """One day: jobs by submission, how many GPUs of node 0 the service needs in each hour, and where it is
    from. ``draws`` goes on after the day was drawn.
    """

    gpus: int
    jobs: tuple[TraceJob, ...]
    demand: tuple[int, ...] = (0,) * 24
    source: str = "drawn"
    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), compare=False)

    @property
    def nodes(self) -> int:
        return self.gpus // GPUS_PER_NODE

    @property
    def demand_gpu_s(self) -> float:
        return sum(self.demand) * HOUR_S

    @property
    def widest(self) -> int:
        """The GPUs of the largest aligned block that is ever free of demand on any node."""
        beside = GPUS_PER_NODE if self.nodes > 1 else GPUS_PER_NODE - min(self.demand)
        return GPUS_PER_NODE if beside == GPUS_PER_NODE else GPUS_PER_NODE // 2

    def without_oversized(self) -> OrderDay:
        """Return the day without the jobs that fit no node beside the least demand."""
        return replace(self, jobs=tuple(job for job in self.jobs if job.gpus <= self.widest))


def daily_demand(kind: DayKind) -> tuple[int, ...]:
    """Return the GPUs of node 0 that real-time inference needs in each hour: 1 at night, 4 at noon."""
    if kind is not DayKind.MIXED:
        return (0,) * 24
    return tuple(round(2.5 + 1.5 * math.sin(2 * math.pi * (hour - 6) / 24)) for hour in range(24))


def draw_day(kind: DayKind, gpus: int, load: float, seed: int) -> OrderDay:
    """Return a day whose jobs and demand ask for ``load`` of the GPUs' time.

    Jobs are drawn one by one (size, then run time, log-uniform and in whole seconds) until their GPU time
    reaches the load less the demand; then half of them, whichever, are there at 0, and the others come in the
    first 12 hours. Of real traces, ``seed`` is the number of the day among those with such a load.

    :raises TraceError: if there are not so many such days.
    """
    if kind is DayKind.ITP:
        return _real_day(gpus, load, seed)
    draws = np.random.default_rng(seed)
    demand = daily_demand(kind)
    wanted_gpu_s = load * gpus * DAY_S - sum(demand) * HOUR_S
    drawn: list[tuple[int, float]] = []
    while math.fsum(size * work_s for size, work_s in drawn) < wanted_gpu_s:
        size = int(draws.choice(_SIZES, p=_CHANCES))
        hours = math.exp(draws.uniform(math.log(_SHORTEST_H), math.log(_LONGEST_H)))
        drawn.append((size, float(round(hours * HOUR_S))))
    submits_s = draws.uniform(0, _ARRIVALS_H * HOUR_S, size=len(drawn)).round()
    submits_s[draws.permutation(len(drawn))[: len(drawn) // 2]] = 0.0
    jobs = [
        TraceJob(f"job-{number:04d}", FAMILY, size, float(submit_s), work_s)
        for number, ((size, work_s), submit_s) in enumerate(zip(drawn, submits_s, strict=True))
    ]
    jobs.sort(key=lambda job: (job.submit_s, job.job_id))
    return OrderDay(gpus, tuple(jobs), demand, draws=draws)


def _real_day(gpus: int, load: float, number: int) -> OrderDay:
    count = 0
    for day in _days_of_itp(gpus):
        asked_gpu_s = math.fsum(job.gpus * min(job.work_s, DAY_S) for job in day.jobs)
        if abs(asked_gpu_s / (gpus * DAY_S) - load) <= _NEAR * load:
            if count == number:
                return day
            count += 1
    raise TraceError(
        "--seed", f"is {number}; the traces have {count} days with a load of {load:g} on {gpus} GPUs, from 0"
    )


def _days_of_itp(gpus: int) -> Iterator[OrderDay]:
    """Give what was submitted on each day of each trace, in jobs of 1, 2, 4 or 8 GPUs."""
    for cluster in _ITP_CLUSTERS:
        trace = read_trace(data_folder() / "itp_traces" / f"cluster{cluster}.csv", "itp")
        by_day: dict[int, list[TraceJob]] = {}
        for job in trace.jobs:
            if job.gpus in _SIZES:
                by_day.setdefault(int(job.submit_s // DAY_S), []).append(job)
        for day, jobs in sorted(by_day.items()):
            moved = [replace(job, family=FAMILY, submit_s=job.submit_s - day * DAY_S) for job in jobs]
            yield OrderDay(gpus, tuple(moved), source=f"itp cluster {cluster}, day {day}")


def bound_gpu_s(day: OrderDay) -> float:
    """Return a GPU time that no schedule can exceed on the day, told all run times from the start.

    In every stretch of time demand and submitted jobs together can use no more than the GPUs; no job uses
    more than runs between its submission and the end, and one that fits no node beside the least demand
    uses nothing.
    """
    jobs = day.without_oversized().jobs
    edges = sorted({0.0, DAY_S, *(job.submit_s for job in jobs if job.submit_s < DAY_S)})
    used = backlog = 0.0
    for begin_s, end_s in pairwise(edges):
        backlog += math.fsum(
            job.gpus * min(job.work_s, DAY_S - job.submit_s) for job in jobs if job.submit_s == begin_s
        )
        room = day.gpus * (end_s - begin_s) - _demand_gpu_s(day, begin_s, end_s)
        served = min(backlog, room)
        backlog -= served
        used += served
    return used + _demand_gpu_s(day, 0.0, DAY_S)


def _demand_gpu_s(day: OrderDay, begin_s: float, end_s: float) -> float:
    first, last = int(begin_s // HOUR_S), math.ceil(end_s / HOUR_S)
    return math.fsum(
        day.demand[hour % 24] * (min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S))
        for hour in range(first, last)
    )
