"""Bounds: the listed values of the linear program, closed forms, and that no schedule passes them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.energy.configuration import SetPerformance
from airflow_provider_eaco.simulator.bounds import (
    Achieved,
    BoundsOfJobs,
    PerformanceOf,
    distance_to_bound,
    gaps,
    jct_mean_bound_s,
    makespan_bound_s,
    performance_of_truth,
    utilisation_bound,
)
from airflow_provider_eaco.simulator.power_levels import read_power_curve
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.simulator.truth import PaperTruth, read_gavel_truth
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from tests.unit.simulator.benchmark_data import benchmark_data


def job(
    number: int, family: str = "J1", gpus: int = 8, submit_s: float = 0.0, work_s: float = 3600.0
) -> TraceJob:
    return TraceJob(f"job-{number}", family, gpus, submit_s, work_s)


def one_of_each(families: tuple[str, ...], gpus: int) -> list[TraceJob]:
    return [job(number, family, gpus) for number, family in enumerate(families)]


def alone(families: tuple[str, ...], gpus: int) -> list[SetPerformance]:
    return [SetPerformance(100.0 * gpus, (1.0,))] if len(families) == 1 else []


def bounds_of(
    jobs: list[TraceJob], gpus: int, performance_of: PerformanceOf = alone, max_residents: int = 1
) -> BoundsOfJobs:
    return BoundsOfJobs(jobs, gpus, performance_of, max_residents, HighsEnergySolver())


def achieved(**changed: float) -> Achieved:
    values = {
        "energy_j": 100.0,
        "asleep_j": 0.0,
        "mean_stretch": 1.0,
        "makespan_s": 100.0,
        "jct_mean_s": 10.0,
        "allocated_utilisation": 0.5,
    }
    return Achieved(**{**values, **changed})


def levelled_truth() -> PaperTruth:
    return PaperTruth(curve=read_power_curve(benchmark_data("zeus_power/summary_power_v100.csv")))


# Per cent of exclusive energy at a work-weighted mean stretch for equal shares of the families, from
# independent programs over the same tables.
EACO_NODES = [(1.01, -12.9), (1.0323, -33.0), (1.0647, -42.0), (1.1, -45.9), (1.25, -46.6)]
WITH_POWER_LEVELS = [(1.0323, -33.2), (1.05, -38.9), (1.1, -47.9), (1.25, -53.6)]
WITHIN_LIMITS = [(False, 1.0323, -33.0), (False, 1.0647, -42.0), (False, 1.1, -44.1), (True, 1.1, -46.7)]
GAVEL_GPUS = [(1.0323, -5.2), (1.1, -8.2), (1.5, -12.0)]


@pytest.mark.parametrize(("mean_stretch", "expected_pct"), EACO_NODES)
def test_the_energy_of_input_bound_jobs(mean_stretch: float, expected_pct: float) -> None:
    """For the paper's families the bound gives the listed values to 0.1 points."""
    truth = PaperTruth()
    bounds = bounds_of(one_of_each(truth.families, 8), 8, performance_of_truth(truth, 8), 4)
    saved_pct = 100 * (bounds.energy_j(mean_stretch) / bounds.exclusive_energy_j - 1)
    assert saved_pct == pytest.approx(expected_pct, abs=0.1)


@pytest.mark.parametrize(("mean_stretch", "expected_pct"), WITH_POWER_LEVELS)
def test_the_energy_under_power_limits(mean_stretch: float, expected_pct: float) -> None:
    """With limits from 250 to 125 W the bound gives the listed values to 0.1 points."""
    truth = levelled_truth()
    bounds = bounds_of(one_of_each(truth.families, 8), 8, performance_of_truth(truth, 8), 4)
    saved_pct = 100 * (bounds.energy_j(mean_stretch) / bounds.exclusive_energy_j - 1)
    assert saved_pct == pytest.approx(expected_pct, abs=0.1)


@pytest.mark.parametrize(("levels", "mean_stretch", "expected_pct"), WITHIN_LIMITS)
def test_the_energy_within_the_jobs_limits(levels: bool, mean_stretch: float, expected_pct: float) -> None:
    """With a quarter of the jobs at 1.05, half at 1.15 and a quarter without limit: the listed values."""
    truth = levelled_truth()
    jobs = [
        replace(job(number, family), stretch_limit=limit)
        for number, family in enumerate(truth.families)
        for limit in (1.05, 1.15, 1.15, None)
    ]
    bounds = bounds_of(jobs, 8, performance_of_truth(truth, 8, levels=levels), 4)
    saved_pct = 100 * (bounds.energy_within_limits_j(mean_stretch) / bounds.exclusive_energy_j - 1)
    assert saved_pct == pytest.approx(expected_pct, abs=0.1)


