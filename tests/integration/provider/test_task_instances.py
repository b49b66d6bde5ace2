"""What the executor reads of Airflow's task instances, and the one thing it writes."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.taskinstance import TaskInstance

from airflow_provider_eaco.provider.task_instances import (
    awaiting_follow_ups,
    facts_of,
    keep_alive,
    living_owners,
    queued_anew,
    started_tasks,
    without_slots,
)
from tests.integration.provider.airflow_rows import NOW, AirflowRows, config_of


def test_facts_are_what_the_database_has_now(airflow_rows: AirflowRows) -> None:
    """State, Airflow pool, slots, present priority and the run's date come from the rows, by id."""
    airflow_rows.run()
    job_id = airflow_rows.task(
        "train", pool="gpus", pool_slots=2, priority_weight=7, try_number=3, map_index=4
    )
    with airflow_rows.session() as session:
        facts = facts_of(session, [job_id])[job_id]
    assert (facts.state, facts.pool, facts.pool_slots, facts.priority) == ("queued", "gpus", 2, 7)
    assert facts.run_after_s == (NOW - timedelta(hours=1)).timestamp()
    assert tuple(facts.key) == ("dag", "train", "r1", 3, 4)


@pytest.mark.parametrize("backfill_priority", [0, -1000])
def test_c06_only_the_runs_of_a_backfill_are_ranked_lower(
    airflow_rows: AirflowRows, backfill_priority: int
) -> None:
    """What the setting adds comes to the priority of a backfill's task and of no other."""
    ids = {}
    for run_type in ("backfill", "scheduled", "manual", "asset_triggered"):
        airflow_rows.run(run_type, run_type=run_type)
        ids[run_type] = airflow_rows.task("train", run_id=run_type, priority_weight=7)
    with airflow_rows.session() as session:
        facts = facts_of(session, ids.values())
    ranked = {name: facts[job_id].ranked(backfill_priority).priority for name, job_id in ids.items()}
    assert ranked == {
        "backfill": 7 + backfill_priority, "scheduled": 7, "manual": 7, "asset_triggered": 7
    }  # fmt: skip


def test_c20_a_task_that_is_not_queued_any_more_is_seen(airflow_rows: AirflowRows) -> None:
    """Cleared (a new id), marked as failed, still queued: the last look before a start tells them apart."""
    airflow_rows.run()
    ids = {name: airflow_rows.task(name) for name in ("cleared", "failed", "queued", "reset")}
    table = TaskInstance.__table__
    airflow_rows.set(table, {"id": uuid4(), "try_number": 2}, task_id="cleared")
    airflow_rows.set(table, {"state": "failed"}, task_id="failed")
    airflow_rows.set(table, {"state": None}, task_id="reset")
    with airflow_rows.session() as session:
        facts = facts_of(session, ids.values())
    states = {name: facts[job_id].state for name, job_id in ids.items() if job_id in facts}
    assert states == {"failed": "failed", "queued": "queued", "reset": None}


def test_c20_a_row_that_a_clear_left_queued_under_a_new_id_is_found(airflow_rows: AirflowRows) -> None:
    """Only what this scheduler has queued counts: another's is not lost, and one not queued is not due."""
    airflow_rows.run()
    scheduler_id = int(airflow_rows.scheduler(10))
    table = TaskInstance.__table__
    keys = []
    for name, values in {
        "lost": {"queued_by_job_id": scheduler_id},
        "of-another": {"queued_by_job_id": scheduler_id + 1},
        "scheduled": {"queued_by_job_id": scheduler_id, "state": "scheduled"},
    }.items():
        job_id = airflow_rows.task(name)
        with airflow_rows.session() as session:
            keys.append(facts_of(session, [job_id])[job_id].key)
        airflow_rows.set(table, {"id": uuid4(), "try_number": 2, **values}, task_id=name)
    with airflow_rows.session() as session:
        found = [(ti.task_id, ti.try_number) for ti in queued_anew(session, keys, scheduler_id)]
    assert found == [("lost", 2)]


def test_more_tasks_than_one_statement_takes(airflow_rows: AirflowRows) -> None:
    """A thousand ids are looked up and kept alive in parts; ids that are gone are left out."""
    airflow_rows.run()
    ids = [airflow_rows.task(f"t{number}") for number in range(3)]
    asked = [*(str(uuid4()) for _ in range(1200)), *ids]
    with airflow_rows.session() as session:
        assert set(facts_of(session, iter(asked))) == set(ids)
        keep_alive(session, iter(asked), NOW)
    assert {airflow_rows.queued_at(f"t{number}") for number in range(3)} == {NOW}


def test_c17_only_queued_tasks_of_ours_are_kept_alive(airflow_rows: AirflowRows) -> None:
    """The queue time of a waiting task moves to now; running tasks and those of others keep theirs."""
    airflow_rows.run()
    ours = [airflow_rows.task("waiting"), airflow_rows.task("running", state="running")]
    airflow_rows.task("other")
    with airflow_rows.session() as session:
        keep_alive(session, ours, NOW)
    assert airflow_rows.queued_at("waiting") == NOW
    assert airflow_rows.queued_at("running") == NOW - timedelta(minutes=10)
    assert airflow_rows.queued_at("other") == NOW - timedelta(minutes=10)


OURS = "airflow_provider_eaco.EacoExecutor"


