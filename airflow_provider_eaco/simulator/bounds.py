"""Limits that no schedule of these jobs can pass: energy, makespan, mean JCT and allocated utilisation.

A job needs its GPUs for its work; jobs that share one set of GPUs progress and draw as the truth says. The
energy is that of the configuration program (:mod:`airflow_provider_eaco.core.energy.configuration`) without
any node's idle, waking or asleep time; the others are bounds for one fluid machine, which can split any job.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import combinations_with_replacement

import numpy as np

from airflow_provider_eaco.core.energy.configuration import (
    ConfigurationProgram,
    ConfigurationSolution,
    JobClass,
    SetPerformance,
    configuration_program,
)
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.ports import EnergySolver
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.simulator.truth import Truth

# How a set of families behaves on one set of that many GPUs: its ways of running (one for each power limit),
# none where the set cannot run. ``power_w`` has the host's share of these GPUs.
PerformanceOf = Callable[[tuple[str, ...], int], Sequence[SetPerformance]]

# What the program keeps apart: a family, and a stretch limit or none.
_Class = tuple[str, float | None]

# Mean stretches at which the Pareto curve is drawn; denser where it bends, since chords lie above the curve.
CURVE_STRETCHES = (
    *(1 + step / 200 for step in range(25)),
    *(1.15 + step / 20 for step in range(7)),
    *(1.5 + step / 4 for step in range(7)),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no run of the jobs can pass: the first four from below, ``allocated_utilisation`` from above.

    ``energy_j`` holds for any stretch, ``energy_j_at_stretch`` for the work-weighted mean stretch of one run;
    both with the asleep draw of that run's sleeping nodes.
    """

    energy_j: float
    energy_j_at_stretch: float
    makespan_s: float
    jct_mean_s: float
    allocated_utilisation: float


@dataclass(frozen=True, slots=True)
class Achieved:
    """What one run did. ``asleep_j`` is part of ``energy_j``; ``makespan_s`` is the length of the run.

    ``lost_gpu_s``: GPU seconds that were allocated without progress (restarts after a pause or a move).
    """

    energy_j: float
    asleep_j: float
    mean_stretch: float
    makespan_s: float
    jct_mean_s: float
    allocated_utilisation: float
    lost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The least energy at a work-weighted mean stretch."""

    mean_stretch: float
    energy_j: float


class BoundsOfJobs:
    """The bounds of one list of jobs on one cluster, where no job runs faster than alone.

    :param gpus: GPUs of the cluster.
    :param max_residents: the most jobs that may share a set of GPUs; 1 for a cluster that does not share.
    :raises ValueError: if there is no job.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        gpus: int,
        performance_of: PerformanceOf,
        max_residents: int,
        solver: EnergySolver,
    ) -> None:
        if not jobs:
            raise ValueError("jobs: is empty; expected at least one job")
        self._jobs = tuple(jobs)
        self._gpus = gpus
        self._performance_of = performance_of
        self._max_residents = max_residents
        self._solver = solver
        self._program = energy_program(self._jobs, performance_of, max_residents)
        combined = [float(rates) for rates in self._program.progress.sum(axis=0)]
        self._best_progress = max(1.0, *combined)
        self._worst_progress = min(combined)

    def energy_j(self, mean_stretch: float | None = None) -> float:
        """Return the least energy for the work; the stretch is at least 1, whatever is given."""
        return self.solution(mean_stretch).energy_j

    def solution(self, mean_stretch: float | None = None) -> ConfigurationSolution:
        """Return the best times in each set, and what the work of each family is worth."""
        bound = None if mean_stretch is None else max(1.0, mean_stretch)
        return self._solver.solve(self._program, bound)

    def energy_within_limits_j(self, mean_stretch: float) -> float:
        """Return the least energy if the jobs of each family and limit also keep that limit, on average."""
        return self._solver.solve(
            self._program_within_limits, max(1.0, mean_stretch), class_limits=True
        ).energy_j

    @cached_property
    def _program_within_limits(self) -> ConfigurationProgram:
        return energy_program(self._jobs, self._performance_of, self._max_residents, within_limits=True)

    def pareto_curve(self, stretches: Iterable[float] = CURVE_STRETCHES) -> list[CurvePoint]:
        """Return the least energy at each mean stretch."""
        return [CurvePoint(stretch, self.energy_j(stretch)) for stretch in stretches]

    @property
    def exclusive_energy_j(self) -> float:
        """The energy of the work when nobody shares: the bound at a mean stretch of 1."""
        return self.energy_j(1.0)

    @property
    def makespan_s(self) -> float:
        return makespan_bound_s(self._jobs, self._gpus * self._best_progress)

    @property
    def jct_mean_s(self) -> float:
        return jct_mean_bound_s(self._jobs, self._gpus * self._best_progress)

    def of_run(self, achieved: Achieved) -> Bounds:
        """Return what a run of this length, stretch and sleeping time could have reached."""
        # A set whose members together do less than one alone holds its GPUs for longer than its work.
        allocated_s = math.fsum(job.gpus * job.work_s for job in self._jobs) * max(
            1.0, 1 / self._worst_progress
        )
        return Bounds(
            energy_j=self.energy_j() + achieved.asleep_j,
            energy_j_at_stretch=self.energy_j(achieved.mean_stretch) + achieved.asleep_j,
            makespan_s=self.makespan_s,
            jct_mean_s=self.jct_mean_s,
            allocated_utilisation=self._utilisation(achieved, allocated_s),
        )

    def _utilisation(self, achieved: Achieved, allocated_s: float) -> float:
        whole_s = self._gpus * achieved.makespan_s
        if whole_s <= 0:
            return 1.0
        if achieved.lost_gpu_s > 0 or self._worst_progress < 1:
            return min(1.0, (allocated_s + achieved.lost_gpu_s) / whole_s)
        return utilisation_bound(self._jobs, self._gpus, achieved.makespan_s)


