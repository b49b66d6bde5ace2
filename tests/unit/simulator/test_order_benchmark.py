"""The benchmark ``order``: its days, what orders gain on them, and the cross-check on a real trace."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.simulator.order_benchmark import index_of, order_settings, run_day
from airflow_provider_eaco.simulator.order_workload import (
    DAY_S,
    HOUR_S,
    OrderDay,
    OrderJob,
    Scenario,
    bound_gpu_s,
    daily_demand,
    draw_day,
    with_duration_error,
)
from airflow_provider_eaco.simulator.readers import read_trace
from tests.unit.simulator.benchmark_data import benchmark_data

SEEDS = range(20)


def used(day: OrderDay, order: str, *, peak: bool = False) -> float:
    """GPU time used over the day, in points of what there is."""
    result = run_day(day, order_settings(day, order, peak=peak))
    return 100 * result.used_gpu_s(day) / (day.gpus * DAY_S)


def bound(day: OrderDay) -> float:
    """The most that any schedule could use, in points."""
    return 100 * bound_gpu_s(day) / (day.gpus * DAY_S)


@pytest.mark.parametrize("scenario", Scenario)
def test_a_day_asks_for_its_load(scenario: Scenario) -> None:
    """Jobs are drawn until load is reached and not one more; half are there at once, the rest by noon."""
    day = draw_day(scenario, 64, 1.0, seed=3)
    asked = [job.gpus * job.work_s for job in sorted(day.jobs, key=lambda job: job.job_id)]
    wanted = 64 * DAY_S - day.demand_gpu_s
    assert sum(asked[:-1]) < wanted <= sum(asked)
    at_once = sum(job.submit_s == 0 for job in day.jobs)
    assert at_once == len(day.jobs) // 2
    assert max(job.submit_s for job in day.jobs) <= 12 * HOUR_S
    assert {job.gpus for job in day.jobs} == {1, 2, 4, 8}
    assert draw_day(scenario, 64, 1.0, seed=3) == day


def test_demand_is_low_at_night_and_highest_at_noon() -> None:
    """The curve of the benchmark, hour by hour."""
    curve = daily_demand(Scenario.MIXED)
    assert (curve[0], curve[12], max(curve), min(curve)) == (1, 4, 4, 1)
    assert sum(curve) == 59


def test_a_bound_counts_what_is_there_to_run() -> None:
    """No more than the jobs can use between submission and end, and no more than the GPUs there are."""
    job = OrderJob("j", 8, 12 * HOUR_S, 20 * HOUR_S, 1.0)
    assert bound_gpu_s(OrderDay(8, (job,), (0,) * 24)) == 8 * 12 * HOUR_S
    assert bound_gpu_s(OrderDay(8, (job,), (2,) * 24)) == 2 * DAY_S


@pytest.mark.parametrize("order", ["fifo", "sjf", "edf", "las", "backfill", "horizon", "greedy", "largest"])
@pytest.mark.parametrize("scenario", Scenario)
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_every_order_keeps_blocks_demand_and_the_bound(order: str, scenario: Scenario, sigma: float) -> None:
    """Gangs lie on aligned blocks, no GPU is held twice, demand has its GPUs where runs end in time."""
    day = draw_day(scenario, 16, 1.0, seed=5)
    if sigma:
        day = with_duration_error(day, sigma, seed=5)
    result = run_day(day, order_settings(day, order))
    held: dict[str, list[tuple[float, float]]] = {}
    for job in day.jobs:
        if job.job_id not in result.starts_s:
            continue
        start_s, end_s = result.starts_s[job.job_id], result.ends_s[job.job_id]
        assert start_s >= job.submit_s
        assert end_s - start_s == job.work_s
        indices = sorted(index_of(uuid) for uuid in result.placements[job.job_id].gpu_uuids)
        assert indices == list(range(indices[0], indices[0] + job.gpus))
        assert indices[0] % job.gpus == 0
        for uuid in result.placements[job.job_id].gpu_uuids:
            held.setdefault(uuid, []).append((start_s, end_s))
            for hour, needed in enumerate(day.demand):
                if not sigma and uuid.startswith("node-0000") and needed > index_of(uuid):
                    assert end_s <= hour * HOUR_S or start_s >= (hour + 1) * HOUR_S
    for spans in held.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert result.used_gpu_s(day) <= bound_gpu_s(day) * (1 + 1e-9)


@pytest.mark.parametrize(("load", "least_gain", "least_with_errors"), [(1.0, 18.0, 12.0), (1.5, 19.0, 12.7)])
def test_planning_gains_over_fifo_on_20_days(
    load: float, least_gain: float, least_with_errors: float
) -> None:
    """8 GPUs, batch: the points of GPU time promised, and two thirds with run times believed wrongly."""
    days = [draw_day(Scenario.BATCH, 8, load, seed) for seed in SEEDS]
    assert _gain(days) >= least_gain
    assert _gain([with_duration_error(d, 0.5, n) for n, d in enumerate(days[:8])]) >= least_with_errors


def test_at_a_low_load_planning_gains_most_of_what_is_there_to_gain() -> None:
    """8 GPUs, batch, load 0.7: what no schedule can exceed is close to fifo; planning closes the gap."""
    days = [draw_day(Scenario.BATCH, 8, 0.7, seed) for seed in SEEDS]
    possible = statistics.mean(map(bound, days)) - statistics.mean(used(day, "fifo") for day in days)
    assert _gain(days) >= 0.75 * possible


def test_planning_on_64_gpus_is_within_two_points_of_the_bound() -> None:
    """Where many jobs leave many choices, the plan is nearly the best that there can be."""
    day = draw_day(Scenario.BATCH, 64, 1.0, seed=0)
    assert used(day, "horizon") >= bound(day) - 2.0


@pytest.mark.parametrize("load", [0.7, 1.0, 1.5])
def test_a_curve_with_planning_gains_over_the_reserved_peak(load: float) -> None:
    """8 GPUs, mixed: of what lies between fifo with the peak reserved and the bound, most is gained."""
    days = [draw_day(Scenario.MIXED, 8, load, seed) for seed in SEEDS]
    base = statistics.mean(used(day, "fifo", peak=True) for day in days)
    gained = statistics.mean(used(day, "horizon") for day in days) - base
    assert gained >= 0.8 * (statistics.mean(map(bound, days)) - base)


def _gain(days: list[OrderDay]) -> float:
    return statistics.mean(used(day, "horizon") - used(day, "fifo") for day in days)


@pytest.mark.parametrize(
    ("order", "mean_jct_s", "makespan_s"), [("fifo", 46_005.89, 2_437_416.0), ("sjf", 43_152.47, 2_467_016.0)]
)
def test_a_real_trace_agrees_with_an_independent_program(
    order: str, mean_jct_s: float, makespan_s: float
) -> None:
    """ITP's cluster 10 on 3 nodes of 8 GPUs, strict head of line and best fit: to the second."""
    trace = read_trace(benchmark_data("itp_traces/cluster10.csv"), "itp")
    jobs = tuple(
        OrderJob(f"{row:04d}", job.gpus, job.submit_s, job.work_s, job.work_s)
        for row, job in enumerate(trace.jobs)
        if job.gpus in {1, 2, 4, 8}
    )
    first_s = min(job.submit_s for job in jobs)
    day = OrderDay(24, jobs, (0,) * 24)
    settings = PoolSettings(name="order", policy="exclusive", ordering=order, memory_margin_mib=0)
    result = run_day(day, settings, until_s=math.inf)
    assert len(jobs) == 258
    jct_s = statistics.fmean(result.ends_s[job.job_id] - job.submit_s for job in jobs)
    assert jct_s == pytest.approx(mean_jct_s, abs=0.01)
    assert max(result.ends_s.values()) - first_s == makespan_s