@pytest.mark.parametrize(("mean_stretch", "expected_pct"), GAVEL_GPUS)
def test_the_energy_of_compute_bound_jobs(mean_stretch: float, expected_pct: float) -> None:
    """For Gavel's families with their host's share the bound gives the listed values to 0.1 points."""
    truth = read_gavel_truth(benchmark_data("gavel_throughputs/pairs.csv"), 4)
    assert len(truth.families) == 26
    bounds = bounds_of(one_of_each(truth.families, 1), 4, performance_of_truth(truth, 4), 2)
    saved_pct = 100 * (bounds.energy_j(mean_stretch) / bounds.exclusive_energy_j - 1)
    assert saved_pct == pytest.approx(expected_pct, abs=0.1)


def test_gpu_time_of_compute_bound_jobs_falls_by_a_third() -> None:
    """At +50 % mean stretch the best times take 31 % less GPU time than running alone."""
    truth = read_gavel_truth(benchmark_data("gavel_throughputs/pairs.csv"), 4)
    bounds = bounds_of(one_of_each(truth.families, 1), 4, performance_of_truth(truth, 4), 2)
    solution = bounds.solution(1.5)
    assert float(solution.time_s.sum()) / (26 * 3600.0) - 1 == pytest.approx(-0.31, abs=0.005)


def test_jobs_of_different_widths_never_share() -> None:
    """The program has no set of jobs with different numbers of GPUs, and rates follow the families."""

    def lopsided(families: tuple[str, ...], gpus: int) -> list[SetPerformance]:
        assert list(families) == sorted(families)
        if len(families) == 1:
            return [SetPerformance(100.0 * gpus, (1.0,))]
        return [SetPerformance(120.0 * gpus, tuple(0.9 if family == "A" else 0.6 for family in families))]

    jobs = [job(1, "AB", 1, work_s=600), job(2, "A", 1, work_s=900), job(3, "A", 2, work_s=900)]
    bounds = bounds_of(jobs, 8, lopsided, 2)
    # A and AB run 1000 s together at 120 W; the two-GPU job with nobody: one job of A would share with itself
    # as a class, at 240 W for 1.8 work seconds a second.
    assert bounds.energy_j() == pytest.approx(1000 * 120 + 900 / 1.8 * 240)


def test_many_widths_are_asked_only_for_what_can_run() -> None:
    """Sets larger than any that runs are not asked for, so that many families and widths stay quick."""
    asked: list[int] = []

    def pairs_at_most(families: tuple[str, ...], gpus: int) -> list[SetPerformance]:
        asked.append(len(families))
        shared = len(families) == 2 and gpus == 1
        return [SetPerformance(100.0, (1.0,) * len(families))] if len(families) == 1 or shared else []

    jobs = [job(n, f"F{n % 10}", width) for width in (1, 2, 4, 8) for n in range(10)]
    bounds = bounds_of(jobs, 64, pairs_at_most, 4)
    assert (asked.count(1), asked.count(2), asked.count(3), asked.count(4)) == (40, 4 * 55, 220, 0)
    assert bounds.energy_j() == pytest.approx(100 * 3600 * (10 / 2 + 30))


def test_the_curve_falls_from_the_exclusive_energy() -> None:
    """The Pareto curve starts at the exclusive energy and never rises with the stretch."""
    truth = PaperTruth()
    bounds = bounds_of(one_of_each(truth.families, 8), 8, performance_of_truth(truth, 8), 4)
    curve = bounds.pareto_curve()
    assert curve[0].energy_j == pytest.approx(
        3600 * sum(truth.performance((name,), 8).power_w for name in truth.families)
    )
    assert all(later.energy_j <= earlier.energy_j + 1e-6 for earlier, later in itertools.pairwise(curve))


@pytest.mark.parametrize(
    ("jobs", "speed", "expected_s"),
    [
        pytest.param([job(1, gpus=1, submit_s=5, work_s=10)], 4, 15, id="one-job-by-itself"),
        pytest.param([job(n, gpus=1, work_s=10) for n in range(8)], 4, 20, id="all-at-once"),
        pytest.param(
            [job(0, gpus=1, work_s=1), *(job(n, gpus=2, submit_s=50, work_s=10) for n in range(4))],
            4,
            70,
            id="what-comes-late-counts-from-there",
        ),
        pytest.param([job(n, gpus=1, work_s=10) for n in range(8)], 8, 10, id="sharing-makes-it-faster"),
    ],
)
def test_the_makespan(jobs: list[TraceJob], speed: float, expected_s: float) -> None:
    """The makespan's bound is the longest of single jobs and of the work from any submission on."""
    assert makespan_bound_s(jobs, speed) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("jobs", "speed", "expected_s"),
    [
        pytest.param([job(1, gpus=1, work_s=10), job(2, gpus=1, work_s=30)], 8, 20, id="room-for-all"),
        pytest.param([job(1, gpus=1, work_s=30), job(2, gpus=1, work_s=10)], 1, 25, id="shortest-first"),
        # 30 s from 0; at 5 s a job of 10 s comes, ends at 15 s; the first goes on and ends at 40 s.
        pytest.param(
            [job(1, gpus=1, work_s=30), job(2, gpus=1, submit_s=5, work_s=10)],
            1,
            25,
            id="shortest-rest-first",
        ),
        pytest.param(
            [job(1, gpus=1, work_s=10), job(2, gpus=1, submit_s=100, work_s=10)], 1, 10, id="nobody-waits"
        ),
    ],
)
def test_the_mean_jct(jobs: list[TraceJob], speed: float, expected_s: float) -> None:
    """The mean JCT's bound is the larger of the mean work and of shortest-rest-first on a fluid machine."""
    assert jct_mean_bound_s(jobs, speed) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("jobs", "horizon_s", "expected"),
    [
        pytest.param([job(1, gpus=2, work_s=100)], 100, 0.5, id="half-asked-for"),
        pytest.param([job(1, gpus=4, submit_s=50, work_s=100)], 100, 0.5, id="nothing-before-it-comes"),
        pytest.param([job(n, gpus=4, work_s=100) for n in range(3)], 100, 1.0, id="more-than-there-is"),
        pytest.param([job(1, gpus=4, work_s=10), job(2, gpus=4, submit_s=200)], 100, 0.1, id="after-the-end"),
        pytest.param([job(1, gpus=1, work_s=1000)], 100, 0.25, id="one-job-fills-its-gpus-only"),
    ],
)
def test_allocated_utilisation(jobs: list[TraceJob], horizon_s: float, expected: float) -> None:
    """No more GPU time is held than was asked for by then, nor than there is."""
    assert utilisation_bound(jobs, 4, horizon_s) == pytest.approx(expected)