def performance_of_truth(truth: Truth, gpus_per_node: int, *, levels: bool = True) -> PerformanceOf:
    """Return how sets behave in ``truth``, with the base draw of their node in proportion to their GPUs.

    A node that is on for fewer GPUs than it has draws more than that, never less.

    :param levels: whether also under each power limit that its boards know.
    """

    def performance_of(families: tuple[str, ...], gpus: int) -> Sequence[SetPerformance]:
        base_w = truth.base_w * gpus / gpus_per_node
        ways = [truth.performance(family_set(families), gpus)]
        ways += [
            truth.performance(family_set(families), gpus, limit_w) for limit_w in truth.limits_w if levels
        ]
        return [SetPerformance(way.power_w + base_w, way.rates) for way in ways if way is not None]

    return performance_of


def energy_program(
    jobs: Iterable[TraceJob],
    performance_of: PerformanceOf,
    max_residents: int,
    *,
    within_limits: bool = False,
) -> ConfigurationProgram:
    """Return the configuration program of the jobs, grouped by family and number of GPUs.

    With ``within_limits`` also by their stretch limit, so that each class can be held to its own. Only jobs
    of one number of GPUs share: residents hold identical sets. So it is made of one program for each number,
    which only a bound on the mean stretch ties together.
    """
    work_s: dict[int, dict[_Class, float]] = defaultdict(lambda: defaultdict(float))
    for job in jobs:
        work_s[job.gpus][job.family, job.stretch_limit if within_limits else None] += job.work_s
    return _joined(
        [_program_of_width(gpus, work_s[gpus], performance_of, max_residents) for gpus in sorted(work_s)]
    )


def _program_of_width(
    gpus: int, work_s: Mapping[_Class, float], performance_of: PerformanceOf, max_residents: int
) -> ConfigurationProgram:
    @cache
    def performance(families: tuple[str, ...]) -> Sequence[SetPerformance]:
        return performance_of(families, gpus)

    size, families = 1, sorted({family for family, _ in work_s})
    # A larger set than any that can run cannot run either; there are too many to ask for all of them.
    while size < max_residents and any(map(performance, combinations_with_replacement(families, size + 1))):
        size += 1
    classes = [JobClass(family, limit, work) for (family, limit), work in work_s.items()]
    return configuration_program(classes, performance, size)


def _joined(programs: Sequence[ConfigurationProgram]) -> ConfigurationProgram:
    members: list[tuple[int, ...]] = []
    before = 0
    for program in programs:
        members += [tuple(index + before for index in chosen) for chosen in program.members]
        before += len(program.classes)
    progress, presence = np.zeros((before, len(members))), np.zeros((before, len(members)))
    row = column = 0
    for program in programs:
        rows, columns = program.progress.shape
        progress[row : row + rows, column : column + columns] = program.progress
        presence[row : row + rows, column : column + columns] = program.presence
        row, column = row + rows, column + columns
    return ConfigurationProgram(
        tuple(job_class for program in programs for job_class in program.classes),
        tuple(members),
        np.concatenate([program.power_w for program in programs]),
        progress,
        presence,
    )


