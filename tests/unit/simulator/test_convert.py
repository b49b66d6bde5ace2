"""``eaco-sim convert``: draws by the benchmarks' convention, cuts, counts, and refuses in one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.simulator import trace_sources
from airflow_provider_eaco.simulator.__main__ import main
from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.trace import TraceError
from airflow_provider_eaco.simulator.trace_sources import HistoryChoices, airflow_trace, trace_of_history
from tests.unit.simulator.benchmark_data import ROOT

DATA = ROOT / "tests" / "data"


def convert(tmp_path: Path, *words: str) -> Path:
    out = tmp_path / "out.csv"
    assert main(["convert", *words, "--out", str(out)]) == 0
    return out


def test_a_log_becomes_our_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign log becomes a trace that `run --trace` reads; what was left out is told."""
    out = convert(tmp_path, str(DATA / "traces" / "openb_pods.csv"))
    assert read_trace(out).jobs == read_trace(DATA / "traces" / "openb_pods.csv").jobs
    assert "2 jobs; left out: 1 no GPU, 1 never placed" in capsys.readouterr().err


def test_draws_follow_the_convention(tmp_path: Path) -> None:
    """All families are drawn first, in submission order, then all limits, from one generator."""
    words = ["--families", "J1,J2,J3,J4", "--stretch-limits", "1.05,1.15,1.15,none", "--seed", "7"]
    out = convert(tmp_path, str(DATA / "traces" / "itp.csv"), *words)
    draws = np.random.default_rng(7)
    families = [("J1", "J2", "J3", "J4")[index] for index in draws.integers(4, size=3)]
    limits = [(1.05, 1.15, 1.15, None)[index] for index in draws.integers(4, size=3)]
    jobs = read_trace(out).jobs
    assert [job.family for job in jobs] == families
    assert [job.stretch_limit for job in jobs] == limits


def test_cuts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wide jobs are left out before the first N are taken, and the first of them is moved to 0."""
    out = convert(tmp_path, str(DATA / "traces" / "itp.csv"), "--max-gpus", "2", "--first", "2")
    assert [(job.job_id, job.submit_s) for job in read_trace(out).jobs] == [("a", 0.0), ("b", 600.0)]
    assert "left out: 1 of more than 2 GPUs" in capsys.readouterr().err


def test_measurements_become_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of measurements becomes a file that `airflow eaco profiles import` reads."""
    out = convert(tmp_path, str(DATA / "profiles" / "gavel_throughputs.json"), "--from", "gavel-json")
    assert out.read_text().startswith("families,gpu_model,gpu_count,unit_s,")
    assert "7 profiles; left out: 1 pairs that did not run together, 1 over" in capsys.readouterr().err


BAD = {
    "no-such-file": (["nothing.csv"], "nothing.csv: cannot be read"),
    "no-job-left": (
        [str(DATA / "traces" / "itp.csv"), "--max-gpus", "0"],
        "--max-gpus: 0 must be at least 1",
    ),
    "all-too-wide": (
        [str(DATA / "traces" / "eaco.csv"), "--max-gpus", "1"],
        "no job is left (4 of more than 1 GPUs)",
    ),
    "an-empty-family": (
        [str(DATA / "traces" / "itp.csv"), "--families", "J1,,J2"],
        "--families: 'J1,,J2' has an empty part; expected names separated by commas",
    ),
    "a-limit-below-one": (
        [str(DATA / "traces" / "itp.csv"), "--stretch-limits", "0.5"],
        "--stretch-limits: '0.5' must be a number of at least 1, or none",
    ),
    "no-database": (["--airflow"], "--airflow: no database; give its URL or set AIRFLOW__DATABASE__"),
    "no-gpus-for-a-slot": (
        ["--airflow", "sqlite:///x", "--gpus-per-slot", "0"],
        "--gpus-per-slot: 0 must be at least 1",
    ),
    "no-instant": (["--airflow", "sqlite:///x", "--since", "monday"], "--since: 'monday' is no instant"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input gets one line and exit code 2, and nothing is written."""
    words, message = BAD[name]
    monkeypatch.delenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", raising=False)
    assert main(["convert", *words, "--out", str(tmp_path / "deep" / "out.csv")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("eaco-sim convert: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Task:
    """A task as a source of history gives it."""

    job_id: str = "j"
    dag_id: str = "dag"
    task_id: str = "task"
    pool: str = "gpus"
    pool_slots: int = 1
    queue: str = ""
    priority: int = 0
    queued_s: float | None = 1000.0
    started_s: float = 1060.0
    ended_s: float = 1660.0
    gpus: int | None = None
    family: str | None = None


def test_a_history_becomes_jobs() -> None:
    """Jobs come by the instant of queueing; what the provider knew wins over slots and names."""
    tasks = [
        Task("late", started_s=5000.0, queued_s=4000.0, ended_s=5100.0),
        Task("known", gpus=4, family="resnet50", pool_slots=0),
        Task("unqueued", queued_s=None, started_s=1200.0, ended_s=1300.0),
        Task("backwards", ended_s=1060.0),
    ]
    trace = trace_of_history(tasks, HistoryChoices(gpus_per_slot=2))
    assert [(job.job_id, job.submit_s, job.wait_s) for job in trace.jobs] == [
        ("known", 0.0, 60.0),
        ("unqueued", 200.0, None),
        ("late", 3000.0, 1000.0),
    ]
    assert [(job.family, job.gpus) for job in trace.jobs] == [
        ("resnet50", 4),
        ("dag.task", 2),
        ("dag.task", 2),
    ]
    assert trace.skipped == {"did not run": 1}


def test_a_history_is_narrowed() -> None:
    """Only the pools, DAGs and times that were asked for are taken."""
    tasks = [
        Task("a"),
        Task("b", pool="other"),
        Task("c", dag_id="nightly"),
        Task("d", queued_s=9.0, started_s=10.0),
    ]
    choices = HistoryChoices.checked(["gpus"], ["dag"], "1970-01-01T00:10:00+00:00", 1)
    trace = trace_of_history(tasks, choices)
    assert [job.job_id for job in trace.jobs] == ["a"]
    assert trace.skipped == {"not asked for": 3}
    with pytest.raises(TraceError, match=r"no task is left \(4 not asked for\)"):
        trace_of_history(tasks, HistoryChoices(pools=frozenset({"none"})))


def test_without_the_store_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing reads an Airflow database, the message names the entry point."""
    monkeypatch.setattr(trace_sources, "entry_points", lambda **_: ())
    with pytest.raises(trace_sources.SourceMissingError, match="no entry point 'airflow'"):
        airflow_trace("sqlite:///x", HistoryChoices())


def test_a_time_without_a_zone_is_utc() -> None:
    """An instant without an offset is read as UTC."""
    assert HistoryChoices.checked(None, None, "1970-01-02", 1).since_s == 86400.0
    with pytest.raises(InvalidSettingError):
        HistoryChoices.checked(None, None, "02.01.1970", 1)
