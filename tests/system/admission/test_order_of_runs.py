"""What Airflow's scheduler hands over late or in its own order, and what becomes of it (C02, C03, C06)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.system.rig import Rig, Run

pytestmark = [pytest.mark.airflow]

HANDED_OVER = "Setting the following tasks to queued state"
READY = "tasks up for execution"


def next_of(first: Run, second: Run, count: int) -> Run:
    """Return the one of two runs that starts a task next, when ``count`` of both have been started."""
    first.rig.wait_for(
        lambda: len(first.started) + len(second.started) >= count,
        lambda: f"{count} starts; {first.started}, {second.started}",
    )
    assert len(first.started) + len(second.started) == count
    return second if second.started else first


def test_c02_a_chain_of_growing_weight_goes_on_before_another_dag_begins(rig: Rig) -> None:
    """One GPU: the other DAG's first task waits for it, and both follow-ups still come first."""
    first = rig.run("chain_a")
    first.wait_started()
    second = rig.run("chain_b")
    second.wait_reason("waiting_for_gpu", "one")
    for count, task_id in enumerate(("one", "two", "three"), start=1):
        assert next_of(first, second, count) is first
        assert first.started[-1]["task"] == task_id
        first.end(task_id)
    assert next_of(first, second, 4) is second
    second.end()
    second.wait_done()


def loops_until(said: str, task: str) -> int:
    """Return which of the loops that handed tasks over was the first with one of this task's."""
    loops = [loop.split(READY)[0] for loop in said.split(HANDED_OVER)[1:]]
    return next(number for number, loop in enumerate(loops, start=1) if f" {task} " in loop)


def test_c03_a_pool_with_free_gpus_is_not_starved_by_a_busy_one_of_more_weight(rig: Rig) -> None:
    """Forty tasks of weight 2 for a pool with two GPUs and two of weight 1 for another pool become ready at
    one time, and eight are handed over in each loop: the other pool's are among the first three, and its GPU
    never waits for the busy pool.
    """
    before = len(rig.scheduler_log())
    run = rig.run("weights")

    def indexes(task_id: str) -> list[int]:
        return [entry["map_index"] for entry in run.started if entry["task"] == task_id]

    [first] = rig.wait_for(lambda: indexes("idle"), lambda: f"a start in the idle pool; {run.started}")
    assert loops_until(rig.scheduler_log()[before:], "weights.idle") <= 3
    rig.wait_for(lambda: len(indexes("busy")) == 2, lambda: f"the busy pool is full; {run.started}")
    run.end("idle", first)
    rig.wait_for(lambda: len(indexes("idle")) == 2, lambda: f"the other one starts; {run.started}")
    assert len(indexes("busy")) == 2
    run.end()
    # The rest of the flood has nothing to show.
    rig.airflow.api.call("PATCH", f"/dags/weights/dagRuns/{run.run_id}", {"state": "failed"})
    run.wait_done("failed")


@pytest.fixture
def calendar(rig: Rig) -> Iterator[Rig]:
    """The rig, whose DAG ``calendar`` has its folder; afterwards it is paused, and none of its runs go on."""
    folder = rig.airflow.home / "calendar"
    folder.mkdir()
    yield rig
    (folder / "end").touch()
    unfinished = "SELECT run_id FROM dag_run WHERE dag_id = 'calendar' AND state IN ('queued', 'running')"
    rig.wait_for(lambda: not rig.airflow.query(unfinished), "the runs of the calendar are over")
    rig.airflow.api.call("PATCH", "/dags/calendar", {"is_paused": True})


def test_c06_a_scheduled_run_waits_for_the_task_that_runs_and_the_backfill_goes_on(calendar: Rig) -> None:
    """Three old dates of a backfill and one scheduled run wait: the scheduled run is next on the GPU, and
    then come the old dates in their order.
    """
    airflow, folder = calendar.airflow, calendar.airflow.home / "calendar"
    holder = calendar.run("one_turn")
    holder.wait_started()
    airflow.wait_for(lambda: airflow.api.answers("/api/v2/dags/calendar"), "the calendar")
    airflow.api.call("PATCH", "/dags/calendar", {"is_paused": False})
    dates = {"from_date": "2021-01-01T00:00:00Z", "to_date": "2023-01-01T00:00:00Z", "max_active_runs": 3}
    airflow.api.call("POST", "/backfills", {"dag_id": "calendar", **dates})
    waiting = "SELECT job_id FROM eaco_job WHERE dag_id = 'calendar' AND phase = 'waiting' AND pool = 'turns'"
    calendar.wait_for(lambda: len(airflow.query(waiting)) == 4, "four runs wait")
    holder.end()
    for count in range(1, 5):
        runs = calendar.wait_for(partial(begun, folder, count), f"{count} starts")
        (folder / f"end-{runs[-1]}").touch()
    assert runs[0].startswith("scheduled__")
    assert [run.partition("-")[0] for run in runs[1:]] == [f"backfill__{year}" for year in (2021, 2022, 2023)]


def begun(folder: Path, count: int) -> list[str] | None:
    """Return the runs of the calendar whose tasks have started, as soon as there are so many."""
    lines = folder / "started.jsonl"
    runs = [json.loads(line)["run"] for line in lines.read_text().splitlines()] if lines.exists() else []
    return runs if len(runs) >= count else None
