"""Airflow pools that do not exist, shrink, are closed or unlimited; requests that never fit."""

from __future__ import annotations

import pytest

from tests.system.rig import Rig, Run

pytestmark = [pytest.mark.airflow]


def assert_told_alike(run: Run, code: str) -> None:
    """Command line, stored decision and audit log give the same reason in the same words (C63)."""
    told = run.wait_reason(code)
    run.rig.wait_for(
        lambda: run.audit() and told.reason.sentence in run.audit()[-1][1],
        lambda: f"{told.reason.sentence!r} in the audit log: {run.audit()}",
    )
    printed = run.why()
    assert (printed["reason"], printed["sentence"]) == (code, told.reason.sentence)
    event, text = run.audit()[-1]
    assert event == "eaco hold"
    assert text.startswith(f"{code}: {told.reason.sentence}")


def test_c10_a_pool_that_does_not_exist_is_named_until_it_is_made(rig: Rig) -> None:
    """A task of an unknown pool waits with the pool's name in its reason, and runs once the pool is there."""
    run = rig.run("told_ghost")
    assert_told_alike(run, "pool_unknown")
    assert "ghost" in run.audit()[-1][1]
    rig.airflow.api.set_pool("ghost", 4)
    run.wait_started()
    run.end()
    run.wait_done()
    assert len(run.started) == 1
    assert run.instance()["try_number"] == 1


def test_c10_a_pool_that_is_deleted_while_its_task_waits_is_named_until_it_is_back(rig: Rig) -> None:
    """A held task whose pool is deleted says so, and runs without a clear once the pool is back."""
    rig.airflow.api.set_pool("fleeting", 4)
    holder = rig.run("told_four")
    holder.wait_started()
    run = rig.run("told_fleeting")
    run.wait_reason("waiting_for_gpu")
    rig.airflow.api.call("DELETE", "/pools/fleeting")
    run.wait_reason("pool_unknown")
    holder.end()
    holder.wait_done()
    rig.wait_cycles()
    assert run.started == []
    rig.airflow.api.set_pool("fleeting", 4)
    run.wait_started()
    run.end()
    run.wait_done()
    assert run.instance()["try_number"] == 1


def test_c11_a_pool_that_shrinks_below_its_use_kills_nothing_and_starts_nothing(rig: Rig) -> None:
    """With 3 of 1 slots in use nothing is killed, nothing new starts, open is 0, and other pools go on."""
    rig.airflow.api.set_pool("team", 4)
    running = [rig.run("told_team") for _ in range(3)]
    for run in running:
        run.wait_started()
    waiting = rig.run("told_team_two")
    waiting.wait_reason("waiting_for_gpu")
    rig.airflow.api.set_pool("team", 1)
    assert_told_alike(waiting, "pool_closed")
    shown = rig.airflow.api.shown("/eaco/api/v1/summary")
    [team] = [pool for pool in shown["airflow_pools"] if pool["airflow_pool"] == "team"]
    assert (team["slots"], team["used"], team["open"]) == ("1", "3", "0")
    elsewhere = rig.run("told_moody")
    elsewhere.wait_started()
    for run in running[:2]:
        assert run.instance()["state"] == "running"
        run.end()
        run.wait_done()
    rig.wait_cycles()
    assert waiting.started == []
    assert running[2].instance()["state"] == "running"
    running[2].end()
    running[2].wait_done()
    waiting.wait_started()
    assert [len(run.started) for run in running] == [1, 1, 1]


def test_c12_a_pool_of_minus_one_is_limited_by_gpus_alone_and_one_of_zero_starts_nothing(rig: Rig) -> None:
    """An unlimited pool fills all four GPUs; at 0 slots a held task stays held and says why, and so does one
    that comes later and that Airflow does not even hand over.
    """
    rig.airflow.api.set_pool("team", -1)
    runs = [rig.run("told_team") for _ in range(5)]
    rig.wait_for(lambda: sum(bool(run.started) for run in runs) == 4, "four of five run")
    [waiting] = [run for run in runs if not run.started]
    waiting.wait_reason("waiting_for_gpu")
    rig.airflow.api.set_pool("team", 0)
    closed = waiting.wait_reason("pool_closed")
    assert "0 slots" in closed.reason.sentence
    late = rig.run("told_team")
    assert late.wait_reason("pool_closed").reason == closed.reason
    for run in runs:
        if run is not waiting:
            run.end()
            run.wait_done()
    rig.wait_cycles()
    assert (waiting.started, late.started) == ([], [])
    rig.airflow.api.set_pool("team", -1)
    waiting.wait_started()
    late.wait_started()


def test_c09_a_request_that_never_fits_fails_with_the_largest_that_exists(rig: Rig) -> None:
    """82 GiB on 16 GiB cards: failed after the pool's patience of one second, in the same words in audit log
    and task log; it never started, and other tasks pass it.
    """
    run = rig.run("told_never_fits")
    other = rig.run("told")
    other.wait_started()
    run.wait_done("failed")
    assert run.started == []
    assert run.lease() is None
    event, text = run.audit()[-1]
    assert event == "eaco reject"
    assert text.startswith("no_such_gpu: never fits: ")
    assert "83968 MiB" in text
    assert "the largest usable is 4 x V100" in text
    assert text in run.log()


def test_c09_a_patient_pool_holds_what_never_fits_and_says_so(rig: Rig) -> None:
    """Within ``reject_after`` the same request waits and says why: a worker may come back."""
    run = rig.run("told_too_big")
    told = run.wait_reason("no_such_gpu")
    assert "83968 MiB" in told.reason.sentence
    assert "the largest usable is 4 x V100" in told.reason.sentence
    rig.wait_cycles()
    assert run.instance()["state"] == "queued"
    rig.airflow.api.set_state("told_too_big", run.run_id, "work", "failed")
    run.wait_done("failed")
    assert run.started == []


def test_pools_reset_gives_a_pool_back_to_the_provider(rig: Rig) -> None:
    """A user's edit of a GPU pool's slots stands, until the pool is reset; then it is sized again."""
    slots = "SELECT slots FROM slot_pool WHERE pool = 'wide'"
    made = rig.airflow.query(slots)[0]["slots"]
    rig.airflow.api.set_pool("wide", 3)
    rig.wait_reports(1)
    assert rig.airflow.query(slots)[0]["slots"] == 3
    rig.airflow.run_cli("eaco", "pools", "reset", "wide")
    rig.wait_for(lambda: rig.airflow.query(slots)[0]["slots"] == made, "the pool's former size")
