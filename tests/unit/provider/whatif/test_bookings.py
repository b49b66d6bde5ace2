"""A what-if keeps to the bookings, and so do expected starts."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.provider.whatif.expected import Waiting, expected_starts
from tests.builders import NOW_S, make_book, make_solo
from tests.unit.provider.whatif.rig import Scene, by_id

HOUR_S = 3600.0


def booked(start_s: float, end_s: float, **settings: object) -> Scene:
    """One GPU that is booked, and a waiting task of two hours."""
    solo = make_solo(unit_s=HOUR_S, units_total=2)
    scene = Scene(profiles=[solo], settings=PoolSettings(policy="exclusive", **settings))  # type: ignore[arg-type]
    scene.ledger.bookings = (Booking(1, Placement("n", ("n-gpu00",)), NOW_S + start_s, NOW_S + end_s, "Ada"),)
    scene.wait("w")
    return scene


@pytest.mark.parametrize("ordering", ["fifo", "backfill", "horizon"])
@pytest.mark.parametrize(
    ("start_s", "end_s", "begins_s"),
    [(-HOUR_S, HOUR_S, HOUR_S), (HOUR_S, 3 * HOUR_S, 3 * HOUR_S), (2 * HOUR_S, 3 * HOUR_S, 0.0)],
    ids=["runs", "too soon", "late enough"],
)
def test_a_simulated_task_begins_when_the_booking_has_ended(
    ordering: str, start_s: float, end_s: float, begins_s: float
) -> None:
    """The what-if plans with the bookings of the present, and goes on when one ends."""
    outcome = by_id(booked(start_s, end_s, ordering=ordering).outcome())["w"]
    assert outcome.start_s == NOW_S + begins_s


def test_expected_starts_leave_booked_time_out() -> None:
    """A task that does not fit before the booking is expected at its end."""
    scene = booked(HOUR_S, 3 * HOUR_S)
    present = scene.present()
    job = present.view.jobs[0].job
    found = expected_starts(
        present.view, present.pools, make_book(*scene.profiles), {}, [Waiting(job, "eaco", ())]
    )
    assert found["w"].at_s == NOW_S + 3 * HOUR_S
