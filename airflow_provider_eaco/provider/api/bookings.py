"""Bookings: GPUs of a node for somebody outside Airflow, for a span of time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.booking import (
    Booking,
    BookingOverlapError,
    UnknownNodeError,
    WantedBooking,
)
from airflow_provider_eaco.provider.api.access import CanSee, CanSteer, User
from airflow_provider_eaco.provider.api.audit_log import note_change
from airflow_provider_eaco.provider.api.errors import CONFLICT
from airflow_provider_eaco.provider.api.stored import the_store

router = APIRouter(tags=["bookings"], dependencies=[CanSee])

BookingId = Annotated[int, Path(ge=1, le=2**31 - 1)]
_MOST_GPUS = 1000


class BookingShown(BaseModel):
    """GPUs that belong to somebody outside Airflow from ``from_s`` until before ``until_s``."""

    booking_id: int
    node: str
    gpu_uuids: list[str]
    from_s: float
    until_s: float
    name: str = Field(description="for whom or what, as the booker gave it")
    note: str


class BookingsShown(BaseModel):
    """The bookings that had not ended at ``now_s`` on the store's clock, the first to begin first."""

    now_s: float
    items: list[BookingShown]


class NewBooking(BaseModel):
    """What is to be booked."""

    node: str
    gpus: list[str | int] = Field(
        default=[], max_length=_MOST_GPUS, description="indices or UUIDs; none of them: all GPUs of the node"
    )
    from_s: float | None = Field(default=None, description="`null`: now")
    until_s: float
    name: str = Field(description="who has them: tasks that wait are told so")
    note: str = ""


@router.get("/bookings", response_model=BookingsShown)
def bookings() -> BookingsShown:
    """List the bookings that have not ended."""
    store = the_store()
    return BookingsShown(now_s=store.clock.now_s(), items=[_shown(each) for each in store.bookings.present()])


@router.post("/bookings", response_model=BookingShown, dependencies=[CanSteer], responses=CONFLICT)
def book(user: User, new: NewBooking) -> BookingShown:
    """Keep GPUs free of tasks for somebody outside Airflow. Needs to change pools.

    A node that is not known is 404, a GPU that is somebody else's in that time 409.
    """
    wanted = WantedBooking(new.node, tuple(map(str, new.gpus)), new.from_s, new.until_s, new.name, new.note)
    store = the_store().bookings
    try:
        note_change(user, "eaco user book", _in_short(store.draft(wanted)))
        return _shown(store.book(wanted))
    except UnknownNodeError as error:
        raise HTTPException(404, str(error)) from error
    except BookingOverlapError as error:
        raise HTTPException(409, str(error)) from error


@router.delete("/bookings/{booking_id}", status_code=204, dependencies=[CanSteer])
def unbook(user: User, booking_id: BookingId) -> None:
    """End a booking, or call one off that has not begun. Needs to change pools."""
    store = the_store().bookings
    found = next((each for each in store.present() if each.booking_id == booking_id), None)
    if found is not None:
        note_change(user, "eaco user unbook", _in_short(found))
    if found is None or store.end(booking_id) is None:
        raise HTTPException(404, f"no booking {booking_id} runs or is to come")


def _in_short(booking: Booking) -> str:
    gpus = ", ".join(booking.placement.gpu_uuids)
    return f"{gpus} of {booking.placement.node} for {booking.name} {booking.span}"


def _shown(booking: Booking) -> BookingShown:
    return BookingShown(
        booking_id=booking.booking_id,
        node=booking.placement.node,
        gpu_uuids=list(booking.placement.gpu_uuids),
        from_s=booking.start_s,
        until_s=booking.end_s,
        name=booking.name,
        note=booking.note,
    )
