"""When a node is put to sleep, woken, found up again, or given up. Pure: nothing here asks a clock.

The states are those of :mod:`airflow_provider_eaco.core.model.node_power`, which a simulated cluster keeps as
well. What differs: a live node is up when it says so, and not after a fixed time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.instruction import SleepNode, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.ports import LedgerView


class Step(StrEnum):
    """What is to be done about a node. ``UP``: it reports, so it is neither asleep nor waking. ``FAILED``: it
    was to wake and did not.
    """

    SLEEP = "sleep"
    WAKE = "wake"
    UP = "up"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds.

    ``idle_s``: an idle node is put to sleep after it; ``None``: only when a policy says so. ``wake_s``: one
    that has not reported so long after it was woken is given up. ``settle_s``: what it reports so long after
    it was put to sleep are no last words.
    """

    idle_s: float | None
    wake_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class Sight:
    """A node as it is seen now. ``slept_s``: when it was told to sleep last, as far as that is known.

    ``needed``: somebody holds GPUs of it, or has booked them for a time that has begun or does so before it
    could be up. ``ready``: it has reported lately, takes work, and is known to be used by nobody else.
    """

    power: NodePowerState
    reported_s: float | None
    needed: bool
    ready: bool
    slept_s: float = float("-inf")


def next_step(
    sight: Sight, asked: SleepNode | WakeNode | None, patience: Patience, now_s: float
) -> Step | None:
    """Return what is to be done now, ``None``: nothing.

    :param asked: what a policy wants of the node.
    """
    state = sight.power
    if state.power is NodePower.ASLEEP:
        if sight.needed or isinstance(asked, WakeNode):
            return Step.WAKE
        return Step.UP if _has_reported(sight, state.since_s + patience.settle_s) else None
    if state.power is NodePower.WAKING:
        if _has_reported(sight, max(state.since_s, sight.slept_s + patience.settle_s)):
            return Step.UP
        return Step.FAILED if now_s - state.since_s >= patience.wake_s else None
    if sight.needed or not sight.ready or isinstance(asked, WakeNode):
        return None
    is_due = patience.idle_s is not None and now_s - state.since_s >= patience.idle_s
    return Step.SLEEP if is_due or isinstance(asked, SleepNode) else None


def is_needed(view: LedgerView, node: str, wake_s: float) -> bool:
    """Tell whether somebody holds GPUs of the node, or has booked them from now or soon on."""
    held = any(lease.placement.node == node for lease in view.leases)
    return held or any(_is_near(booking, node, view.now_s, wake_s) for booking in view.bookings)


def is_ready(
    node: Node, readings: dict[str, GpuReading], margin_mib: int, now_s: float, silent_s: float
) -> bool:
    """Tell whether the node may be put to sleep as far as it is nobody's (C34): it reports, does not drain,
    and each of its GPUs is known to be used by no stranger. Unknown use is no idleness.
    """
    reports = node.last_report_s is not None and now_s - node.last_report_s <= silent_s
    if not (reports and node.available and not node.draining and node.gpus):
        return False
    seen = [readings.get(gpu.uuid) for gpu in node.gpus]
    return all(reading is not None and reading.is_used_by_others(margin_mib) is False for reading in seen)


def _has_reported(sight: Sight, since_s: float) -> bool:
    return sight.reported_s is not None and sight.reported_s > since_s


def _is_near(booking: Booking, node: str, now_s: float, wake_s: float) -> bool:
    return booking.placement.node == node and booking.start_s - wake_s <= now_s < booking.end_s
