"""Two executors in one Airflow, pools that are switched off, and a store that breaks."""

from __future__ import annotations

import pytest

from tests.system.rig import Rig, is_alive

pytestmark = [pytest.mark.airflow, pytest.mark.postgres]

# PostgreSQL may end a reader under whom tables are dropped; the next heartbeat goes on.
EXPECTED_TRACEBACKS = (
    "the provider's tables are missing or old",
    "another transaction changed the same rows",
)

EXECUTORS = "SELECT DISTINCT executor FROM task_instance WHERE run_id = :run"


def test_c18_gpu_tasks_wait_beside_tasks_of_the_other_executor(rig: Rig) -> None:
    """With 16 GPU tasks waiting and a parallelism of 8, LocalExecutor's tasks run, and only GPU tasks
    name the executor.
    """
    backlog = rig.run("told_backlog")
    backlog.wait_started(4)
    waiting = "SELECT count(*) AS n FROM eaco_job WHERE phase = 'waiting'"
    rig.wait_for(lambda: rig.airflow.query(waiting)[0]["n"] == 16, "16 tasks wait")
    cpu = rig.run("cpu")
    cpu.wait_done()
    assert len(backlog.started) == 4
    assert [row["executor"] for row in rig.airflow.query(EXECUTORS, run=backlog.run_id)] == ["EacoExecutor"]
    assert [row["executor"] for row in rig.airflow.query(EXECUTORS, run=cpu.run_id)] == [None]
    rig.airflow.api.call("PATCH", f"/dags/told_backlog/dagRuns/{backlog.run_id}", {"state": "failed"})
    backlog.wait_done("failed")


def test_pools_that_are_off_or_observe_change_nothing_for_their_tasks(rig: Rig) -> None:
    """Tasks of both pools run at once, without a lease and with the machine's own view of its GPUs; of the
    observed one it is stored what would have been decided.
    """
    # What would have been decided depends on what is free: the tasks of the test before must be gone, those
    # that still wait too, since one of them may get a lease before it is taken back.
    rig.wait_idle()
    off, observed = rig.run("told_off"), rig.run("told_observed")
    for run in (off, observed):
        [entry] = run.wait_started()
        assert (entry["gpus"], entry["node"]) == (None, None)
    assert rig.leases() == []
    assert off.explanation() is None or off.explanation().reason is None
    [decision] = rig.story(observed.job_id()).decisions
    assert decision.decision.placement is not None
    for run in (off, observed):
        run.end()
        run.wait_done()
        assert run.instance()["try_number"] == 1


def test_c67_lost_tables_hold_new_gpu_tasks_and_nothing_else(rig: Rig) -> None:
    """With our tables gone CPU tasks and running GPU tasks go on, new GPU tasks wait with the reason; after
    the migration they run, and not beside the task that had the GPUs before.
    """
    running = rig.run("told_four")
    [entry] = running.wait_started()
    rig.airflow.run_cli("eaco", "db", "remove", "--yes")
    waiting = rig.run("told")
    rig.wait_for(
        lambda: any("tables are missing" in text for _, text in waiting.audit()),
        lambda: f"the reason in the audit log: {waiting.audit()}",
    )
    cpu = rig.run("cpu")
    cpu.wait_done()
    assert is_alive(entry["pid"])
    assert running.instance()["state"] == "running"
    assert waiting.started == []
    rig.airflow.run_cli("db", "migrate")
    rig.wait_reports()
    assert waiting.started == [], "nothing is granted while a process lives whose lease is lost"
    assert is_alive(entry["pid"])
    running.end()
    running.wait_done()
    assert len(running.started) == 1
    waiting.wait_started()
    waiting.end()
    waiting.wait_done()
    assert [run.instance()["try_number"] for run in (running, waiting)] == [1, 1]
