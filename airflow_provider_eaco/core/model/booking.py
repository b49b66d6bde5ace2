"""Bookings: GPUs of a node that somebody outside Airflow has for a span of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_eaco.core.model.errors import EacoError, shown
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Placement

MOST_AHEAD_S = 5 * 366 * 24 * 3600.0
MAX_NAME = 200
MAX_NOTE = 1000


class InvalidBookingError(EacoError, ValueError):
    """A booking that cannot be made.

    :param argument: one of ``node``, ``gpus``, ``from_s``, ``until_s``, ``name`` and ``note``.
    :param problem: what is wrong with its value and what is allowed.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class UnknownNodeError(InvalidBookingError):
    """The node is not in the inventory."""


class BookingOverlapError(InvalidBookingError):
    """One of the GPUs is somebody else's in that time."""


@dataclass(frozen=True, slots=True)
class Booking:
    """``placement`` belongs to ``name``, as the booker gave it, from ``start_s`` until before ``end_s``.

    ``told`` are the tokens of the leases whose jobs were there when it began, and were told of it.
    """

    booking_id: int
    placement: Placement
    start_s: float
    end_s: float
    name: str
    note: str = ""
    told: frozenset[int] = frozenset()

    def runs_at(self, at_s: float) -> bool:
        return self.start_s <= at_s < self.end_s

    def overlaps(self, other: Booking) -> bool:
        """Tell whether both have one GPU at one time."""
        in_time = self.start_s < other.end_s and other.start_s < self.end_s
        return in_time and not set(self.placement.gpu_uuids).isdisjoint(other.placement.gpu_uuids)

    @property
    def span(self) -> str:
        """The time, as it is shown in reasons."""
        return f"from {_instant(self.start_s)} until {_instant(self.end_s)}"


@dataclass(frozen=True, slots=True)
class WantedBooking:
    """What somebody asks for. ``gpus`` are indices or UUIDs, none of them: all; ``from_s`` is ``None`` for
    now.
    """

    node: str
    gpus: tuple[str, ...]
    from_s: float | None
    until_s: float
    name: str
    note: str = ""


def booking_of(wanted: WantedBooking, nodes: Sequence[Node], now_s: float) -> Booking:
    """Return the booking, without a number yet and whoever else has one.

    :raises InvalidBookingError: naming the argument and what is allowed.
    """
    node = next((each for each in nodes if each.name == wanted.node), None)
    if node is None:
        names = ", ".join(sorted(each.name for each in nodes))
        known = f"nodes are {names}" if names else "no GPU workers registered"
        raise UnknownNodeError("node", f"no node is named {shown(wanted.node)}; {known}")
    start_s, end_s = _span(wanted, now_s)
    uuids = _uuids(wanted.gpus, node)
    name = _text("name", wanted.name, MAX_NAME)
    if not name:
        raise InvalidBookingError("name", "is empty; say for whom or what the GPUs are booked")
    return Booking(0, Placement(node.name, uuids), start_s, end_s, name, _text("note", wanted.note, MAX_NOTE))


def refuse_overlap(booking: Booking, others: Iterable[Booking], names: Mapping[str, str]) -> None:
    """Return if nobody of the others has one of the GPUs in that time.

    :param names: how GPUs are shown, by UUID.
    :raises BookingOverlapError: saying with whom.
    """
    for other in sorted(others, key=lambda each: (each.start_s, each.booking_id)):
        if booking.overlaps(other):
            both = set(booking.placement.gpu_uuids) & set(other.placement.gpu_uuids)
            shared = Placement(other.placement.node, tuple(sorted(both)))
            problem = f"{gpus_in_words(shared, names)} is booked by {other.name} {other.span}"
            raise BookingOverlapError("gpus", f"{problem} (booking {other.booking_id})")


def gpus_in_words(placement: Placement, names: Mapping[str, str]) -> str:
    """Return the GPUs by their indices, and by UUID where a GPU is not there now.

    :param names: the index of each GPU, by UUID.
    """
    return f"GPU {', '.join(gpu_names(placement, names))} of {placement.node}"


def gpu_names(placement: Placement, names: Mapping[str, str]) -> list[str]:
    """Return how the GPUs are shown: by index in order, those that are not there now by UUID after them."""
    return sorted((names.get(uuid, uuid) for uuid in placement.gpu_uuids), key=_by_number)


def names_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Return how each GPU of the nodes is shown, by UUID: its index."""
    return {gpu.uuid: str(gpu.index) for node in nodes for gpu in node.gpus}


def _by_number(name: str) -> tuple[bool, int, str]:
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _span(wanted: WantedBooking, now_s: float) -> tuple[float, float]:
    start_s = now_s if wanted.from_s is None else wanted.from_s
    end_s = wanted.until_s
    for argument, at_s in (("from_s", start_s), ("until_s", end_s)):
        if not math.isfinite(at_s) or at_s > now_s + MOST_AHEAD_S:
            raise InvalidBookingError(argument, "must be an instant within five years from now")
    if start_s < now_s:
        problem = f"{_instant(start_s)} is in the past; a booking begins now or later"
        raise InvalidBookingError("from_s", problem)
    if end_s <= now_s:
        raise InvalidBookingError(
            "until_s", f"{_instant(end_s)} is in the past; a booking ends later than now"
        )
    if end_s <= start_s:
        raise InvalidBookingError(
            "until_s", f"{_instant(end_s)} is not after the beginning, {_instant(start_s)}"
        )
    return start_s, end_s


def _uuids(wanted: Sequence[str], node: Node) -> tuple[str, ...]:
    """Return the UUIDs of these GPUs of the node, each once; none of them means all."""
    if not node.gpus:
        raise InvalidBookingError("gpus", f"node {node.name} has no GPUs now")
    by_name = {gpu.uuid: {gpu.uuid} for gpu in node.gpus}
    for gpu in node.gpus:
        # The parts of one GPU may share its index.
        by_name.setdefault(str(gpu.index), set()).add(gpu.uuid)
    unknown = [each for each in wanted if each not in by_name]
    if unknown:
        known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in node.gpus)
        raise InvalidBookingError("gpus", f"node {node.name} has no GPU {shown(unknown[0])}; it has {known}")
    asked = set[str]().union(*(by_name[each] for each in wanted))
    return tuple(sorted(asked or {gpu.uuid for gpu in node.gpus}))


def _text(argument: str, value: str, most: int) -> str:
    text = value.strip()
    if len(text) > most or not text.isprintable():
        raise InvalidBookingError(
            argument, f"{shown(value)} must be at most {most} characters on one line, all of them printable"
        )
    return text


def _instant(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "an instant before all calendars"
