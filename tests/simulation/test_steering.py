"""Runs in which the policy puts nodes to sleep, wakes them and limits power, held to their own files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy import registry
from airflow_provider_eaco.core.policy.base import Steering
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.compare import variants_of
from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.runner import Simulation, SimulationError
from airflow_provider_eaco.simulator.scenario import BENCHMARKS, Accounting, Choices, SleepBy, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from tests.simulation.checker import problems_of
from tests.simulation.files import RunFiles
from tests.simulation.paper_rules import paper_rules
from tests.simulation.steering_policy import Restless
from tests.simulation.test_runs import traces
from tests.unit.simulator.benchmark_data import benchmark_data
from tests.unit.simulator.test_compare import options_of

JOBS = [
    TraceJob("a", "J1", 8, 0.0, 4_000.0, None),
    TraceJob("b", "J3", 8, 100.0, 3_000.0, 1.15),
    TraceJob("c", "J4", 8, 200.0, 2_000.0, None),
    TraceJob("late", "J2", 8, 9_000.0, 1_000.0, 1.05),
]


@pytest.fixture(scope="module", autouse=True)
def policies() -> Iterator[None]:
    """Offer the policy under its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "POLICIES", {**registry.POLICIES, "restless": Restless})
        yield


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    benchmark_data("zeus_power/summary_power_v100.csv")
    write_trace(tmp_path / "trace.csv", JOBS)
    return tmp_path / "trace.csv"


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=traces(),
    nodes=st.integers(1, 3),
    sleep=st.sampled_from(list(SleepBy)),
    belief=st.sampled_from(list(Belief)),
    levels=st.booleans(),
)
def test_a_steered_run_is_sound(
    jobs: list[TraceJob], nodes: int, sleep: SleepBy, belief: Belief, levels: bool
) -> None:
    """However a policy steers, progress, power and node states are those of the truth at each instant."""
    benchmark_data("zeus_power/summary_power_v100.csv")
    with TemporaryDirectory() as name:
        trace, folder = Path(name) / "trace.csv", Path(name) / "run"
        write_trace(trace, jobs)
        choices = Choices(
            "restless",
            nodes=nodes,
            accounting=Accounting.SLEEP,
            sleep=sleep,
            belief=belief,
            power_levels=levels,
        )
        summary = run_and_write(from_trace(trace, choices), folder)
        assert problems_of(folder, paper_rules(4)) == []
        assert bool(RunFiles(folder).limits) <= levels
        bounds = summary["bounds"]
        assert isinstance(bounds, dict)
        assert RunFiles(folder).summary["energy_j"]["total"] >= bounds["energy_j_at_stretch"] * (1 - 1e-6)


