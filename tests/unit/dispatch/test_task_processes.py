"""Real trees of processes: below which task each of them is, and which belong to none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_eaco.dispatch.task_processes import TaskProcess, TaskProcesses
from tests.process_tree import tree

TASK = "01a23240-81cb-7f33-8356-857cf812695b"
OTHER = "01a23240-81cb-7f33-8356-857cf8126950"


def test_whatever_a_task_starts_belongs_to_it() -> None:
    """The task's own process, what it forks under its name, and a program below it are all of one task."""
    finder = TaskProcesses()
    with tree(f"airflow worker -- {TASK}") as (own, child, program):
        found = [finder.task_of(pid) for pid in (own, child, program)]
        assert found[0] is not None
        assert (found[0].job_id, found[0].pid) == (TASK, own)
        assert found[1:] == [found[0], found[0]]
        # Airflow knows it by its own pid, or by that of what has started it as another user.
        assert found[0].pids[:2] == (own, os.getpid())
        assert found[0].alive
        assert 0 <= found[0].age_s < 600
    assert not found[0].alive


@pytest.mark.parametrize(
    "title",
    [
        "python train.py",
        f"airflow worker -- LocalExecutor: {TASK}",
        f"airflow supervisor: {TASK}",
        f"about airflow worker -- {TASK}",
        "airflow worker -- 17",
        f"airflow worker -- {TASK.upper()}",
    ],
)
def test_a_process_under_another_name_is_nobody_s(title: str) -> None:
    """Not the executor's own processes, and none that only speaks of a task."""
    with tree(title) as pids:
        assert [TaskProcesses().task_of(pid) for pid in pids] == [None] * 3


def test_the_nearest_task_counts() -> None:
    """A task that was started below another one is itself."""
    with tree(f"airflow worker -- {TASK}", f"airflow worker -- {OTHER}") as (own, child, program):
        finder = TaskProcesses()
        assert [_job_of(finder, pid) for pid in (own, child, program)] == [TASK, TASK, OTHER]


def test_a_pid_that_is_used_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is believed as long as that process lives, and no longer."""
    finder = TaskProcesses()
    with tree(f"airflow worker -- {TASK}") as (own, _, program):
        found = finder.task_of(program)
        assert found is not None
        monkeypatch.setattr("airflow_provider_eaco.dispatch.task_processes._task_named", lambda pid: None)
        assert finder.task_of(program) is found
        again = TaskProcess(TASK, own, found.start_ticks + 1, (own,))
        assert not again.alive
        assert again.name != found.name
        finder.keep(set())
        assert finder.task_of(program) is None


def test_a_process_that_is_gone_is_nobody_s() -> None:
    """Also one of which it was known whose it was."""
    finder = TaskProcesses()
    with tree(f"airflow worker -- {TASK}") as (own, _, program):
        assert finder.task_of(program) is not None
    assert finder.task_of(program) is None
    assert finder.task_of(own) is None


def test_the_pid_is_the_one_that_the_process_itself_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container a task has another pid than it has here, and Airflow knows the one of there."""
    read = Path.read_text

    def read_text(path: Path, **options: str) -> str:
        lines = read(path, **options).splitlines()
        return "\n".join(f"{line}\t7" if line.startswith("NSpid:") else line for line in lines)

    monkeypatch.setattr(Path, "read_text", read_text)
    with tree(f"airflow worker -- {TASK}") as (own, _, _):
        found = TaskProcesses().task_of(own)
        assert found is not None
        assert (found.pid, found.pids[0]) == (own, 7)


def _job_of(finder: TaskProcesses, pid: int) -> str | None:
    found = finder.task_of(pid)
    return None if found is None else found.job_id
