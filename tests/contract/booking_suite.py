"""Contract: bookings are stored whole or not at all, one GPU has one at a time, and the planner sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from airflow_provider_eaco.core.model.booking import (
    BookingOverlapError,
    InvalidBookingError,
    WantedBooking,
)
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.schema import booking
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import START_S, ManualClock, make_job, make_node, place

HOUR_S = 3600.0
ADA = WantedBooking("n1", ("0", "2"), START_S + HOUR_S, START_S + 2 * HOUR_S, "Ada <b>", "notebook")


class BookingContract:
    """Subclasses hand in ``bookings`` and ``ledger`` on one database, and its clock."""

    def test_a_booking_is_seen_by_everybody_until_it_ends(
        self, bookings: SqlBookings, ledger: SqlLedger, clock: ManualClock
    ) -> None:
        """What was booked comes back as it was, in the list and in the ledger's view, the first first."""
        ledger.save_nodes([make_node()])
        made = bookings.book(ADA)
        assert made.placement == place(0, 2)
        assert (made.start_s, made.end_s) == (START_S + HOUR_S, START_S + 2 * HOUR_S)
        assert (made.name, made.note, made.told) == ("Ada <b>", "notebook", frozenset())
        now = bookings.book(replace(ADA, gpus=("3",), from_s=None, name="Bob"))
        assert now.start_s == START_S
        assert now.booking_id > made.booking_id
        assert bookings.present() == ledger.view().bookings == (now, made)
        clock.advance(2 * HOUR_S)
        assert bookings.present() == ledger.view().bookings == ()

    def test_a_gpu_has_one_booking_at_a_time(self, bookings: SqlBookings, ledger: SqlLedger) -> None:
        """An overlap is refused, saying with whom, and nothing is stored; right before and after may be."""
        ledger.save_nodes([make_node()])
        first = bookings.book(ADA)
        inside = replace(ADA, gpus=("2", "3"), from_s=START_S + 1.5 * HOUR_S, until_s=START_S + 9 * HOUR_S)
        for attempt in (bookings.draft, bookings.book):
            with pytest.raises(
                BookingOverlapError, match=rf"GPU 2 of n1 .*Ada.*\(booking {first.booking_id}\)"
            ):
                attempt(inside)
        with pytest.raises(InvalidBookingError, match="no node is named 'n9'"):
            bookings.book(replace(ADA, node="n9"))
        assert bookings.present() == (first,)
        bookings.book(replace(ADA, from_s=None, until_s=START_S + HOUR_S))
        bookings.book(replace(ADA, from_s=START_S + 2 * HOUR_S, until_s=START_S + 3 * HOUR_S))
        bookings.book(replace(ADA, gpus=("1",)))
        assert len(bookings.present()) == 4

    def test_a_draft_stores_nothing(self, bookings: SqlBookings, ledger: SqlLedger) -> None:
        """It only tells what would be booked."""
        ledger.save_nodes([make_node()])
        draft = bookings.draft(ADA)
        assert (draft.booking_id, draft.placement) == (0, place(0, 2))
        assert bookings.present() == ()

    def test_ending_frees_the_gpus_at_once(
        self, bookings: SqlBookings, ledger: SqlLedger, clock: ManualClock
    ) -> None:
        """One that runs ends now, one that has not begun is gone; a second time there is nothing to end."""
        ledger.save_nodes([make_node()])
        later, other = bookings.book(ADA), bookings.book(replace(ADA, gpus=("1",)))
        assert bookings.end(later.booking_id) == later
        assert bookings.present() == (other,)
        clock.advance(1.5 * HOUR_S)
        assert bookings.end(other.booking_id) == other
        assert bookings.present() == ()
        assert bookings.end(other.booking_id) is None
        assert bookings.end(later.booking_id) is None
        for unknown in (12345, 0, -1, 2**63, 10**30):
            assert bookings.end(unknown) is None
        assert bookings.book(replace(ADA, gpus=("1",), from_s=None)).booking_id > other.booking_id

    def test_what_has_run_stays_on_record_until_it_is_cleaned_away(
        self, bookings: SqlBookings, ledger: SqlLedger, clock: ManualClock, database: Database
    ) -> None:
        """Of a booking that was ended early it can be read when; one that never began leaves no row."""
        ledger.save_nodes([make_node()])
        never, early = bookings.book(ADA), bookings.book(replace(ADA, gpus=("1",), from_s=None))
        clock.advance(60)
        for each in (never, early):
            bookings.end(each.booking_id)
        with database.reading() as connection:
            rows = connection.execute(select(booking.c.booking_id, booking.c.ends_at)).all()
        assert rows == [(early.booking_id, START_S + 60)]

    def test_a_grant_that_was_planned_before_the_booking_is_too_late(
        self, bookings: SqlBookings, ledger: SqlLedger
    ) -> None:
        """It fails like any other on a GPU that has changed; other GPUs are not touched."""
        ledger.save_nodes([make_node()])
        for job_id in ("a", "b"):
            ledger.add_waiting(make_job(job_id), "x")
        seen = ledger.view().gpu_versions
        bookings.book(ADA)
        with pytest.raises(LeaseConflictError):
            ledger.grant(Launch(make_job("a"), place(0), ()), LeaseState.EXCLUSIVE, seen, "x")
        assert (
            ledger.grant(Launch(make_job("b"), place(1), ()), LeaseState.EXCLUSIVE, seen, "x").job_id == "b"
        )

    def test_each_lease_is_told_of_a_booking_once(self, bookings: SqlBookings, ledger: SqlLedger) -> None:
        """The first who tells is asked to; everybody sees that it was told."""
        ledger.save_nodes([make_node()])
        number = bookings.book(ADA).booking_id
        assert [ledger.tell_of_booking(number, token) for token in (4, 4, 5)] == [True, False, True]
        assert ledger.view().bookings[0].told == {4, 5}
        assert ledger.tell_of_booking(number + 1, 4) is False