def test_the_policy_decides_when_nodes_sleep(trace: Path, tmp_path: Path) -> None:
    """With --sleep policy nodes do not sleep after 300 s but when they are told, and the summary says so."""
    words = ["run", "--trace", str(trace), "--policy", "restless", "--nodes", "3", "--no-report"]
    words += ["--accounting", "sleep", "--sleep", "policy", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    files = RunFiles(tmp_path / "run")
    assert files.summary["sleep"] == "policy"
    idle_s = {round(row.end_s - row.start_s, 1) for row in files.nodes if row.state == "idle"}
    assert idle_s - {300.0}
    assert any(row.state == "waking" for row in files.nodes)


def test_limits_have_a_file_of_their_own(trace: Path, tmp_path: Path) -> None:
    """Where power was limited limits.csv says so; a later run without limits takes it away."""
    folder = tmp_path / "run"
    run_and_write(from_trace(trace, Choices("restless", nodes=2, power_levels=True)), folder)
    files = RunFiles(folder)
    assert {limit.limit_w for limit in files.limits} <= {125.0, 150.0, 175.0, 200.0, 225.0}
    assert files.limits
    assert files.summary["power_levels_w"] == [225.0, 200.0, 175.0, 150.0, 125.0]
    run_and_write(from_trace(trace, Choices("restless", nodes=2)), folder)
    assert not (folder / "limits.csv").exists()


@pytest.mark.parametrize("order", ["cut", "swapped"])
def test_a_limit_that_was_not_obeyed_is_found(trace: Path, tmp_path: Path, order: str) -> None:
    """The checker sees a run whose progress and power are not those of its limits."""
    folder = tmp_path / "run"
    run_and_write(from_trace(trace, Choices("restless", nodes=2, power_levels=True)), folder)
    text = (folder / "limits.csv").read_text()
    lines = text.splitlines()
    cells = lines[1].split(",")
    changed = [*cells[:4], "125.0" if cells[4] != "125.0" else "225.0"] if order == "swapped" else None
    (folder / "limits.csv").write_text(
        "\n".join([lines[0], *([",".join(changed)] if changed else []), *lines[2:]])
    )
    problems = problems_of(folder, paper_rules(4))
    assert any("the truth is" in problem for problem in problems)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        pytest.param(Choices(mean_stretch=1.05), "--mean-stretch: policy eaco bounds", id="mean-stretch"),
        pytest.param(
            Choices(accounting=Accounting.SLEEP, sleep=SleepBy.POLICY),
            "--sleep policy: policy eaco puts no node to sleep",
            id="sleep",
        ),
        pytest.param(Choices("restless", sleep=SleepBy.POLICY), "needs --accounting sleep", id="always-on"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(trace: Path, choices: Choices, said: str) -> None:
    """A run whose policy passes an option over would be read as that option's effect."""
    with pytest.raises(InvalidSettingError, match=said):
        from_trace(trace, choices)


def test_gavels_boards_have_no_levels() -> None:
    """Power limits were measured for the input-bound benchmark's boards only."""
    with pytest.raises(InvalidSettingError, match="only eaco-nodes and traces"):
        BENCHMARKS["gavel-gpus"](Choices(power_levels=True))


def test_a_comparison_runs_each_option_where_it_is_used() -> None:
    """Each bound on the mean stretch and each way to sleep is a run of those policies alone that use it."""
    words = ["--policy", "eaco", "restless", "--mean-stretch", "1.03", "1.1", "--sleep", "rule", "policy"]
    names = [variant.name for variant in variants_of(options_of(*words))]
    assert names == [
        "exclusive_fifo_always-on",
        "eaco_fifo_always-on",
        "restless-1.03_fifo_always-on",
        "restless-1.1_fifo_always-on",
        "exclusive_fifo_sleep",
        "eaco_fifo_sleep",
        "restless-1.03_fifo_sleep",
        "restless-1.03_fifo_sleep-by-policy",
        "restless-1.1_fifo_sleep",
        "restless-1.1_fifo_sleep-by-policy",
    ]
    with pytest.raises(InvalidSettingError, match="--mean-stretch: none of the policies uses it"):
        variants_of(options_of("--policy", "eaco", "--mean-stretch", "1.03"))


class _Waits(Restless):
    """Admits nobody and asks again and again."""

    def decide(self, job, snapshot):
        from airflow_provider_eaco.core.model.decision import Finding, Reason, hold

        return hold(Finding(Reason.WAITING_FOR_PARTNER, {"expected_s": snapshot.now_s + 500.0}))


class _Past(Restless):
    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        return Steering(look_again_s=snapshot.now_s)


@pytest.mark.parametrize(
    ("policy", "said"), [(_Waits, "4 jobs can never start; the first is a"), (_Past, "which is past")]
)
def test_a_policy_that_gets_nowhere_ends_the_run(
    trace: Path, monkeypatch: pytest.MonkeyPatch, policy: type[Restless], said: str
) -> None:
    """Asking to look again for ever, or in the past, is an error and no endless run."""
    monkeypatch.setattr(registry, "POLICIES", {**registry.POLICIES, "restless": policy})
    with pytest.raises(SimulationError, match=said):
        Simulation(replace(from_trace(trace, Choices("restless", nodes=2)))).run()