def makespan_bound_s(jobs: Sequence[TraceJob], speed: float) -> float:
    """Return the earliest end of the last job on a fluid machine that does ``speed`` GPU seconds a second.

    No job is done before its submission and its work are over, nor can the work that is submitted from any
    instant on be done faster than all GPUs together do it.
    """
    ends_s, rest_s, bound_s = [job.submit_s + job.work_s for job in jobs], 0.0, 0.0
    for job in sorted(jobs, key=lambda job: job.submit_s, reverse=True):
        rest_s += job.gpus * job.work_s
        bound_s = max(bound_s, job.submit_s + rest_s / speed)
    return max(bound_s, *ends_s)


def jct_mean_bound_s(jobs: Sequence[TraceJob], speed: float) -> float:
    """Return the least mean time from submission to end.

    The larger of the mean work and of shortest-remaining-work-first on one fluid machine, which no schedule
    of ``speed`` GPU seconds a second can beat.
    """
    mean_work_s = math.fsum(job.work_s for job in jobs) / len(jobs)
    return max(mean_work_s, _fluid_jct_s(jobs, speed) / len(jobs))


def _fluid_jct_s(jobs: Sequence[TraceJob], speed: float) -> float:
    waiting: list[tuple[float, float]] = []
    now_s = total_s = 0.0
    for job in sorted(jobs, key=lambda job: job.submit_s):
        total_s += _serve(waiting, now_s, job.submit_s, speed)
        now_s = job.submit_s
        heapq.heappush(waiting, (job.gpus * job.work_s, job.submit_s))
    return total_s + _serve(waiting, now_s, float("inf"), speed)


def _serve(waiting: list[tuple[float, float]], now_s: float, until_s: float, speed: float) -> float:
    """Serve the shortest rest first until ``until_s``; return the sum of the times of those that ended."""
    total_s = 0.0
    while waiting and now_s < until_s:
        rest_s, submit_s = heapq.heappop(waiting)
        end_s = now_s + rest_s / speed
        if end_s > until_s:
            heapq.heappush(waiting, (rest_s - (until_s - now_s) * speed, submit_s))
            return total_s
        total_s += end_s - submit_s
        now_s = end_s
    return total_s


def utilisation_bound(jobs: Iterable[TraceJob], gpus: int, horizon_s: float) -> float:
    """Return the largest share of ``gpus`` that jobs without sharing can hold from 0 to ``horizon_s``.

    What is submitted at an instant adds to the demand at most its GPUs until the horizon; demand is served at
    no more than ``gpus``.
    """
    backlog_s = served_s = now_s = 0.0
    for job in sorted(jobs, key=lambda job: job.submit_s):
        if job.submit_s >= horizon_s:
            break
        done_s = min(backlog_s, gpus * (job.submit_s - now_s))
        served_s, backlog_s, now_s = served_s + done_s, backlog_s - done_s, job.submit_s
        backlog_s += job.gpus * min(job.work_s, horizon_s - job.submit_s)
    served_s += min(backlog_s, gpus * (horizon_s - now_s))
    return served_s / (gpus * horizon_s)


def gaps(achieved: Achieved, bounds: Bounds) -> Mapping[str, float | None]:
    """Return ``(achieved - bound) / bound`` for every bound, ``None`` where the bound is 0.

    ``allocated_utilisation`` is a bound from above: its gap is at most 0.
    """
    reached = {
        "energy_j": achieved.energy_j,
        "energy_j_at_stretch": achieved.energy_j,
        "makespan_s": achieved.makespan_s,
        "jct_mean_s": achieved.jct_mean_s,
        "allocated_utilisation": achieved.allocated_utilisation,
    }
    return {
        name: (reached[name] - bound) / bound if bound > 0 else None for name, bound in asdict(bounds).items()
    }


def distance_to_bound(energy_j: float, bound_at_stretch_j: float, fifo_energy_j: float) -> float:
    """Return how far a run is above the bound at its stretch, as a share of FIFO exclusive's energy.

    ``bound_at_stretch_j`` has the asleep draw of the run, ``fifo_energy_j`` is that of ``exclusive`` with
    ``fifo`` on the same jobs in the same accounting.
    """
    return (energy_j - bound_at_stretch_j) / fifo_energy_j