def fifo_run(jobs: list[TraceJob], gpus: int) -> Achieved:
    """A schedule to hold against the bounds: strict FIFO on one machine, nobody shares."""
    running: list[tuple[float, int]] = []
    now_s, free, ends_s = 0.0, gpus, []
    for one in jobs:
        now_s = max(now_s, one.submit_s)
        running.sort()
        while running and (running[0][0] <= now_s or free < one.gpus):
            end_s, returned = running.pop(0)
            now_s, free = max(now_s, end_s), free + returned
        free -= one.gpus
        running.append((now_s + one.work_s, one.gpus))
        ends_s.append(now_s + one.work_s)
    makespan_s = max(ends_s)
    held_s = sum(one.gpus * one.work_s for one in jobs)
    return Achieved(
        energy_j=100 * held_s,
        asleep_j=0.0,
        mean_stretch=1.0,
        makespan_s=makespan_s,
        jct_mean_s=sum(end - one.submit_s for end, one in zip(ends_s, jobs, strict=True)) / len(jobs),
        allocated_utilisation=held_s / (gpus * makespan_s),
    )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.floats(0, 500), st.floats(1, 900)), min_size=1, max_size=12
    )
)
def test_no_schedule_passes_a_bound(drawn: list[tuple[int, float, float]]) -> None:
    """A FIFO schedule of random jobs is never better than any of the bounds."""
    jobs = sorted((job(n, "A", *values) for n, values in enumerate(drawn)), key=lambda one: one.submit_s)
    run = fifo_run(jobs, 4)
    of_run = bounds_of(jobs, 4).of_run(run)
    for name, gap in gaps(run, of_run).items():
        assert gap is not None
        assert gap <= 1e-9 if name == "allocated_utilisation" else gap >= -1e-9, name


def test_sleeping_nodes_raise_the_bound() -> None:
    """The asleep draw of a run is part of the bound that it is held against."""
    bounds = bounds_of([job(1, "A", 1, work_s=100)], 4)
    assert bounds.of_run(achieved(asleep_j=500.0)).energy_j == pytest.approx(100 * 100 + 500)


def test_time_lost_to_restarts_may_be_held() -> None:
    """GPU seconds without progress raise what can be held: sharing and moving do not pass the bound."""
    bounds = bounds_of([job(1, "A", 1, work_s=100)], 1)
    run = achieved(makespan_s=130.0, allocated_utilisation=1.0, lost_gpu_s=30.0)
    assert bounds.of_run(run).allocated_utilisation == pytest.approx(1.0)


def test_gaps_are_shares_of_the_bound() -> None:
    """A gap is (achieved - bound) / bound; the distance of energy is a share of FIFO's energy instead."""
    bounds = bounds_of([job(1, "A", 1, work_s=100)], 4)
    run = achieved(energy_j=15_000.0, makespan_s=200.0, jct_mean_s=150.0, allocated_utilisation=0.1)
    found = gaps(run, bounds.of_run(run))
    assert found["energy_j"] == pytest.approx(0.5)
    assert found["makespan_s"] == pytest.approx(1.0)
    assert found["jct_mean_s"] == pytest.approx(0.5)
    assert found["allocated_utilisation"] == pytest.approx((0.1 - 0.125) / 0.125)
    assert distance_to_bound(15_000, 10_000, 20_000) == pytest.approx(0.25)


def test_no_job_has_no_bound() -> None:
    """Bounds of nothing are refused."""
    with pytest.raises(ValueError, match="jobs: is empty"):
        bounds_of([], 4)
