"""Schedulers that die, starts that fail, processes that will not go."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.airflow import SCHEDULER
from tests.system.rig import Rig, Run, forkserver_pid, is_alive

pytestmark = [pytest.mark.airflow]

# A scheduler that is asked to leave has to do so within what a service manager allows it.
LEAVE_S = 30.0


def wait_adopted(rig: Rig, runs: dict[Run, list[str]], log_before: int) -> None:
    """Return when a scheduler has taken over every one of these tasks."""

    def missing() -> list[str]:
        said = rig.scheduler_log()[log_before:]
        return [
            run.run_id
            for run, task_ids in runs.items()
            for task_id in task_ids
            if f"Adopted a running task: TaskInstanceKey(dag_id='{run.dag_id}', task_id='{task_id}', "
            f"run_id='{run.run_id}'" not in said
        ]

    rig.wait_for(lambda: not missing(), lambda: f"every task is adopted; {missing()} are not")


@contextmanager
def starts_that_cannot_be_noted(rig: Rig) -> Iterator[None]:
    """Within this no job can become running in the ledger, whatever its process does."""
    rig.airflow.execute(
        "CREATE TRIGGER eaco_unnoted BEFORE UPDATE OF phase ON eaco_job WHEN NEW.phase = 'running' "
        "BEGIN SELECT RAISE(ABORT, 'no such table: for this test'); END"
    )
    try:
        yield
    finally:
        rig.airflow.execute("DROP TRIGGER eaco_unnoted")


def ledger(rig: Rig) -> list[tuple[Any, ...]]:
    return [(each["token"], each["job_id"], each["gpu_uuids"]) for each in rig.leases()]


def test_c21_a_killed_scheduler_costs_no_running_task_anything(rig: Rig) -> None:
    """After kill -9: the same processes, the same tries, the same leases, and no second copy; also of a task
    whose start had not been noted yet.
    """
    together = rig.run("told_together")
    together.wait_started(2)
    shared = rig.leases()
    assert len({lease["gpu_uuids"] for lease in shared}) == 1, "both hold the same GPUs"
    with starts_that_cannot_be_noted(rig):
        unnoted = rig.run("told")
        unnoted.wait_started()
        held = ledger(rig)
        assert len(held) == 3
        rig.airflow.kill_scheduler()
    processes = [entry["pid"] for entry in together.started + unnoted.started]
    assert all(map(is_alive, processes))
    before = len(rig.scheduler_log())
    rig.airflow.start_scheduler()
    wait_adopted(rig, {together: ["J1", "J4"], unnoted: ["work"]}, before)
    rig.wait_cycles()
    assert ledger(rig) == held
    assert all(map(is_alive, processes))
    for run in (together, unnoted):
        run.end()
        run.wait_done()
    assert (len(together.started), len(unnoted.started)) == (2, 1)
    tries = [together.instance("J1"), together.instance("J4"), unnoted.instance()]
    assert [each["try_number"] for each in tries] == [1, 1, 1]


def test_c24_a_scheduler_that_is_asked_to_leave_does_so_beside_running_and_stopped_tasks(rig: Rig) -> None:
    """SIGTERM ends it within the bound, though one task is stopped; both tasks live on and end well."""
    runs = [rig.run("told"), rig.run("told")]
    pids = [run.wait_started()[0]["pid"] for run in runs]
    scheduler = rig.airflow.component(SCHEDULER)
    before = len(rig.scheduler_log())
    os.kill(pids[0], signal.SIGSTOP)
    try:
        rig.airflow.kill_scheduler(number=signal.SIGTERM, deadline_s=LEAVE_S)
        assert scheduler.exit_code == 0
        assert all(map(is_alive, pids))
        rig.airflow.start_scheduler()
        wait_adopted(rig, {run: ["work"] for run in runs}, before)
    finally:
        os.kill(pids[0], signal.SIGCONT)
    for run in runs:
        run.end()
        run.wait_done()
        assert len(run.started) == 1
        assert run.instance()["try_number"] == 1


def test_c19_a_task_whose_process_cannot_be_started_fails_with_the_cause_in_its_log(rig: Rig) -> None:
    """Without a file handle left no process can be started: the task says that; the next one runs."""
    before = rig.run("told")
    before.wait_started()  # the starter has nothing left to import
    starter = forkserver_pid(rig.airflow)
    soft, hard = resource.prlimit(starter, resource.RLIMIT_NOFILE)
    resource.prlimit(starter, resource.RLIMIT_NOFILE, (3, hard))
    try:
        run = rig.run("told")
        run.wait_done("failed")
    finally:
        resource.prlimit(starter, resource.RLIMIT_NOFILE, (soft, hard))
    assert run.started == []
    assert len(before.started) == 1
    cause = "Too many open files"
    assert cause in run.log()
    assert cause in run.audit()[-1][1]
    assert run.lease() is None
    again = rig.run("told")
    again.wait_started()


def test_c27_a_training_that_will_not_go_goes_with_its_loaders_before_its_lease_falls(rig: Rig) -> None:
    """Marked failed, cleared, or over its run's time: all processes go, then the lease; the log says so."""
    runs = {name: rig.run("deaf") for name in ("failed", "cleared")}
    runs["timed out"] = rig.run("deaf_with_timeout")
    pids, jobs = {}, {}
    for name, run in runs.items():
        told = run.folder / "pids.json"
        rig.wait_for(told.exists, f"the loaders of the one to be {name}")
        pids[name], jobs[name] = json.loads(told.read_text()), run.job_id()
    rig.airflow.api.set_state("deaf", runs["failed"].run_id, "work", "failed")
    rig.airflow.api.clear("deaf", runs["cleared"].run_id, "work")

    def all_gone() -> bool:
        holding = {lease["job_id"] for lease in rig.leases()}
        for name, job_id in jobs.items():
            if job_id not in holding:
                assert not any(map(is_alive, pids[name])), f"{name}: the lease fell before its processes"
        return not holding & set(jobs.values())

    rig.wait_for(all_gone, lambda: f"all three are gone: {jobs} {rig.leases()}")
    for name, run in runs.items():
        assert "Task killed!" in run.log(), name
    runs["cleared"].wait_done()
    runs["failed"].wait_done("failed")
    runs["timed out"].wait_done("failed")
