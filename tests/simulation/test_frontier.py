"""What the policy ``frontier`` promises, held against whole runs of random traces."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from tests.unit.simulator.benchmark_data import benchmark_data


@st.composite
def crowds(draw: st.DrawFn) -> list[TraceJob]:
    """Up to 25 jobs on whole nodes, some of them with limits that no set keeps to the end."""
    count = draw(st.integers(1, 25))
    submits = sorted(draw(st.lists(st.integers(0, 20_000), min_size=count, max_size=count)))
    return [
        TraceJob(
            f"job-{number:02d}",
            draw(st.sampled_from(["J1", "J2", "J3", "J4"])),
            8,
            float(submit_s),
            float(draw(st.integers(60, 40_000))),
            draw(st.sampled_from([1.01, 1.05, 1.15, None])),
        )
        for number, submit_s in enumerate(submits)
    ]


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    jobs=crowds(),
    nodes=st.integers(1, 4),
    mean_stretch=st.sampled_from([1.01, 1.0323, 1.0647, 1.10, 1.25]),
    order=st.sampled_from(["fifo", "sjf"]),
    levels=st.booleans(),
)
def test_no_decision_breaks_a_limit(
    jobs: list[TraceJob], nodes: int, mean_stretch: float, order: str, levels: bool
) -> None:
    """Where sets run as they are believed to, no job passes its own limit, and the pool keeps its mean.

    With or without power limits, which are chosen beside the placements.
    """
    benchmark_data("zeus_power/summary_power_v100.csv")
    with TemporaryDirectory() as name:
        trace, folder = Path(name) / "trace.csv", Path(name) / "run"
        write_trace(trace, jobs)
        choices = Choices(
            "frontier",
            order,
            nodes=nodes,
            accounting=Accounting.SLEEP,
            mean_stretch=mean_stretch,
            power_levels=levels,
        )
        run_and_write(from_trace(trace, choices), folder)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["limit_misses"] == 0
        assert summary["stretch"]["mean"] <= mean_stretch + 1e-6
