"""The checker finds what is wrong: a sound run is changed in one place, and the finding names it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_eaco.simulator.run_command import run_and_write
from airflow_provider_eaco.simulator.scenario import Accounting, Choices, from_trace
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from tests.simulation.checker import problems_of
from tests.simulation.paper_rules import paper_rules

Row = dict[str, str]

JOBS = [
    TraceJob("a", "J1", 8, 0.0, 4_000.0, None),
    TraceJob("b", "J3", 8, 100.0, 3_000.0, 1.15),
    TraceJob("c", "J4", 8, 200.0, 2_000.0, None),
    TraceJob("late", "J2", 4, 9_000.0, 1_000.0, 1.05),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which jobs share, wait, and a node sleeps and wakes."""
    folder = tmp_path_factory.mktemp("sound")
    write_trace(folder / "trace.csv", JOBS)
    run_and_write(
        from_trace(folder / "trace.csv", Choices(nodes=2, accounting=Accounting.SLEEP)), folder / "run"
    )
    return folder / "run"


def test_a_sound_run_has_no_problems(sound: Path) -> None:
    """The checker has nothing to say about the run that the others change."""
    assert problems_of(sound, paper_rules(4)) == []


def longer(row: Row) -> None:
    row["end_s"] = f"{float(row['end_s']) + 10:.3f}"


def faster(row: Row) -> None:
    row["rate"] = "1.5"


def lonely(row: Row) -> None:
    row["residents"] = row["job_id"]


def elsewhere(row: Row) -> None:
    row["node"] = "node-1" if row["node"] == "node-0" else "node-0"


def other_power(row: Row) -> None:
    row["power_w"] = str(float(row["power_w"]) + 1)


def idle(row: Row) -> None:
    row["state"] = "idle"


def shifted(row: Row) -> None:
    row["start_s"] = f"{float(row['start_s']) + 2:.3f}"


def shared(row: Row) -> bool:
    return ";" in row["residents"]


def is_active(row: Row) -> bool:
    return row["state"] == "active"


def is_asleep(row: Row) -> bool:
    return row["state"] == "asleep"


def is_waking(row: Row) -> bool:
    return row["state"] == "waking"


def admits(row: Row) -> bool:
    return row["verdict"] == "admit"


def with_reason(row: Row) -> None:
    row["reason"] = "no_energy_gain"


CHANGES: list[tuple[str, str, Callable[[Row], bool], Callable[[Row], None], str]] = [
    ("work does not add up", "schedule.csv", bool, longer, "s of work"),
    ("a rate that is not the truth", "schedule.csv", shared, faster, "the truth is"),
    ("residents that are not symmetric", "schedule.csv", shared, lonely, "unawares"),
    ("a partner on another node", "schedule.csv", shared, elsewhere, "is said to be there"),
    ("a start that was not decided", "schedule.csv", bool, elsewhere, "was admitted to"),
    ("a power that is not the truth", "nodes.csv", is_active, other_power, "the truth is"),
    ("a sleeping node that draws too much", "nodes.csv", is_asleep, other_power, "the truth is"),
    ("a state that is not the truth", "nodes.csv", is_active, idle, "idle at"),
    ("a gap between intervals", "nodes.csv", is_asleep, shifted, "a gap"),
    ("a short wake-up", "nodes.csv", is_waking, shifted, "wakes for"),
    ("an admission with a reason", "decisions.csv", admits, with_reason, "because of"),
    ("a decision for another node", "decisions.csv", admits, elsewhere, "was admitted to"),
]


@pytest.mark.parametrize(
    ("file", "which", "change", "finding"),
    [pytest.param(*case[1:], id=case[0]) for case in CHANGES],
)
def test_a_changed_row_is_found(
    sound: Path,
    tmp_path: Path,
    *,
    file: str,
    which: Callable[[Row], bool],
    change: Callable[[Row], None],
    finding: str,
) -> None:
    """One row of one file is not as it was; the checker says what does not fit."""
    folder = shutil.copytree(sound, tmp_path / "run")
    with (folder / file).open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    change(next(row for row in rows if which(row)))
    with (folder / file).open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    assert any(finding in problem for problem in problems_of(folder, paper_rules(4)))


@pytest.mark.parametrize(
    "path",
    ["energy_j.total", "energy_j.asleep", "stretch.mean", "wait_s.mean", "limit_misses", "makespan_s"],
)
def test_a_changed_figure_is_found(sound: Path, tmp_path: Path, path: str) -> None:
    """A figure of the summary that does not follow from the files is named."""
    folder = shutil.copytree(sound, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    *parents, name = path.split(".")
    part = summary
    for parent in parents:
        part = part[parent]
    part[name] = part[name] * 1.00001 + 1e-3
    (folder / "summary.json").write_text(json.dumps(summary))
    assert any(path in problem for problem in problems_of(folder, paper_rules(4)))


def test_too_many_residents_are_found(sound: Path) -> None:
    """A set above the pool's limit is named."""
    assert any("residents on its GPUs" in problem for problem in problems_of(sound, paper_rules(1)))


def test_a_node_that_sleeps_against_the_accounting_is_found(sound: Path, tmp_path: Path) -> None:
    """In a run where nobody sleeps, a sleeping node is named."""
    folder = shutil.copytree(sound, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    summary["accounting"] = "always-on"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert any("nobody sleeps" in problem for problem in problems_of(folder, paper_rules(4)))
