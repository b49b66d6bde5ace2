"""A run and its bounds: in every summary, never passed, and missing in words where they cannot be had."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.__main__ import main
from tests.unit.simulator.benchmark_data import ROOT

TRACE = ROOT / "tests" / "data" / "traces" / "eaco.csv"
NAMES = ["energy_j", "energy_j_at_stretch", "makespan_s", "jct_mean_s", "allocated_utilisation"]


def summary_of(out: Path, *words: str) -> dict:
    assert main(["run", "--trace", str(TRACE), "--no-report", "--out", str(out), *words]) == 0
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("policy", ["exclusive", "eaco"])
@pytest.mark.parametrize("accounting", ["always-on", "sleep"])
@pytest.mark.parametrize("nodes", ["1", "3"])
def test_no_run_passes_its_bounds(policy: str, accounting: str, nodes: str, tmp_path: Path) -> None:
    """Every gap has its key, and says that the run is not better than its bound."""
    words = ("--policy", policy, "--accounting", accounting, "--nodes", nodes)
    summary = summary_of(tmp_path, *words)
    assert list(summary["bounds"]) == list(summary["gaps"]) == NAMES
    for name, gap in summary["gaps"].items():
        assert gap <= 1e-9 if name == "allocated_utilisation" else gap >= -1e-9, name
    assert summary["bounds"]["energy_j"] <= summary["bounds"]["energy_j_at_stretch"] + 1e-6
    assert summary["energy_j"]["active"] + summary["energy_j"]["asleep"] >= (
        summary["bounds"]["energy_j_at_stretch"] * (1 - 1e-9)
    )


def test_jobs_alone_draw_what_the_bound_says(tmp_path: Path) -> None:
    """Without sharing, jobs draw exactly the bound at a stretch of 1 while they run."""
    summary = summary_of(tmp_path, "--policy", "exclusive", "--nodes", "2")
    assert summary["bounds"]["energy_j_at_stretch"] == pytest.approx(summary["energy_j"]["active"])
    assert summary["pareto"][0]["energy_j"] == pytest.approx(summary["energy_j"]["active"])


def test_the_bound_does_not_depend_on_the_policy(tmp_path: Path) -> None:
    """A policy that lets fewer jobs share is held against the same limit."""
    curves = [
        summary_of(tmp_path / residents, "--max-residents", residents, "--nodes", "2")["pareto"]
        for residents in ("1", "2", "4")
    ]
    assert curves[0] == curves[1] == curves[2]


def test_without_a_solver_the_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without scipy a run has no bounds, says so, and is otherwise the same; `bounds` names the extra."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with caplog.at_level(logging.WARNING):
        summary = summary_of(tmp_path, "--nodes", "2")
    assert summary["bounds"] == summary["gaps"] == dict.fromkeys(NAMES)
    assert summary["pareto"] == []
    assert "no bounds: scipy is not installed (extra 'analysis')" in caplog.text
    assert main(["report", str(tmp_path), "--no-images"]) == 0
    assert main(["bounds", "--trace", str(TRACE)]) == 2
