"""The benchmarks themselves, and their agreement with independent programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import write_trace
from tests.simulation.checker import problems_of
from tests.simulation.paper_rules import paper_rules
from tests.simulation.plain_program import Choices as PlainChoices
from tests.simulation.plain_program import PlainJob, simulate
from tests.unit.simulator.benchmark_data import benchmark_data


@pytest.mark.parametrize(
    ("order", "mean_jct_s", "makespan_s"), [("fifo", 46_005.89, 2_437_416), ("sjf", 43_152.47, 2_467_016)]
)
def test_a_real_trace_agrees_with_an_independent_program(
    tmp_path: Path, order: str, mean_jct_s: float, makespan_s: float
) -> None:
    """ITP's cluster 10 on 3 nodes of 8, no sharing, best fit, strict head of line: to the second."""
    trace = read_trace(benchmark_data("itp_traces/cluster10.csv"))
    write_trace(tmp_path / "jobs.csv", [job for job in trace.jobs if job.gpus in {1, 2, 4, 8}])
    choices = Choices(policy="exclusive", order=order, nodes=3, gpus_per_node=8)
    summary = run_and_write(from_trace(tmp_path / "jobs.csv", choices), tmp_path / "run")
    jct = summary["jct_s"]
    assert isinstance(jct, dict)
    assert jct["mean"] == pytest.approx(mean_jct_s, abs=0.01)
    assert summary["makespan_s"] == makespan_s


@pytest.mark.parametrize("accounting", list(Accounting))
def test_the_papers_cluster_saves_energy_within_all_limits(tmp_path: Path, accounting: Accounting) -> None:
    """A part of eaco-nodes: sound, as a plain program has it, within all limits, and sharing pays."""
    benchmark_data("itp_traces/cluster01.csv")
    energy_j = {}
    for policy in ("exclusive", "fifo_packed", "eaco"):
        choices = Choices(policy=policy, nodes=4, load=1.3, jobs=80, accounting=accounting)
        summary = run_and_write(BENCHMARKS["eaco-nodes"](choices), tmp_path / policy)
        assert problems_of(tmp_path / policy, paper_rules(4)) == []
        energy = summary["energy_j"]
        assert isinstance(energy, dict)
        energy_j[policy] = energy["total"]
        _agrees_with_the_plain_program(summary, choices)
        if policy != "fifo_packed":
            assert summary["limit_misses"] == 0
    assert energy_j["eaco"] < energy_j["fifo_packed"] < energy_j["exclusive"]


def _agrees_with_the_plain_program(summary: dict[str, object], choices: Choices) -> None:
    """Energy, stretch and waits are those of a program that shares no code with what decided here."""
    scenario = BENCHMARKS["eaco-nodes"](choices)
    jobs = [PlainJob(job.family, job.submit_s, job.work_s, job.stretch_limit) for job in scenario.jobs]
    plain = simulate(
        jobs,
        scenario.nodes,
        PlainChoices(
            policy=choices.policy,
            max_residents=2 if choices.policy == "fifo_packed" else 4,
            sleep=choices.accounting is Accounting.SLEEP,
        ),
    )
    energy, stretch, wait = summary["energy_j"], summary["stretch"], summary["wait_s"]
    assert isinstance(energy, dict)
    assert isinstance(stretch, dict)
    assert isinstance(wait, dict)
    assert plain.energy_j == pytest.approx(energy["total"], rel=1e-6)
    assert plain.mean_stretch == pytest.approx(stretch["mean"], rel=1e-6)
    # Instants are whole milliseconds there.
    assert plain.mean_wait_s == pytest.approx(wait["mean"], abs=0.01)
    assert plain.limit_misses == summary["limit_misses"]


def test_what_is_learnt_on_the_way_is_used(tmp_path: Path) -> None:
    """With solo profiles only, sets that stood their trial are joined again: energy is saved all the same."""
    benchmark_data("itp_traces/cluster01.csv")
    energy_j = {}
    for belief in (Belief.KNOWN, Belief.SOLO):
        choices = Choices(nodes=4, load=1.3, jobs=80, belief=belief)
        summary = run_and_write(BENCHMARKS["eaco-nodes"](choices), tmp_path / belief)
        energy = summary["energy_j"]
        assert isinstance(energy, dict)
        energy_j[belief] = energy["total"]
        assert summary["confirmed"]
    assert energy_j[Belief.SOLO] == pytest.approx(energy_j[Belief.KNOWN], rel=0.1)


def test_compute_bound_jobs_never_run_out_of_memory(tmp_path: Path) -> None:
    """A part of gavel-gpus, pairs learnt on the way: no pair that does not fit is ever tried."""
    benchmark_data("itp_traces/cluster08.csv")
    choices = Choices(nodes=2, load=1.2, jobs=60)
    summary = run_and_write(BENCHMARKS["gavel-gpus"](choices), tmp_path)
    assert summary["oom"] == 0
    assert summary["trials"]
