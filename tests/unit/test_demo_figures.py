"""The figures that `make demo` prints and writes, on a history that can be reckoned by hand."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from airflow_provider_eaco.telemetry.history import History, NodeInterval, ResidentSegment
from demo.figures import PolicyFigures, TaskOutcome, policy_figures, summary, task_rows

OUTCOMES = [
    TaskOutcome("a", "train.a", "success", 1, 19, 0.9),
    TaskOutcome("b", "train.b", "success", 1, 10, 0.8),
    TaskOutcome("c", "train.c", "failed", 1, None, None),
]


def stay(job_id: str, token: int, beside: str, span: tuple[float, float], work_s: float) -> ResidentSegment:
    """Some time of a job on both GPUs of the node, at 10 W."""
    start_s, end_s = span
    others, energy_j = tuple(beside), 10.0 * (end_s - start_s)
    return ResidentSegment(job_id, token, "J", "n", ("g0", "g1"), others, start_s, end_s, work_s, energy_j)


# b joins a at 100 s, is undone at 160 s, and goes on where a was from 200 s to 260 s.
HISTORY = History(
    300.0,
    residents=(
        stay("b", 3, "", (200.0, 260.0), 60.0),
        stay("a", 1, "", (0.0, 100.0), 100.0),
        stay("a", 1, "b", (100.0, 160.0), 50.0),
        stay("b", 2, "a", (100.0, 160.0), 40.0),
        stay("a", 1, "", (160.0, 200.0), 40.0),
    ),
    nodes=(
        NodeInterval("n", 0.0, 100.0, 20.0, 2, 2),
        NodeInterval("n", 100.0, 160.0, 30.0, 2, 2),
        NodeInterval("n", 160.0, 260.0, 20.0, 2, 2),
        NodeInterval("n", 260.0, 300.0, 5.0, 0, 2),
        NodeInterval("idle", 0.0, 300.0, 5.0, 0, 2),
    ),
)
ROWS = task_rows("eaco", OUTCOMES, HISTORY, {"J": 10.0})


def test_a_policys_figures_are_those_from_its_first_start_to_its_last_end() -> None:
    """Joules of all nodes, GPUs in use of all, pauses in the stretch; what failed without a start."""
    assert policy_figures(ROWS, OUTCOMES, HISTORY, gpus=4) == PolicyFigures(
        energy_j=2000.0 + 1800.0 + 2000.0 + 5.0 * 260,
        makespan_s=260.0,
        mean_stretch=pytest.approx((200 + 160) / (190 + 100)),
        allocated_utilisation=pytest.approx(0.5),
        tasks=3,
        coallocated=2,
        undone=1,
        failed=1,
    )


def test_a_tasks_row_tells_its_time_alone_and_shared() -> None:
    """An epoch of 10 s took 12 s and 15 s beside the other; the one that was undone has paused for 40 s."""
    first, second = ROWS
    assert (first.task_id, first.residents, first.starts, first.energy_j) == (
        "train.a",
        ["train.b"],
        1,
        2000.0,
    )
    assert (first.epoch_shared_s, first.stretch, first.paused_s) == (12.0, pytest.approx(200 / 190), 0.0)
    assert (second.task_id, second.residents, second.starts) == ("train.b", ["train.a"], 2)
    assert (second.epoch_shared_s, second.stretch, second.paused_s) == (15.0, 1.2, 40.0)
    assert {row.epoch_alone_s for row in ROWS} == {10.0}


def test_the_file_has_what_programs_look_for() -> None:
    """The names of the figures and of the tasks' rows in build/demo/summary.json."""
    figures = policy_figures(ROWS, OUTCOMES, HISTORY, gpus=4)
    written = json.loads(json.dumps(summary({"eaco": figures}, ROWS, {})))
    assert written["policies"] == {"eaco": asdict(figures)}
    assert written["policies"]["eaco"].keys() == {
        *("energy_j", "makespan_s", "mean_stretch", "allocated_utilisation"),
        *("tasks", "coallocated", "undone", "failed"),
    }
    assert written["tasks"][0].keys() >= {
        *("task_id", "policy", "node", "gpus", "residents", "epochs"),
        *("accuracy", "energy_j", "try_number", "state"),
    }
    with pytest.raises(ValueError, match="no task of this policy ever held GPUs"):
        policy_figures([], OUTCOMES, History(0.0, (), ()), gpus=4)
