"""Power states of a node: what changes them, when, and what does not."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState, SleepRule

RULE = SleepRule(idle_s=300.0, wake_s=120.0)


def state(power: NodePower, since_s: float = 100.0) -> NodePowerState:
    return NodePowerState(power, since_s)


@pytest.mark.parametrize(
    ("present", "after"),
    [
        (NodePower.IDLE, state(NodePower.ACTIVE, 150.0)),
        (NodePower.ASLEEP, state(NodePower.WAKING, 150.0)),
        (NodePower.WAKING, state(NodePower.WAKING)),
        (NodePower.ACTIVE, state(NodePower.ACTIVE)),
    ],
)
def test_being_wanted(present: NodePower, after: NodePowerState) -> None:
    """An idle node is active at once, a sleeping one begins to wake, others go on as they are."""
    assert state(present).wanted(150.0) == after


@pytest.mark.parametrize(
    ("present", "after"),
    [
        (NodePower.ACTIVE, state(NodePower.IDLE, 150.0)),
        (NodePower.WAKING, state(NodePower.WAKING)),
        (NodePower.IDLE, state(NodePower.IDLE)),
        (NodePower.ASLEEP, state(NodePower.ASLEEP)),
    ],
)
def test_being_vacated(present: NodePower, after: NodePowerState) -> None:
    """Only an active node becomes idle when its last job leaves."""
    assert state(present).vacated(150.0) == after


@pytest.mark.parametrize(
    ("present", "now_s", "occupied", "after"),
    [
        (NodePower.IDLE, 399.9, False, state(NodePower.IDLE)),
        (NodePower.IDLE, 400.0, False, state(NodePower.ASLEEP, 400.0)),
        (NodePower.WAKING, 219.9, True, state(NodePower.WAKING)),
        (NodePower.WAKING, 500.0, True, state(NodePower.ACTIVE, 220.0)),
        (NodePower.WAKING, 220.0, False, state(NodePower.IDLE, 220.0)),
        (NodePower.ACTIVE, 9_999.0, True, state(NodePower.ACTIVE)),
        (NodePower.ASLEEP, 9_999.0, False, state(NodePower.ASLEEP)),
    ],
)
def test_what_time_does(present: NodePower, now_s: float, occupied: bool, after: NodePowerState) -> None:
    """A change is dated to the instant it was due, however late somebody looks."""
    assert state(present).at(now_s, RULE, occupied) == after


@pytest.mark.parametrize("power", list(NodePower))
def test_without_a_rule_nothing_changes_by_itself(power: NodePower) -> None:
    """Where nodes never sleep, time alone changes no state."""
    assert state(power).next_change_s(None) is None
    assert state(power).at(1e9, None, occupied=False) == state(power)
