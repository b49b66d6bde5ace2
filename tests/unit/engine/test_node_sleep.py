"""When a node is put to sleep, woken, found up, or given up; leases, bookings and strangers have a veto."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import SleepNode, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.node_sleep import Patience, Sight, Step, is_needed, is_ready, next_step
from tests.builders import make_node

NOW_S = 10_000.0
PATIENCE = Patience(idle_s=300.0, wake_s=600.0, settle_s=100.0)
SLEEP, WAKE = SleepNode("n1"), WakeNode("n1")
NODE = replace(make_node("n1", gpus=2).node, last_report_s=NOW_S - 5)


def sight(power: NodePower, ago_s: float = 0.0, **values: object) -> Sight:
    seen = Sight(NodePowerState(power, NOW_S - ago_s), None, needed=False, ready=True)
    return replace(seen, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("power", [NodePower.IDLE, NodePower.ACTIVE])
def test_an_idle_node_sleeps_after_its_time_or_when_a_policy_says_so(power: NodePower) -> None:
    """Without a time it sleeps only when it is told to."""
    assert next_step(sight(power, 299), None, PATIENCE, NOW_S) is None
    assert next_step(sight(power, 300), None, PATIENCE, NOW_S) is Step.SLEEP
    assert next_step(sight(power), SLEEP, PATIENCE, NOW_S) is Step.SLEEP
    assert next_step(sight(power, 9e9), None, replace(PATIENCE, idle_s=None), NOW_S) is None


@pytest.mark.parametrize("veto", [{"needed": True}, {"ready": False}])
@pytest.mark.parametrize("asked", [None, SLEEP])
def test_who_needs_or_uses_a_node_keeps_it_up(veto: dict[str, bool], asked: SleepNode | None) -> None:
    """Neither time nor policy puts it to sleep."""
    assert next_step(sight(NodePower.IDLE, 900, **veto), asked, PATIENCE, NOW_S) is None


def test_a_node_that_is_to_be_up_is_not_put_to_sleep() -> None:
    """A policy that wakes a node that is up keeps it up."""
    assert next_step(sight(NodePower.IDLE, 900), WAKE, PATIENCE, NOW_S) is None


def test_a_sleeping_node_wakes_when_it_is_needed_or_a_policy_says_so() -> None:
    """That it is not ready is what sleep means."""
    asleep = sight(NodePower.ASLEEP, 50, ready=False)
    assert next_step(asleep, None, PATIENCE, NOW_S) is None
    assert next_step(asleep, SLEEP, PATIENCE, NOW_S) is None
    assert next_step(asleep, WAKE, PATIENCE, NOW_S) is Step.WAKE
    assert next_step(replace(asleep, needed=True), None, PATIENCE, NOW_S) is Step.WAKE


@pytest.mark.parametrize(("ago_s", "step"), [(40, None), (100, None), (99, Step.UP)])
def test_a_node_that_goes_on_reporting_is_not_asleep(ago_s: float, step: Step | None) -> None:
    """Its last words before it fell asleep are none of that."""
    asleep = sight(NodePower.ASLEEP, 200, reported_s=NOW_S - ago_s if ago_s != 40 else NOW_S - 140)
    assert next_step(asleep, None, PATIENCE, NOW_S) is step


def test_a_waking_node_is_up_when_it_reports_and_given_up_after_its_time() -> None:
    """An earlier report says nothing."""
    waking = sight(NodePower.WAKING, 599, reported_s=NOW_S - 599, needed=True, ready=False)
    assert next_step(waking, WAKE, PATIENCE, NOW_S) is None
    assert next_step(replace(waking, reported_s=NOW_S - 598), None, PATIENCE, NOW_S) is Step.UP
    late = sight(NodePower.WAKING, 600, reported_s=None, needed=True)
    assert next_step(late, None, PATIENCE, NOW_S) is Step.FAILED


def test_last_words_before_sleep_do_not_count_as_awake() -> None:
    """Who is woken right after it was told to sleep may still be on its way down."""
    waking = sight(NodePower.WAKING, 50, reported_s=NOW_S - 10, slept_s=NOW_S - 60)
    assert next_step(waking, None, PATIENCE, NOW_S) is None
    assert next_step(replace(waking, slept_s=NOW_S - 111), None, PATIENCE, NOW_S) is Step.UP


def view(*bookings: Booking, lease_on: str | None = None) -> LedgerView:
    leases = []
    if lease_on is not None:
        leases = [Lease(1, "j", Placement(lease_on, ("g",)), LeaseState.EXCLUSIVE, 1, 0.0)]
    return LedgerView(NOW_S, (NODE,), (), tuple(leases), bookings=bookings)


def booking(start_s: float, end_s: float, node: str = "n1") -> Booking:
    return Booking(1, Placement(node, ("g",)), start_s, end_s, "Ada", "", frozenset())


def test_leases_and_bookings_need_a_node() -> None:
    """Those of this node; a booking from the time on at which it has to be woken, and until its end."""
    assert is_needed(view(lease_on="n1"), "n1", 600)
    assert not is_needed(view(lease_on="n2"), "n1", 600)
    assert is_needed(view(booking(NOW_S + 600, NOW_S + 900)), "n1", 600)
    assert not is_needed(view(booking(NOW_S + 601, NOW_S + 900)), "n1", 600)
    assert is_needed(view(booking(NOW_S - 60, NOW_S + 1)), "n1", 600)
    assert not is_needed(view(booking(NOW_S - 60, NOW_S)), "n1", 600)
    assert not is_needed(view(booking(NOW_S - 60, NOW_S + 1, "n2")), "n1", 600)


def readings(**last: int | None) -> dict[str, GpuReading]:
    quiet = [GpuReading(gpu.uuid, NOW_S, foreign_memory_mib=0, foreign_processes=0) for gpu in NODE.gpus]
    return {each.uuid: each for each in (quiet[0], replace(quiet[1], **last))}


def test_a_node_is_ready_while_nobody_else_is_known_there() -> None:
    """One process, memory beyond the margin, or a GPU of which nothing is known keeps it up (C34)."""
    assert is_ready(NODE, readings(), 512, NOW_S, 60)
    assert is_ready(NODE, readings(foreign_memory_mib=512), 512, NOW_S, 60)
    assert not is_ready(NODE, readings(foreign_memory_mib=513), 512, NOW_S, 60)
    assert not is_ready(NODE, readings(foreign_processes=1), 512, NOW_S, 60)
    assert not is_ready(NODE, readings(foreign_memory_mib=None, foreign_processes=None), 512, NOW_S, 60)
    assert not is_ready(NODE, {}, 512, NOW_S, 60)


@pytest.mark.parametrize(
    "changed",
    [
        {"last_report_s": NOW_S - 61},
        {"last_report_s": None},
        {"available": False},
        {"draining": True},
        {"gpus": ()},
    ],
)
def test_a_node_that_is_silent_drains_or_has_nothing_is_left_as_it_is(changed: dict[str, object]) -> None:
    """Somebody works on it, or it is not what we think."""
    assert not is_ready(replace(NODE, **changed), readings(), 512, NOW_S, 60)  # type: ignore[arg-type]
