"""Trainings that share a node, those that should not, and a policy that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.rig import Rig, Run

pytestmark = [pytest.mark.airflow]

EXPECTED_TRACEBACKS = ("the moody policy has a bad day",)


def events(run: Run, task_id: str) -> list[str]:
    """Return the names of what happened to the task's job, oldest first."""
    return [event.event for event in run.rig.story(run.job_id(task_id)).events]


def test_two_trainings_share_a_node_and_are_confirmed(rig: Rig) -> None:
    """The second training joins the first on the same GPUs; after an epoch together the set is confirmed."""
    run = rig.run("confirmed", epochs=8)
    run.wait_done()
    assert [entry["try_number"] for entry in run.started] == [1, 1]
    both = [rig.story(run.job_id(task_id)) for task_id in ("alexnet", "vgg")]
    assert both[0].leases[0].placement == both[1].leases[0].placement
    assert "trial" in events(run, "vgg")
    assert "confirmed" in events(run, "vgg")
    assert all("undone" not in events(run, task_id) for task_id in ("alexnet", "vgg"))


def test_c59_a_training_that_slows_another_yields_and_goes_on_at_its_first_try(rig: Rig) -> None:
    """The pair is 1.6 times slower than alone: the last one in leaves at an epoch's end, and goes on from
    its checkpoint when the other is done, still at its first try.
    """
    run = rig.run("undone", epochs=8)
    run.wait_done()
    first = [entry for entry in run.started if entry["task"] == "first"]
    second = [entry for entry in run.started if entry["task"] == "second"]
    assert len(first) == 1
    assert len(second) == 2, "it has left and come back once"
    assert second[0]["start"] == 0
    assert second[1]["start"] > 0
    assert second[1]["checkpoint"].endswith(f"second--1-{second[1]['start']}")
    assert {entry["try_number"] for entry in run.started} == {1}
    assert "undone" in events(run, "second")
    leases = rig.story(run.job_id("second")).leases
    assert len(leases) == 2


def test_c63_a_reason_changes_with_its_cause(rig: Rig) -> None:
    """A task that could start waits for its draining node, in the same words on every surface, then runs."""
    rig.airflow.api.post("/eaco/api/v1/nodes/moody/drain")
    try:
        run = rig.run("told_moody")
        told = run.wait_reason("draining")
        printed = run.why()
        assert (printed["reason"], printed["sentence"]) == ("draining", told.reason.sentence)
        assert (str(printed["position"]), str(printed["of"])) == ("1", "1")
        rig.wait_for(run.audit, "the reason in the audit log")
        event, text = run.audit()[-1]
        assert event == "eaco hold"
        assert text.startswith(f"draining: {told.reason.sentence}")
    finally:
        rig.airflow.api.post("/eaco/api/v1/nodes/moody/undrain")
    run.wait_started()
    rig.wait_for(lambda: run.audit()[-1][0] == "eaco admit", lambda: f"it was admitted: {run.audit()}")


def test_c67_a_policy_that_fails_holds_the_tasks_of_its_pool_alone(rig: Rig) -> None:
    """While a user's policy raises, its pool's tasks wait with the exception; all others run."""
    bad_day = Path(rig.airflow.settings.environment["EACO_MOODY_FILE"])
    bad_day.touch()
    try:
        run = rig.run("told_moody")
        told = run.wait_reason("misconfigured")
        assert "the moody policy has a bad day" in told.reason.sentence
        other = rig.run("told")
        cpu = rig.run("cpu")
        other.wait_started()
        cpu.wait_done()
        assert run.started == []
    finally:
        bad_day.unlink()
    run.wait_started()
