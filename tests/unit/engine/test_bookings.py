"""A booking begins where tasks run: they are told, and leave if the pool wants that of strangers' GPUs."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, StrangerAction
from tests.builders import NOW_S, make_job
from tests.unit.engine.rig import Rig, unlimited

HOUR_S = 3600.0
YIELDING = unlimited(PoolSettings(strangers=StrangerAction.YIELD))
ADA = "GPU 0 of n1 is booked by Ada from 1970-01-12 14:46 UTC until 1970-01-12 15:46 UTC"


def book(rig: Rig, start_s: float = HOUR_S, end_s: float = 2 * HOUR_S, gpu: int = 0) -> None:
    """Ada books one GPU, counted from now."""
    uuid = rig.ledger.view().nodes[0].gpus[gpu].uuid
    rig.ledger.bookings = (Booking(7, Placement("n1", (uuid,)), NOW_S + start_s, NOW_S + end_s, "Ada"),)


def run(rig: Rig, *job_ids: str, can_yield: bool = True) -> None:
    """Let the jobs run, each after the other was placed."""
    for job_id in job_ids:
        rig.add(make_job(job_id, job_id.upper(), gpus=1))
        assert [lease.job_id for lease in rig.loop.run_once().granted] == [job_id]
        rig.start(job_id)
        rig.unit(job_id, 100.0, can_yield=can_yield)


def told(rig: Rig, job_id: str, event: str = "booked") -> list[str]:
    return [row.text for row in rig.log.events if (row.job_id, row.event) == (job_id, event)]


def test_whoever_was_told_costs_no_write_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is asked once for each task, not in every cycle as long as the booking lasts."""
    rig = Rig()
    run(rig, "a")
    book(rig, 0.0, HOUR_S)
    asked: list[int] = []
    tell = rig.ledger.tell_of_booking
    monkeypatch.setattr(rig.ledger, "tell_of_booking", lambda *words: asked.append(1) or tell(*words))
    for _ in range(3):
        rig.loop.run_once()
    assert len(asked) == 1


def test_who_is_seen_there_during_the_booking_is_whom_it_is_for() -> None:
    """The task is asked to leave once, for the booking, and not for the processes that came with it."""
    rig = Rig(pools=YIELDING)
    run(rig, "a")
    book(rig, 0.0, HOUR_S)
    uuid = rig.ledger.view().nodes[0].gpus[0].uuid
    assert rig.loop.run_once([GpuReading(uuid, NOW_S, foreign_processes=1)]).yielding == ("a",)
    assert told(rig, "a", "displaced") == [
        "asked to leave: GPU 0 of n1 is booked by Ada from 1970-01-12 13:46 UTC until 1970-01-12 14:46 UTC"
    ]


@pytest.mark.parametrize("pools", [unlimited(PoolSettings()), YIELDING], ids=["alert", "yield"])
def test_a_task_that_runs_when_a_booking_begins_is_told_once(pools: list) -> None:
    """Before it begins nothing is said; then its story has it once, whichever planner looks."""
    rig = Rig(pools=pools)
    run(rig, "a", can_yield=False)
    book(rig)
    rig.loop.run_once()
    assert told(rig, "a") == []
    rig.clock.advance(HOUR_S)
    for planner in (rig.loop, rig.loop, rig.make_loop("planner-2")):
        assert planner.run_once().yielding == ()
    assert told(rig, "a") == [ADA]
    assert rig.held("a").state is LeaseState.EXCLUSIVE


def test_those_that_can_leave_one_after_the_other_and_come_back_after_the_end() -> None:
    """With ``yield`` the newest goes first; nobody starts there until the booking ends."""
    rig = Rig(pools=YIELDING)
    run(rig, "a", "b")
    rig.unit("a", 104.0)
    rig.loop.run_once()
    book(rig)
    rig.clock.advance(HOUR_S)
    assert rig.loop.run_once().yielding == ("b",)
    assert rig.loop.run_once().yielding == ()
    rig.end("b", JobPhase.YIELDED)
    assert rig.loop.run_once().yielding == ("a",)
    rig.end("a", JobPhase.YIELDED)
    assert told(rig, "b", "displaced") == [f"asked to leave: {ADA}"]
    assert (told(rig, "a"), told(rig, "b")) == ([ADA], [ADA])
    rig.add(make_job("a", "A", gpus=1))
    report = rig.loop.run_once()
    assert (report.granted, report.yielding) == ((), ())
    assert report.decided[0].decision.findings[0].reason.code == "booked"
    rig.clock.advance(HOUR_S)
    assert [lease.job_id for lease in rig.loop.run_once().granted] == ["a"]


def test_nobody_is_told_or_asked_on_other_gpus_or_after_the_end() -> None:
    """A booking concerns the tasks on its own GPUs, as long as it lasts."""
    rig = Rig(pools=YIELDING, gpus=2)
    run(rig, "a")
    book(rig, 0.0, HOUR_S, gpu=1)
    assert rig.loop.run_once().yielding == ()
    book(rig, 0.0, HOUR_S)
    rig.clock.advance(HOUR_S)
    assert rig.loop.run_once().yielding == ()
    assert told(rig, "a") == []


def test_by_default_nobody_is_asked_to_leave() -> None:
    """Who could leave goes on where strangers are only told of."""
    rig = Rig()
    run(rig, "a")
    book(rig, 0.0, HOUR_S)
    assert rig.loop.run_once().yielding == ()
    assert told(rig, "a", "displaced") == []


def test_a_cancelled_booking_lets_them_start_at_once() -> None:
    """Without the booking everything is as before."""
    rig = Rig()
    book(rig, -HOUR_S, HOUR_S)
    rig.add(make_job("a", "A", gpus=1))
    assert rig.loop.run_once().granted == ()
    rig.ledger.bookings = ()
    assert [lease.job_id for lease in rig.loop.run_once().granted] == ["a"]


def test_the_ledger_in_memory_tells_each_lease_once_as_well() -> None:
    """It keeps what the stored one promises: once for a lease and a booking, and never for an unknown one."""
    rig = Rig()
    book(rig)
    ledger = rig.ledger
    assert [ledger.tell_of_booking(7, 4), ledger.tell_of_booking(7, 4), ledger.tell_of_booking(7, 5)] == [
        True,
        False,
        True,
    ]
    assert ledger.tell_of_booking(8, 4) is False
    assert ledger.view().bookings[0].told == {4, 5}
