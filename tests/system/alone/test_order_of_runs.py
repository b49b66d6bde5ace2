"""What Airflow's scheduler hands over late or in its own order, and what becomes of it (C02, C03)."""

from __future__ import annotations

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
