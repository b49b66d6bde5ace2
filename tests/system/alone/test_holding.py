"""Tasks that wait: as long as it takes, without being failed, cleared away, copied, or in anybody's way."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.decision import Verdict
from tests.system.rig import Rig, forkserver_pid

pytestmark = [pytest.mark.airflow]


def test_c17_a_task_held_past_the_queue_timeout_runs_at_its_first_try(rig: Rig) -> None:
    """Held for more than twice the time-out: success, first try, no failure callback, waiting time shown."""
    holder = rig.run("told_four")
    holder.wait_started()
    run = rig.run("told")
    run.wait_reason("waiting_for_gpu")
    long_s = 2.5 * float(rig.airflow.settings.options["scheduler.task_queued_timeout"])

    def waited_s() -> float:
        told = run.explanation()
        assert told is not None, "a job that waits stays stored"
        assert run.instance()["state"] == "queued"
        return told.waited_s or 0.0

    rig.wait_for(lambda: waited_s() > long_s, "a wait of more than twice the time-out")
    holder.end()
    run.wait_started()
    run.end()
    run.wait_done()
    assert run.instance()["try_number"] == 1
    assert len(run.started) == 1
    assert not (run.folder / "failure-callback").exists()
    told = run.explanation()
    assert told is not None
    assert told.waited_s is not None
    assert told.waited_s > long_s
    stuck = "SELECT event, extra FROM log WHERE run_id = :run AND event LIKE '%stuck%'"
    assert rig.airflow.query(stuck, run=run.run_id) == []


def test_c18_a_backlog_of_gpu_tasks_blocks_no_task_without_gpu(rig: Rig) -> None:
    """With 16 of 20 GPU tasks waiting and a parallelism of 8, four CPU tasks run and see no GPU."""
    backlog = rig.run("told_backlog")
    backlog.wait_started(4)
    rig.wait_for(
        lambda: (
            rig.airflow.query(
                "SELECT count(*) AS n FROM eaco_job WHERE phase = 'waiting' AND dag_id = 'told_backlog'"
            )[0]["n"]
            == 16
        ),
        "16 tasks wait",
    )
    cpu = rig.run("cpu")
    cpu.wait_done()
    for index in range(4):
        path = f"/dags/cpu/dagRuns/{cpu.run_id}/taskInstances/work/xcomEntries/return_value"
        found = rig.airflow.api.call("GET", path, parameters={"map_index": index})
        assert found["value"] in ([index, ""], f'[{index}, ""]')
    assert len(backlog.started) == 4
    assert len({entry["gpus"] for entry in backlog.started}) == 4
    rig.airflow.api.call("PATCH", f"/dags/told_backlog/dagRuns/{backlog.run_id}", {"state": "failed"})
    backlog.wait_done("failed")
    assert len(backlog.started) == 4


def test_c20_a_held_task_that_is_cleared_ten_times_runs_once(rig: Rig) -> None:
    """Ten clears in quick succession leave one waiting job, which runs exactly once when its turn comes."""
    holder = rig.run("told_four")
    holder.wait_started()
    run = rig.run("told")
    run.wait_reason("waiting_for_gpu")
    for _ in range(10):
        rig.airflow.api.clear("told", run.run_id, "work")
    run.wait_reason("waiting_for_gpu")
    waiting = "SELECT count(*) AS n FROM eaco_job WHERE phase = 'waiting'"
    rig.wait_for(lambda: rig.airflow.query(waiting)[0]["n"] == 1, "one job waits")
    holder.end()
    run.wait_started()
    rig.wait_cycles()
    run.end()
    run.wait_done()
    assert len(run.started) == 1


def test_c20_a_task_that_is_cleared_when_it_has_just_finished_runs_once_more(rig: Rig) -> None:
    """The clear finds its last process hardly gone: exactly one new run, admitted at once, with no reason to
    hold in between.
    """
    run = rig.run("told")
    run.wait_started()
    first = run.job_id()
    run.end()
    # Airflow loses a clear that meets the scheduler while that writes the end of the DAG run.
    run.wait_done()
    rig.airflow.api.clear("told", run.run_id, "work")
    run.wait_started(2)
    run.wait_done()
    rig.wait_for(lambda: not rig.leases(), lambda: f"no lease is held; {rig.leases()}")
    assert [entry["try_number"] for entry in run.started] == [1, 2]
    rig.wait_for(lambda: len(run.audit()) >= 2, lambda: f"both starts in the audit log: {run.audit()}")
    assert [event for event, _ in run.audit()] == ["eaco admit", "eaco admit"]
    second = run.job_id()
    assert first != second
    assert [len(rig.story(job_id).leases) for job_id in (first, second)] == [1, 1]


def test_c23_a_broken_request_fails_its_task_alone_and_says_why(rig: Rig) -> None:
    """No object, an unknown key, a wrong type, a value of no JSON, a config that is no dict: each fails with
    its own message.
    """
    run = rig.run("broken_requests")
    run.wait_done("failed")
    assert run.instance("in_order")["state"] == "success"
    for task_id, words in {
        "no_object": "two GPUs",
        "unknown_key": "gpu",
        "wrong_type": "two",
        "not_serialisable": "profile_params",
        "no_dict": "must be a dict",
    }.items():
        assert run.instance(task_id)["state"] == "failed"
        [(event, text)] = run.audit(task_id)
        assert event == "eaco reject"
        assert words in text
        assert text in run.log(task_id=task_id)


def test_c25_twenty_tasks_with_room_for_twenty_run_together(rig: Rig) -> None:
    """Twenty ready tasks and twenty-four free GPUs: all run at once, none was ever held by a cycle."""
    run = rig.run("told_wide")
    started = run.wait_started(20)
    assert len({entry["gpus"] for entry in started}) == 20
    jobs = {lease["job_id"] for lease in rig.leases()}
    assert jobs == {run.job_id(map_index=index) for index in range(20)}
    for job_id in jobs:
        assert {decision.decision.verdict for decision in rig.story(job_id).decisions} == {Verdict.ADMIT}


def test_c31_ten_tasks_load_a_gpu_library_and_their_starter_never_does(rig: Rig) -> None:
    """Each of ten tasks finds its GPUs when it imports the library, which the starter never does."""
    run = rig.run("loads_cuda")
    run.wait_done()
    assert len({entry["pid"] for entry in run.started}) == 10
    assert all(entry["seen"] == entry["gpus"] != "" for entry in run.started)
    assert all(not entry["loaded_before"] for entry in run.started)
    assert {entry["forkserver"] for entry in run.started} == {forkserver_pid(rig.airflow)}


def test_overridden_and_mapped_tasks_keep_their_requests(rig: Rig) -> None:
    """Overriding gives other GPUs, mapping gives each its own, and a rule gives a task those it names."""
    run = rig.run("requests_kept")
    ruled = rig.run("plain")
    run.wait_done()
    held = {
        (row["task_id"], row["map_index"]): row["gpus"]
        for row in rig.airflow.query("SELECT * FROM eaco_job WHERE dag_id = 'requests_kept'")
    }
    assert held == {("two", -1): 2, ("each", 0): 1, ("each", 1): 1, ("wider", 0): 3}
    counts = {(entry["task"], entry["map_index"]): len(entry["gpus"].split(",")) for entry in run.started}
    assert counts == held
    ruled.wait_done()
    rows = rig.airflow.query("SELECT gpus, units_done FROM eaco_job WHERE dag_id = 'plain'")
    assert rows == [{"gpus": 1, "units_done": 0}]


def test_a_task_that_fails_runs_its_failure_callback_and_frees_its_gpus(rig: Rig) -> None:
    """The callback of a failed GPU task runs, the cause is in its log, and nothing is held afterwards."""
    run = rig.run("fails")
    run.wait_done("failed")
    assert (run.folder / "failure-callback").exists()
    assert "it was bound to fail" in run.log()
    rig.wait_for(lambda: not rig.leases(), "the lease of a failed task has fallen")
