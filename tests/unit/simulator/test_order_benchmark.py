"""The benchmark ``order``: its days, what orders gain on them, and what is left behind of a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.order_benchmark import order_figures
from airflow_provider_eaco.simulator.order_workload import (
    DAY_S,
    FAMILY,
    HOUR_S,
    DayChoices,
    DayKind,
    DemandKept,
    OrderDay,
    Oversized,
    bound_gpu_s,
    daily_demand,
    draw_day,
)
from airflow_provider_eaco.simulator.recording import Recording, RunInterval
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Choices, Scenario
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob
from tests.simulation.checker import problems_of
from tests.simulation.files import RunFiles
from tests.simulation.paper_rules import gang_rules
from tests.unit.simulator.benchmark_data import benchmark_data

SEEDS = range(20)
DRAWN = (DayKind.BATCH, DayKind.MIXED)
PEAK = DayChoices(DayKind.MIXED, DemandKept.PEAK, Oversized.WAIT)


def ran(
    order: str,
    load: float,
    seed: int,
    *,
    gpus: int = 8,
    choices: DayChoices = DayChoices(),  # noqa: B008 - a frozen value
    sigma: float = 0.0,
) -> tuple[Scenario, Recording]:
    chosen = Choices(
        "exclusive", order, seed=seed, nodes=gpus // 8, load=load, duration_error=sigma, day=choices
    )
    scenario = BENCHMARKS["order"](chosen)
    return scenario, Simulation(scenario).run()


@cache
def used(
    order: str,
    load: float,
    seed: int,
    *,
    gpus: int = 8,
    choices: DayChoices = DayChoices(),  # noqa: B008 - a frozen value
    sigma: float = 0.0,
) -> float:
    """GPU time used over the day, in points of what there is."""
    scenario, recording = ran(order, load, seed, gpus=gpus, choices=choices, sigma=sigma)
    assert scenario.day is not None
    queued = len(scenario.jobs)
    figures = order_figures(scenario.day, choices, recording.runs, scenario.node_names[0], queued)
    assert figures["used"] <= figures["bound"] + 1e-9
    return 100 * float(figures["used"])


def bound(day: OrderDay) -> float:
    """The most that any schedule could use, in points."""
    return 100 * bound_gpu_s(day) / (day.gpus * DAY_S)


def gang(gpus: int, submit_s: float, work_s: float, priority: int = 0) -> TraceJob:
    return TraceJob(f"job-{gpus}-{submit_s:g}", FAMILY, gpus, submit_s, work_s, priority=priority)


@pytest.mark.parametrize("kind", DRAWN)
def test_a_day_asks_for_its_load(kind: DayKind) -> None:
    """Jobs are drawn until load is reached and not one more; half are there at once, the rest by noon."""
    day = draw_day(kind, 64, 1.0, seed=3)
    asked = [job.gpus * job.work_s for job in sorted(day.jobs, key=lambda job: job.job_id)]
    wanted = 64 * DAY_S - day.demand_gpu_s
    assert sum(asked[:-1]) < wanted <= sum(asked)
    at_once = sum(job.submit_s == 0 for job in day.jobs)
    assert at_once == len(day.jobs) // 2
    assert max(job.submit_s for job in day.jobs) <= 12 * HOUR_S
    assert {job.gpus for job in day.jobs} == {1, 2, 4, 8}
    assert draw_day(kind, 64, 1.0, seed=3) == day


def test_demand_is_low_at_night_and_highest_at_noon() -> None:
    """The curve of the benchmark, hour by hour."""
    curve = daily_demand(DayKind.MIXED)
    assert (curve[0], curve[12], max(curve), min(curve)) == (1, 4, 4, 1)
    assert sum(curve) == 59


def test_a_bound_counts_what_is_there_to_run() -> None:
    """No more than the jobs can use between submission and end, and no more than the GPUs there are."""
    job = gang(8, 12 * HOUR_S, 20 * HOUR_S)
    assert bound_gpu_s(OrderDay(8, (job,))) == 8 * 12 * HOUR_S
    assert bound_gpu_s(OrderDay(8, (job,), (2,) * 24)) == 2 * DAY_S


def test_the_figures_of_a_day() -> None:
    """Used is what jobs and served demand took in 24 hours; value what was done by then, by priority."""
    jobs = (gang(4, 0.0, 6 * HOUR_S, priority=1), gang(2, 0.0, 30 * HOUR_S), gang(8, 0.0, HOUR_S))
    day = OrderDay(8, jobs, (2,) * 24)
    runs = [
        RunInterval(jobs[0].job_id, 0.0, 6 * HOUR_S, "n", (4, 5, 6, 7), (jobs[0].job_id,), 1.0),
        # On a GPU of the demand: what it holds there is not served.
        RunInterval(jobs[1].job_id, 20 * HOUR_S, 50 * HOUR_S, "n", (1, 2), (jobs[1].job_id,), 1.0),
    ]
    figures = order_figures(day, DayChoices(DayKind.MIXED), runs, "n", 2)
    assert figures["batch"] * 8 * 24 == pytest.approx(4 * 6 + 2 * 4)
    assert figures["served"] * 8 * 24 == pytest.approx(2 * 24 - 4)
    assert figures["used"] * 8 * 24 == pytest.approx(32 + 44)
    assert figures["value"] == pytest.approx(2 * 4 * 6 / (2 * 4 * 6 + 2 * 30 + 8))
    assert (figures["left_out"], figures["never_started"]) == (1, 0)
    waited = order_figures(day, DayChoices(DayKind.MIXED, oversized=Oversized.WAIT), runs, "n", 3)
    assert (waited["left_out"], waited["never_started"]) == (0, 1)


@pytest.mark.parametrize("order", ["fifo", "sjf", "backfill", "horizon", "greedy", "largest"])
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_every_order_keeps_blocks_and_demand(order: str, kind: DayKind, sigma: float) -> None:
    """Gangs lie on aligned blocks, no GPU is held twice, demand has its GPUs where runs end in time."""
    scenario, recording = ran(order, 1.0, 5, gpus=16, choices=DayChoices(kind), sigma=sigma)
    assert scenario.day is not None
    assert len(recording.runs) == len(scenario.jobs)
    held: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for run in recording.runs:
        assert list(run.gpus) == list(range(run.gpus[0], run.gpus[0] + len(run.gpus)))
        assert run.gpus[0] % len(run.gpus) == 0
        for index in run.gpus:
            held.setdefault((run.node, index), []).append((run.start_s, run.end_s))
            for hour, needed in enumerate(scenario.day.demand):
                if not sigma and run.node == scenario.node_names[0] and needed > index:
                    assert run.end_s <= hour * HOUR_S or run.start_s >= (hour + 1) * HOUR_S
    for spans in held.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("load", "days", "least_gain", "least_with_errors"), [(1.0, 20, 18.0, 12.0), (1.5, 8, 19.0, 12.7)]
)
def test_planning_gains_over_fifo(
    load: float, days: int, least_gain: float, least_with_errors: float
) -> None:
    """8 GPUs, batch: the points of GPU time promised, and two thirds with run times believed wrongly."""
    assert _gain(load, SEEDS[:days]) >= least_gain
    assert _gain(load, SEEDS[: days // 2], sigma=0.5) >= least_with_errors


def test_at_a_low_load_planning_gains_most_of_what_is_there_to_gain() -> None:
    """8 GPUs, batch, load 0.7: what no schedule can exceed is close to fifo; planning closes the gap."""
    possible = statistics.mean(
        bound(draw_day(DayKind.BATCH, 8, 0.7, seed)) - used("fifo", 0.7, seed) for seed in SEEDS
    )
    assert _gain(0.7, SEEDS) >= 0.75 * possible


def test_planning_on_64_gpus_is_within_two_points_of_the_bound() -> None:
    """Where many jobs leave many choices, the plan is nearly the best that there can be."""
    assert used("horizon", 1.0, 0, gpus=64) >= bound(draw_day(DayKind.BATCH, 64, 1.0, 0)) - 2.0


@pytest.mark.parametrize(("load", "days"), [(0.7, 20), (1.0, 20), (1.5, 8)])
def test_a_curve_with_planning_gains_over_the_reserved_peak(load: float, days: int) -> None:
    """8 GPUs, mixed: of what lies between fifo with the peak reserved and the bound, most is gained."""
    seeds = SEEDS[:days]
    base = statistics.mean(used("fifo", load, seed, choices=PEAK) for seed in seeds)
    planned = statistics.mean(
        used("horizon", load, seed, choices=DayChoices(DayKind.MIXED)) for seed in seeds
    )
    most = statistics.mean(bound(draw_day(DayKind.MIXED, 8, load, seed)) for seed in seeds)
    assert planned - base >= 0.8 * (most - base)


def _gain(load: float, seeds: Sequence[int], sigma: float = 0.0) -> float:
    return statistics.mean(
        used("horizon", load, seed, sigma=sigma) - used("fifo", load, seed, sigma=sigma) for seed in seeds
    )


def test_the_head_of_the_line_waits_for_ever_beside_the_peak() -> None:
    """A job of 8 GPUs that waits on one node beside inference blocks fifo, and the run ends all the same."""
    scenario, recording = ran("fifo", 1.0, 0, choices=PEAK)
    assert scenario.day is not None
    eight = next(job for job in scenario.jobs if job.gpus == 8)
    queued = len(scenario.jobs)
    figures = order_figures(scenario.day, PEAK, recording.runs, scenario.node_names[0], queued)
    assert figures["never_started"] > 1
    behind = [job.job_id for job in scenario.jobs if job.submit_s > eight.submit_s]
    assert behind
    assert {run.job_id for run in recording.runs}.isdisjoint(behind)
    assert max(node.end_s for node in recording.nodes) == max(run.end_s for run in recording.runs)
    passed = used("fifo", 1.0, 0, choices=replace(PEAK, oversized=Oversized.LEAVE_OUT))
    assert passed > 100 * figures["used"]


def test_a_day_on_which_nothing_fits(tmp_path: Path) -> None:
    """Only inference is served then; the run has no length, and its figures stand."""
    seed = next(s for s in range(200) if {job.gpus for job in draw_day(DayKind.MIXED, 8, 0.7, s).jobs} == {8})
    words = ["run", "order", "--scenario", "mixed", "--load", "0.7", "--seed", f"{seed}", "--no-report"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    day = summary["order_day"]
    assert day["used"] == day["served"] == day["bound"] == pytest.approx(59 / 192)
    assert (day["left_out"], day["never_started"]) == (0, len(draw_day(DayKind.MIXED, 8, 0.7, seed).jobs))
    assert summary["makespan_s"] == 0
    assert set(summary["bounds"].values()) == set(summary["gaps"].values()) == {None}
    assert summary["pareto"] == []


def test_a_run_is_no_better_for_what_it_left_undone(tmp_path: Path) -> None:
    """Jobs that never start have no part in the bounds, which the run does not pass."""
    words = ["--scenario", "mixed", "--demand", "peak", "--oversized", "wait", "--seed", "0", "--no-report"]
    assert main(["run", "order", *words, "--out", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["order_day"]["never_started"] > 0
    for name, gap in summary["gaps"].items():
        assert gap <= 1e-9 if name == "allocated_utilisation" else gap >= -1e-9, name


@pytest.mark.parametrize("scenario", ["batch", "mixed"])
def test_a_run_leaves_its_files(scenario: str, tmp_path: Path) -> None:
    """`eaco-sim run order` writes the files of a run, sound like any other, with the figures of its day."""
    words = ["run", "order", "--scenario", scenario, "--gpus", "16", "--load", "0.7", "--order", "horizon"]
    assert main([*words, "--seed", "0", "--out", str(tmp_path), "--no-report"]) == 0
    assert problems_of(tmp_path, gang_rules()) == []
    files = RunFiles(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    day = summary["order_day"]
    assert (day["scenario"], summary["nodes"], summary["policy"]) == (scenario, 2, "exclusive")
    demand = daily_demand(DayKind(scenario))
    in_24_h = sum(len(row.gpus) * max(0.0, min(row.end_s, DAY_S) - row.start_s) for row in files.schedule)
    assert day["used"] == pytest.approx((in_24_h + sum(demand) * HOUR_S) / (16 * DAY_S))
    assert day["used"] <= day["bound"] <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--policy", "eaco"], "--policy: is eaco; order is about order alone", id="sharing"),
        pytest.param(["--gpus", "12"], "--gpus: is 12; expected a multiple of 8", id="half-a-node"),
        pytest.param(["--gpus", "8", "--nodes", "2"], "no --nodes beside", id="both"),
        pytest.param(["--gpus-per-node", "4"], "--gpus-per-node: 4 is not possible", id="small-nodes"),
        pytest.param(["--order", "quickest"], "--order: 'quickest' is not known", id="no-such-order"),
        pytest.param(
            ["--scenario", "mixed", "--load", "0.3"], "--load: the demand alone is more", id="no-job"
        ),
    ],
)
def test_what_cannot_be_run(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear message and exit code 2; nothing is written."""
    assert main(["run", "order", *words, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_belongs_to_the_benchmark() -> None:
    """Greedy fill, largest first and the day's choices are for this comparison alone."""
    benchmark_data("gavel_throughputs/pairs.csv")
    with pytest.raises(InvalidSettingError, match="belong to the benchmark order"):
        BENCHMARKS["gavel-gpus"](Choices(day=PEAK))
    with pytest.raises(InvalidSettingError, match="--order: 'greedy' is not known"):
        BENCHMARKS["gavel-gpus"](Choices(order="greedy"))


def test_days_of_real_traces() -> None:
    """The seed counts the days of the traces whose load is near; beyond the last, it is told how many."""
    benchmark_data("itp_traces/cluster01.csv")
    first, second = (draw_day(DayKind.ITP, 64, 1.0, number) for number in (0, 1))
    assert first.source != second.source
    for day in (first, second):
        assert 0 <= day.jobs[0].submit_s <= day.jobs[-1].submit_s < DAY_S
        assert {job.gpus for job in day.jobs} <= {1, 2, 4, 8}
        asked = sum(job.gpus * min(job.work_s, DAY_S) for job in day.jobs) / (64 * DAY_S)
        assert asked == pytest.approx(1.0, rel=0.15)
    with pytest.raises(TraceError, match=r"--seed: is 99; the traces have \d+ days with a load of 1 on 64"):
        draw_day(DayKind.ITP, 64, 1.0, 99)
