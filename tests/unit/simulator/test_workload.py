"""The benchmarks' jobs are drawn exactly by their conventions."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Choices
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob
from airflow_provider_eaco.simulator.workload import (
    eaco_nodes_jobs,
    epoch_s,
    gavel_jobs,
    philly_jobs,
    stretched_to_load,
)
from tests.unit.simulator.benchmark_data import benchmark_data

FAMILIES = ("J1", "J2", "J3", "J4")


def job(submit_s: float, work_s: float, gpus: int = 1) -> TraceJob:
    return TraceJob(f"at-{submit_s}", "J1", gpus, submit_s, work_s)


def test_eaco_nodes_follows_its_convention() -> None:
    """Families first, then limits, from one generator; arrivals and durations of the trace at the load."""
    path = benchmark_data("itp_traces/cluster01.csv")
    with path.open(newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: float(row["submission_time"]))[:1000]
    draws = np.random.default_rng(7)
    families = [FAMILIES[number] for number in draws.integers(4, size=1000)]
    limits = [(1.05, 1.15, 1.15, None)[number] for number in draws.integers(4, size=1000)]

    drawn = eaco_nodes_jobs(FAMILIES, 28, 1.3, 7)

    assert [job.family for job in drawn.jobs] == families
    assert [job.stretch_limit for job in drawn.jobs] == limits
    assert [job.work_s for job in drawn.jobs] == [float(row["duration"]) for row in rows]
    assert {job.gpus for job in drawn.jobs} == {8}
    span_s = drawn.jobs[-1].submit_s - drawn.jobs[0].submit_s
    assert drawn.jobs[0].submit_s == 0
    assert sum(job.work_s for job in drawn.jobs) / (28 * span_s) == pytest.approx(1.3, rel=1e-6)
    assert drawn.draws.random() == draws.random()


def test_gavel_gpus_takes_single_gpu_jobs() -> None:
    """The first single-GPU jobs of cluster 08, with the looser limits of compute-bound jobs."""
    benchmark_data("itp_traces/cluster08.csv")
    jobs = gavel_jobs(["A3C:", "LM:5"], 64, 0.9, 1, 200).jobs
    assert len(jobs) == 200
    assert {job.gpus for job in jobs} == {1}
    assert {job.stretch_limit for job in jobs} == {1.2, 1.6, None}
    assert sum(job.work_s for job in jobs) / (64 * jobs[-1].submit_s) == pytest.approx(0.9, rel=1e-6)


def test_a_job_wider_than_a_node_comes_in_parts() -> None:
    """The Philly trace keeps its GPU time; what no node holds is there as jobs of whole nodes."""
    benchmark_data("philly_trace/jobs.csv")
    jobs = philly_jobs(["A3C:"], 8, 1, None).jobs
    assert {job.gpus for job in jobs} == {1, 2, 4, 8}
    assert (
        len({job.job_id.rsplit("-", 1)[0] if job.job_id.count("-") > 1 else job.job_id for job in jobs})
        == 54_768
    )
    assert len({job.job_id for job in jobs}) == len(jobs)


def test_a_load_needs_a_span() -> None:
    """Jobs that are all submitted at once have no load that a factor could reach."""
    with pytest.raises(TraceError, match="one instant"):
        stretched_to_load([job(5, 10), job(5, 20)], 1.0, 8)


@pytest.mark.parametrize(("work_s", "expected_s"), [(100.0, 20.0), (7_020.0, 1_404.0), (1e6, 1_404.0)])
def test_a_job_has_at_least_five_epochs(work_s: float, expected_s: float) -> None:
    """An epoch is 1,404 s of work alone, and never more than a fifth of it."""
    assert epoch_s(job(0, work_s)) == expected_s


@pytest.mark.parametrize("benchmark", ["gavel-gpus", "scale"])
def test_no_more_than_pairs_were_measured(benchmark: str) -> None:
    """Larger sets are refused where the truth knows none, instead of being run as pairs."""
    with pytest.raises(InvalidSettingError, match=r"--max-residents: is 3; expected 1 or 2, since Gavel"):
        BENCHMARKS[benchmark](Choices(max_residents=3))
