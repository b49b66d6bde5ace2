"""Bookings as rows: GPUs that somebody outside Airflow has for a span of time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.booking import (
    Booking,
    WantedBooking,
    booking_of,
    names_of,
    refuse_overlap,
)
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.store.inventory import nodes_of
from airflow_provider_eaco.store.schema import booking as booking_table
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.session import Database

_COLUMNS = tuple(
    booking_table.c[name]
    for name in ("booking_id", "node", "gpu_uuids", "starts_at", "ends_at", "name", "note", "told")
)
_IN_ORDER = select(*_COLUMNS).order_by(booking_table.c.starts_at, booking_table.c.booking_id)
_PRESENT = _IN_ORDER.where(booking_table.c.ends_at > bindparam("now_s", type_=booking_table.c.ends_at.type))
# What a column of numbers holds.
_LARGEST = 2**63 - 1


class SqlBookings:
    """The bookings, for those who make, end and list them; the ledger's view has them for the planner.

    Every method raises :class:`~airflow_provider_eaco.core.model.errors.StoreUnavailableError` when the
    database or the tables are out of reach; then nothing has changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def present(self) -> tuple[Booking, ...]:
        """Return those that have not ended, the first to begin first."""
        with self._database.reading() as connection:
            return _present(connection, self._database.now_s(connection))

    def draft(self, wanted: WantedBooking) -> Booking:
        """Return the booking that would be made now, with the number 0; nothing is stored.

        :raises InvalidBookingError: if it cannot be made, as :meth:`book` does.
        """
        with self._database.reading() as connection:
            made, now_s = self._made(connection, wanted)
            _refuse_overlap(connection, made, now_s)
            return made

    def book(self, wanted: WantedBooking) -> Booking:
        """Store the booking and return it. A grant that was planned without it comes too late.

        :raises InvalidBookingError: naming the argument, if it cannot be made; nothing has changed then.
        :raises BookingOverlapError: if one of the GPUs is booked in that time, saying by whom.
        """
        with self._database.writing() as connection:
            made, now_s = self._made(connection, wanted)
            # Of two who book a GPU at the same time, and of a grant and a booking, one comes second.
            for uuid in made.placement.gpu_uuids:
                connection.execute(
                    update(gpu_table)
                    .where(gpu_table.c.uuid == uuid)
                    .values(ledger_version=gpu_table.c.ledger_version + 1)
                )
            _refuse_overlap(connection, made, now_s)
            row = insert(booking_table).values(
                node=made.placement.node,
                gpu_uuids=made.placement.gpu_uuids,
                name=made.name,
                note=made.note,
                starts_at=made.start_s,
                ends_at=made.end_s,
                told=[],
            )
            number = connection.execute(row.returning(booking_table.c.booking_id)).scalar_one()
            return _bookings(connection, booking_table.c.booking_id == number)[0]

    def end(self, booking_id: int) -> Booking | None:
        """End a booking that runs now, remove one that has not begun; return it as it was.

        ``None``: there is none with this number, or it has ended.
        """
        if not 0 < booking_id <= _LARGEST:
            return None
        with self._database.writing() as connection:
            now_s = self._database.now_s(connection)
            own = booking_table.c.booking_id == booking_id
            found = _bookings(connection, own, booking_table.c.ends_at > now_s)
            if not found:
                return None
            if found[0].start_s > now_s:
                connection.execute(delete(booking_table).where(own))
            else:
                connection.execute(update(booking_table).where(own).values(ends_at=now_s))
            return found[0]

    def _made(self, connection: Connection, wanted: WantedBooking) -> tuple[Booking, float]:
        now_s = self._database.now_s(connection)
        return booking_of(wanted, nodes_of(connection)[0], now_s), now_s


def bookings_of(connection: Connection, database: Database, now_s: float) -> tuple[Booking, ...]:
    """Return the bookings that have not ended, none where tables of an older state have no such table."""
    return _present(connection, now_s) if database.has(connection, booking_table) else ()


def tell_of_booking(connection: Connection, booking_id: int, token: int) -> bool:
    """Remember that the holder of this lease is told of the booking; return whether it was not before."""
    own = booking_table.c.booking_id == booking_id
    told = connection.scalar(select(booking_table.c.told).where(own).with_for_update())
    if told is None or token in told:
        return False
    connection.execute(update(booking_table).where(own).values(told=[*told, token]))
    return True


def _present(connection: Connection, now_s: float) -> tuple[Booking, ...]:
    # In every view of the ledger: without rows it has to cost next to nothing.
    return _read(connection.execute(_PRESENT, {"now_s": now_s}))


def _refuse_overlap(connection: Connection, made: Booking, now_s: float) -> None:
    refuse_overlap(made, _present(connection, now_s), names_of(nodes_of(connection)[0]))


def _bookings(connection: Connection, *conditions: Any) -> tuple[Booking, ...]:
    return _read(connection.execute(_IN_ORDER.where(*conditions)))


def _read(rows: Iterable[Any]) -> tuple[Booking, ...]:
    return tuple(
        Booking(
            row.booking_id,
            Placement(row.node, row.gpu_uuids),
            row.starts_at,
            row.ends_at,
            row.name,
            row.note,
            frozenset(row.told),
        )
        for row in rows
    )
