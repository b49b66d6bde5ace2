"""`eaco-sim explain`: a run is made again from its own summary, and what was decided is told in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.energy_budget import EnergyBudget
from airflow_provider_eaco.core.model.pool import PredictorName
from airflow_provider_eaco.core.policy.registry import POLICIES
from airflow_provider_eaco.simulator.__main__ import BAD_INPUT, main
from airflow_provider_eaco.simulator.again import made_again, made_from
from airflow_provider_eaco.simulator.beliefs import Belief
from airflow_provider_eaco.simulator.explain_command import explained
from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob, write_trace
from tests.simulation.files import RunFiles

JOBS = [
    TraceJob("first", "J1", 8, 0.0, 9_000.0, 1.15),
    TraceJob("second", "J3", 8, 60.0, 9_000.0, 1.15),
    TraceJob("third", "J4", 8, 120.0, 3_000.0, 1.01),
]


def run(folder: Path, **choices: object) -> Path:
    """Simulate the jobs on one node and return the run's folder."""
    write_trace(folder / "trace.csv", JOBS)
    chosen = Choices(**{"nodes": 1, **choices})  # type: ignore[arg-type]  # by name
    run_and_write(from_trace(folder / "trace.csv", chosen), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_decision_of_a_run_is_told_with_its_alternatives(policy: str, tmp_path: Path) -> None:
    """As many as the run's own file has, each as it stands there."""
    folder = run(tmp_path, policy=policy)
    files = RunFiles(folder)
    for job in JOBS:
        lines = explained(folder, job.job_id)
        rows = [row for row in files.decisions if row.job_id == job.job_id]
        told = [line for line in lines if line.startswith("  at ")]
        assert len(told) == len(rows)
        assert [("waits" in line) == (row.verdict == "hold") for line, row in zip(told, rows, strict=True)]
        for row in rows:
            assert row.reason == "" or any(line.strip().startswith(f"{row.reason}: ") for line in lines)
        assert any(line.strip().startswith("- GPUs of its own") for line in lines)


def test_the_story_of_a_job_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is, what was decided when and why, what else there was with its joules, and how it ran."""
    folder = run(tmp_path)
    assert main(["explain", str(folder), "second"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "second: family J3 on 8 GPUs, 2.500 h of work alone, stretch at most 1.15; queued at 0.017 h"
    )
    assert lines[1].startswith(
        "  at 0.017 h: it starts on node-0, GPUs 0, 1, 2, 3, 4, 5, 6, 7 beside first: pack: the busiest set"
    )
    assert lines[2] == "      where it could have run:"
    assert lines[3].startswith("        - beside J1 on node-0: ")
    assert lines[3].endswith("MJ, slowdown 1.035; taken")
    assert lines[4] == ("        - GPUs of its own: 11.97 MJ; not taken: no node has as many GPUs free")
    assert lines[-1].startswith("  it ran from 0.017 h to ")


@pytest.mark.parametrize(
    "choices",
    [
        {"policy": "exclusive", "order": "sjf", "rules": ("reserve",)},
        {"accounting": Accounting.SLEEP, "belief": Belief.SOLO, "belief_error": 0.1, "seed": 3},
        {"predictor": PredictorName.LEARNED, "energy_budget": EnergyBudget(2000.0, 50.0)},
    ],
)
def test_a_run_is_made_again_from_its_summary(choices: dict[str, object], tmp_path: Path) -> None:
    """Whatever was chosen comes back, so that the same decisions do."""
    folder = run(tmp_path, **choices)
    again = made_again(folder)
    told = json.loads((folder / "summary.json").read_text())["made_from"]
    assert json.loads(json.dumps(made_from(again))) == told
    explained(folder, "second")


def test_what_cannot_be_explained_is_an_error_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such job, no such run, a summary of another program, decisions that do not come again."""
    folder = run(tmp_path)
    assert main(["explain", str(folder), "nobody"]) == BAD_INPUT
    assert "has no job 'nobody'" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none"), "first"]) == BAD_INPUT
    assert "cannot be read" in capsys.readouterr().err
    decisions = folder / "decisions.csv"
    decisions.write_text(decisions.read_text().replace("admit", "hold"))
    with pytest.raises(TraceError, match="the run cannot be made again"):
        explained(folder, "first")
    summary = json.loads((folder / "summary.json").read_text())
    del summary["made_from"]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(TraceError, match="does not say what the run was made from"):
        explained(folder, "first")
