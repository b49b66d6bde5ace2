"""The verbs about GPUs for people outside Airflow: book, bookings, unbook."""

from __future__ import annotations

import re
from argparse import Namespace
from datetime import UTC, datetime

from airflow_provider_eaco.core.model.booking import (
    Booking,
    InvalidBookingError,
    WantedBooking,
    gpu_names,
    names_of,
)
from airflow_provider_eaco.core.model.errors import shown
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.provider.cli.console import CommandError, changing, print_rows, reading
from airflow_provider_eaco.provider.shown import shown_instant

NO_BOOKINGS = "nobody has booked GPUs"
# How the arguments of a booking are written here.
_OPTIONS = {
    "node": "NODE",
    "gpus": "--gpus",
    "from_s": "--from",
    "until_s": "--until",
    "name": "--for",
    "note": "--note",
}
_UNIT_S = {"min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<unit>min|h|d)", re.ASCII)
_INSTANT = "an instant such as 2026-12-24T08:00 (UTC unless it says otherwise)"


@changing
def book(args: Namespace) -> None:
    """Keep GPUs of a node free of tasks for somebody outside Airflow."""
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    from_s = None if args.begins == "now" else _instant_s(args.begins, "--from", f"now, or {_INSTANT}")
    wanted = WantedBooking(
        node=args.node,
        gpus=_gpus(args.gpus),
        from_s=from_s,
        until_s=_until_s(args.until, store.clock.now_s() if from_s is None else from_s),
        name=args.whom,
        note=args.note,
    )
    try:
        made = store.bookings.book(wanted)
    except InvalidBookingError as error:
        raise CommandError(f"{_OPTIONS[error.argument]}: {error.problem}") from error
    view = store.ledger.view()
    print_rows([booking_row(made, view)], args.output)


@reading
def bookings(args: Namespace) -> None:
    """List the bookings that have not ended."""
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    present, view = store.bookings.present(), store.ledger.view()
    print_rows([booking_row(each, view) for each in present], args.output, empty=NO_BOOKINGS)


@changing
def unbook(args: Namespace) -> None:
    """End a booking, or call one off that has not begun."""
    from airflow_provider_eaco.provider.wiring import open_store

    store = open_store()
    ended = store.bookings.end(args.booking)
    if ended is None:
        known = ", ".join(str(each.booking_id) for each in store.bookings.present()) or "none"
        raise CommandError(f"ID: no booking {args.booking} runs or is to come; those that do: {known}")
    view = store.ledger.view()
    print_rows([{**booking_row(ended, view), "state": "ended: tasks may start there again"}], args.output)


def booking_row(booking: Booking, view: LedgerView) -> dict[str, str]:
    """Return a booking as it is printed; a GPU that its node no longer has is told by its UUID."""
    return {
        "booking": str(booking.booking_id),
        "node": booking.placement.node,
        "gpus": ", ".join(gpu_names(booking.placement, names_of(view.nodes))),
        "for": booking.name,
        "from": shown_instant(booking.start_s),
        "until": shown_instant(booking.end_s),
        "state": "running" if booking.runs_at(view.now_s) else "to come",
        "note": booking.note,
    }


def _gpus(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    wanted = tuple(part.strip() for part in text.split(","))
    if not all(wanted):
        raise CommandError(
            f"--gpus: {shown(text)} must be indices or UUIDs with commas between, such as 0,1; without "
            "--gpus all GPUs of the node are booked"
        )
    return wanted


def _until_s(text: str, from_s: float) -> float:
    duration = _DURATION.fullmatch(text.strip())
    if duration is not None:
        return from_s + float(duration["number"]) * _UNIT_S[duration["unit"]]
    return _instant_s(text, "--until", f"{_INSTANT}, or a duration such as 90min, 4h or 2d")


def _instant_s(text: str, option: str, allowed: str) -> float:
    try:
        instant = datetime.fromisoformat(text.strip())
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise CommandError(f"{option}: {shown(text)} must be {allowed}") from error
