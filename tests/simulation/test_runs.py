"""Whole runs, held to what their own files must say, for every policy and ordering."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.energy.configuration import JobClass, SetPerformance, configuration_program
from airflow_provider_eaco.core.policy.registry import ORDERINGS, POLICIES, RULES
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from tests.simulation.checker import problems_of
from tests.simulation.files import RunFiles
from tests.simulation.paper_rules import paper_rules, paper_truth

MAX_RESIDENTS = 4


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    """Up to a dozen jobs of the paper's families and two teams that crowd into a few hours."""
    count = draw(st.integers(1, 12))
    submits = sorted(draw(st.lists(st.integers(0, 9_000), min_size=count, max_size=count)))
    return [
        TraceJob(
            f"job-{number:02d}",
            draw(st.sampled_from(["J1", "J2", "J3", "J4"])),
            draw(st.sampled_from([1, 2, 4, 8])),
            float(submit_s),
            float(draw(st.integers(60, 9_000))),
            draw(st.sampled_from([1.01, 1.05, 1.15, None])),
            draw(st.integers(0, 2)),
            draw(st.sampled_from(["red", "blue"])),
        )
        for number, submit_s in enumerate(submits)
    ]


def least_active_j(files: RunFiles) -> float:
    """The energy program's bound for the work that the run did, all nodes packed at will."""
    work_s: dict[tuple[str, int], float] = {}
    for job in files.jobs.values():
        work_s[job.family, job.gpus] = work_s.get((job.family, job.gpus), 0.0) + job.work_s
    total_j = 0.0
    for gpus in {gpus for _, gpus in work_s}:

        def ways(families: tuple[str, ...], gpus: int = gpus) -> list[SetPerformance]:
            return [SetPerformance(*paper_truth(families, gpus))]

        classes = [JobClass(family, None, work) for (family, count), work in work_s.items() if count == gpus]
        program = configuration_program(classes, ways, MAX_RESIDENTS)
        total_j += HighsEnergySolver().solve(program).energy_j
    return total_j


@pytest.mark.parametrize("order", sorted(ORDERINGS))
@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=traces(),
    nodes=st.integers(1, 3),
    accounting=st.sampled_from(list(Accounting)),
    belief=st.sampled_from(list(Belief)),
    error=st.sampled_from([0.0, 0.1]),
    rules=st.sets(st.sampled_from(sorted(RULES))).map(lambda names: tuple(sorted(names))),
)
def test_a_random_run_is_sound(
    policy: str,
    order: str,
    *,
    jobs: list[TraceJob],
    nodes: int,
    accounting: Accounting,
    belief: Belief,
    error: float,
    rules: tuple[str, ...],
) -> None:
    """Whatever is believed, the files of a run agree with the truth, with each other and with the bound."""
    with TemporaryDirectory() as name:
        trace, folder = Path(name) / "trace.csv", Path(name) / "run"
        write_trace(trace, jobs)
        choices = Choices(
            policy, order, rules, nodes=nodes, accounting=accounting, belief=belief, belief_error=error
        )
        run_and_write(from_trace(trace, choices), folder)
        assert problems_of(folder, paper_rules(MAX_RESIDENTS)) == []
        files = RunFiles(folder)
        assert files.summary["energy_j"]["active"] >= least_active_j(files) * (1 - 1e-6)
        if policy == "exclusive":
            assert files.summary["stretch"]["max"] == pytest.approx(1, abs=1e-3)