@pytest.mark.parametrize(
    ("is_default", "expected"),
    [(True, {"asks-us", "asks-nobody"}), (False, {"asks-us"})],
    ids=["the default executor", "one of several"],
)
@pytest.mark.parametrize("slots", [None, 0], ids=["c10 no such pool", "c12 a pool of 0 slots"])
def test_scheduled_tasks_that_get_no_slot_are_found(
    airflow_rows: AirflowRows, is_default: bool, expected: set[str], slots: int | None
) -> None:
    """Those that would come to this executor, in runs that go on, whose Airflow pool is missing or closed."""
    airflow_rows.run()
    airflow_rows.run("over", state="failed")
    airflow_rows.pool("there", 1)
    airflow_rows.pool("unlimited", -1)
    if slots is not None:
        airflow_rows.pool("misspelt", slots)
    config = config_of({"gpus": 2})
    lost = {"state": "scheduled", "pool": "misspelt", "executor_config": config}
    airflow_rows.task("asks-us", executor=OURS, **lost)
    airflow_rows.task("asks-nobody", executor=None, **lost)
    airflow_rows.task("asks-another", executor="LocalExecutor", **lost)
    airflow_rows.task("has-its-pool", executor=OURS, **{**lost, "pool": "there"})
    airflow_rows.task("has-any", executor=OURS, **{**lost, "pool": "unlimited"})
    airflow_rows.task("handed-over", executor=OURS, **{**lost, "state": "queued"})
    airflow_rows.task("of-a-run-that-failed", run_id="over", executor=OURS, **lost)
    with airflow_rows.session() as session:
        found = without_slots(session, [OURS, "EacoExecutor"], is_default)
    assert {task.facts.key.task_id for task in found.values()} == expected
    assert all(task.config == config and task.facts.pool == "misspelt" for task in found.values())
    assert all(task.pool_exists is (slots is not None) for task in found.values())


@pytest.mark.parametrize(
    ("looked_at_s", "states", "awaited"),
    [
        (-1, ("running", "success", None), True),
        (-1, ("running", "failed", None), True),
        (0.4, ("running", "success", None), True),
        (1, ("running", "success", None), False),
        (-1, ("success", "success", None), False),
        (-1, ("running", "up_for_reschedule", None), False),
        (-1, ("running", "running", None), False),
        (-1, ("running", "success", "queued"), False),
        (-1, ("running", "success", "success"), False),
    ],
    ids=[
        "not looked at since",
        "a follow-up may want that",
        "looked at before the end may have been committed",
        "looked at since",
        "the run is over",
        "the task comes back itself",
        "it has not ended",
        "its follow-up is handed over",
        "nothing is left",
    ],
)
def test_c02_an_ended_task_has_follow_ups_until_airflow_has_looked_at_its_run(
    airflow_rows: AirflowRows, looked_at_s: float, states: tuple[str, str, str | None], awaited: bool
) -> None:
    """Airflow looks at a run before it hands the next tasks of it over, and writes down when.

    ``states``: of the run, of its task that has ended, and of the one after it.
    """
    run_state, state, follow_up = states
    airflow_rows.run(state=run_state, last_scheduling_decision=NOW + timedelta(seconds=looked_at_s))
    airflow_rows.run("other", last_scheduling_decision=NOW - timedelta(seconds=1))
    ended = airflow_rows.task("first", state=state, updated_at=NOW)
    airflow_rows.task("second", state=follow_up)
    unrelated = airflow_rows.task("alone", run_id="other", state="success", updated_at=NOW)
    with airflow_rows.session() as session:
        assert awaiting_follow_ups(session, [ended, unrelated, str(uuid4())]) == (
            {ended} if awaited else set()
        )


def test_schedulers_that_report_are_alive(airflow_rows: AirflowRows) -> None:
    """One that fell silent, one that ended and another kind of job are not."""
    alive = airflow_rows.scheduler(10)
    airflow_rows.scheduler(50)
    airflow_rows.scheduler(10, state="success")
    airflow_rows.scheduler(10, job_type="TriggererJob")
    with airflow_rows.session() as session:
        assert living_owners(session, NOW - timedelta(seconds=30)) == {alive}


def test_a_started_task_has_what_tells_how_it_was_started(airflow_rows: AirflowRows) -> None:
    """Its pid, executor, request and what a rule goes by; one that was never queued has no such instant."""
    airflow_rows.run()
    with airflow_rows.session() as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        for dag_id, tag in (("dag", "vision"), ("other", "speech")):
            tags = [DagTag(name=tag, dag_id=dag_id)]
            session.add(DagModel(dag_id=dag_id, bundle_name="bundle", tags=tags))
    job_id = airflow_rows.task(
        "train",
        pid=4711,
        executor="CeleryExecutor",
        queue="gpu",
        operator="BashOperator",
        state="running",
        executor_config=config_of({"gpus": 2}),
    )
    bare = airflow_rows.task("bare", queued_dttm=None)
    with airflow_rows.session() as session:
        found = started_tasks(session, [job_id, bare, str(uuid4())])
    assert set(found) == {job_id, bare}
    task = found[job_id]
    assert (task.pid, task.executor, task.queue, task.operator) == (
        4711, "CeleryExecutor", "gpu", "BashOperator"
    )  # fmt: skip
    assert task.config == {"eaco": {"gpus": 2}}
    assert task.queued_s == (NOW - timedelta(minutes=10)).timestamp()
    assert task.tags == frozenset({"vision"})
    assert task.facts.state == "running"
    assert (found[bare].pid, found[bare].queued_s, found[bare].executor) == (None, None, None)
