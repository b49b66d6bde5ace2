"""Power states of a node that nobody uses: when it goes to sleep, and what waking it takes.

A pure state machine: the present instant is handed in. The simulated cluster and a live node keep the same
states, so that what is simulated about sleeping is what is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodePower(StrEnum):
    """``ACTIVE``: somebody holds GPUs of it. ``IDLE``: on, and nobody does. ``WAKING``: on its way from
    ``ASLEEP``, it takes work when it is up.
    """

    ACTIVE = "active"
    IDLE = "idle"
    WAKING = "waking"
    ASLEEP = "asleep"

    @property
    def is_up(self) -> bool:
        """Whether who is placed there starts at once."""
        return self is NodePower.ACTIVE or self is NodePower.IDLE


@dataclass(frozen=True, slots=True)
class SleepRule:
    """An idle node goes to sleep after ``idle_s`` seconds, and needs ``wake_s`` seconds to come back.

    An ``idle_s`` of ``None``: it sleeps only when it is told to. The defaults are assumptions of the
    benchmarks, not measurements.
    """

    idle_s: float | None = 300.0
    wake_s: float = 120.0


@dataclass(frozen=True, slots=True)
class NodePowerState:
    """Where a node stands since ``since_s``."""

    power: NodePower
    since_s: float

    def wanted(self, now_s: float) -> NodePowerState:
        """Return the state once somebody was given GPUs there: a sleeping node wakes, a waking one
        goes on.
        """
        if self.power is NodePower.ASLEEP:
            return NodePowerState(NodePower.WAKING, now_s)
        if self.power is NodePower.IDLE:
            return NodePowerState(NodePower.ACTIVE, now_s)
        return self

    def vacated(self, now_s: float) -> NodePowerState:
        """Return the state once nobody holds GPUs there any more; one that wakes up still wakes up."""
        return NodePowerState(NodePower.IDLE, now_s) if self.power is NodePower.ACTIVE else self

    def told_to_sleep(self, now_s: float) -> NodePowerState:
        """Return the state once an idle node was told to sleep; one that wakes up is up first."""
        return NodePowerState(NodePower.ASLEEP, now_s) if self.power is NodePower.IDLE else self

    def told_to_wake(self, now_s: float) -> NodePowerState:
        """Return the state once a sleeping node was told to wake; any other is up or on its way."""
        return NodePowerState(NodePower.WAKING, now_s) if self.power is NodePower.ASLEEP else self

    def next_change_s(self, rule: SleepRule | None) -> float | None:
        """Return the instant at which the state changes by itself, ``None``: never.

        :param rule: ``None`` for a node that never sleeps of its own accord.
        """
        if rule is None:
            return None
        if self.power is NodePower.IDLE and rule.idle_s is not None:
            return self.since_s + rule.idle_s
        if self.power is NodePower.WAKING:
            return self.since_s + rule.wake_s
        return None

    def at(self, now_s: float, rule: SleepRule | None, occupied: bool) -> NodePowerState:
        """Return the state at ``now_s``, with a change that was due until then carried out.

        :param occupied: whether somebody waits there for the node to be up.
        """
        due_s = self.next_change_s(rule)
        if due_s is None or now_s < due_s:
            return self
        if self.power is NodePower.IDLE:
            return NodePowerState(NodePower.ASLEEP, due_s)
        return NodePowerState(NodePower.ACTIVE if occupied else NodePower.IDLE, due_s)
