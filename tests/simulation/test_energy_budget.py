"""Runs under an energy budget, held to their own files: no decision breaks it, under any policy."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget
from airflow_provider_eaco.core.policy.registry import POLICIES
from airflow_provider_eaco.simulator.__main__ import BAD_INPUT, main
from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from tests.simulation.checker import problems_of
from tests.simulation.files import RunFiles
from tests.simulation.paper_rules import paper_rules, paper_truth
from tests.simulation.test_runs import MAX_RESIDENTS

IDLE_W = 392.0
DAY_S = 86_400.0
# The most that one job adds to an idle node: J4 on all eight GPUs.
LARGEST_W = 1533.0 - IDLE_W
FEW = settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def crowds(draw: st.DrawFn, within_s: int) -> list[TraceJob]:
    """Jobs on whole nodes, more than there is room for, that come within some time."""
    count = draw(st.integers(6, 10))
    submits = sorted(draw(st.lists(st.integers(0, within_s), min_size=count, max_size=count)))
    return [
        TraceJob(
            f"job-{number:02d}",
            draw(st.sampled_from(["J1", "J2", "J3", "J4"])),
            8,
            float(submit_s),
            float(draw(st.integers(2_000, 9_000))),
            draw(st.sampled_from([1.05, 1.15, None])),
        )
        for number, submit_s in enumerate(submits)
    ]


def run(folder: Path, jobs: list[TraceJob], choices: Choices) -> RunFiles:
    """Simulate the jobs and return the files, which are sound."""
    write_trace(folder / "trace.csv", jobs)
    run_and_write(from_trace(folder / "trace.csv", choices), folder / "run")
    assert problems_of(folder / "run", paper_rules(MAX_RESIDENTS)) == []
    return RunFiles(folder / "run")


def highest_w(files: RunFiles) -> float:
    """The most that all nodes ever drew together."""
    instants = sorted({row.start_s for row in files.nodes})
    return max(
        math.fsum(row.power_w for row in files.nodes if row.start_s <= at_s < row.end_s) for at_s in instants
    )


def used_kwh(files: RunFiles, since_s: float, until_s: float) -> float:
    """What jobs used between two instants, by the truth, each member of a set its even share."""
    energy_j = 0.0
    for row in files.schedule:
        length_s = min(row.end_s, until_s) - max(row.start_s, since_s)
        if length_s > 0:
            families = tuple(sorted(files.jobs[name].family for name in row.residents))
            energy_j += paper_truth(families, len(row.gpus))[0] * length_s / len(row.residents)
    return energy_j / 3.6e6


@pytest.mark.parametrize("policy", sorted(POLICIES))
@FEW
@given(
    jobs=crowds(within_s=600),
    nodes=st.integers(2, 3),
    accounting=st.sampled_from(list(Accounting)),
    spare_w=st.floats(0, 500),
)
def test_the_watts_are_never_exceeded(
    policy: str, *, jobs: list[TraceJob], nodes: int, accounting: Accounting, spare_w: float
) -> None:
    """At no instant of a run do the nodes draw more than a budget that holds; every job still runs."""
    limit_w = nodes * IDLE_W + LARGEST_W + spare_w
    choices = Choices(policy, nodes=nodes, accounting=accounting, energy_budget=EnergyBudget(limit_w))
    with TemporaryDirectory() as name:
        files = run(Path(name), jobs, choices)
    assert highest_w(files) <= limit_w + 1e-6


@pytest.mark.parametrize("policy", sorted(POLICIES))
@FEW
@given(jobs=crowds(within_s=20_000), nodes=st.integers(1, 3), limit_kwh=st.floats(0.1, 2))
def test_nobody_begins_once_the_days_energy_is_used_up(
    policy: str, *, jobs: list[TraceJob], nodes: int, limit_kwh: float
) -> None:
    """At each first start the day's use is below the budget; who has to wait starts on a later day."""
    choices = Choices(policy, nodes=nodes, energy_budget=EnergyBudget(kwh_per_day=limit_kwh))
    with TemporaryDirectory() as name:
        files = run(Path(name), jobs, choices)
    for rows in files.by_job.values():
        began_s = rows[0].start_s
        assert used_kwh(files, began_s // DAY_S * DAY_S, began_s) < limit_kwh + 1e-9
    held = {row.job_id for row in files.decisions if row.reason == "over_energy_budget"}
    for job_id in held:
        assert files.by_job[job_id][0].start_s >= DAY_S


@FEW
@given(jobs=crowds(within_s=600), nodes=st.integers(1, 3), policy=st.sampled_from(sorted(POLICIES)))
def test_a_budget_that_warns_changes_nothing(jobs: list[TraceJob], nodes: int, policy: str) -> None:
    """The run is the same to the byte, however small the budget is."""
    budget = EnergyBudget(1.0, 0.001, BudgetAction.WARN)
    with TemporaryDirectory() as name:
        folders = [Path(name) / "with", Path(name) / "without"]
        for folder, own in zip(folders, (budget, None), strict=True):
            folder.mkdir()
            run(folder, jobs, Choices(policy, nodes=nodes, energy_budget=own))
        for file in ("schedule.csv", "nodes.csv", "decisions.csv"):
            assert len({(folder / "run" / file).read_bytes() for folder in folders}) == 1


def test_the_command_takes_a_budget_and_says_when_a_job_can_never_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Watts below what a job needs end the run with its name and the reason."""
    write_trace(tmp_path / "trace.csv", [TraceJob("a", "J4", 8, 0.0, 100.0)])
    words = ["run", "--trace", str(tmp_path / "trace.csv"), "--out", str(tmp_path / "run"), "--no-report"]
    assert main([*words, "--power-budget", "1000"]) == BAD_INPUT
    assert "the first is a (over_energy_budget)" in capsys.readouterr().err
    assert main([*words, "--power-budget", "1600", "--energy-budget", "5"]) == 0
    summary = RunFiles(tmp_path / "run").summary
    assert summary["energy_budget"] == {"power_w": 1600.0, "kwh_per_day": 5.0, "action": "hold"}
