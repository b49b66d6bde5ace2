"""Power limits on real boards: what is asked of whoever can set them, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement

# The event in a task's story that tells of its power limit.
POWER_LIMIT_EVENT = "power_limit"


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """A limit on each board of a placement, with what was there before, in the order of its GPUs."""

    limit_w: float
    before_w: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """What is to be true of this machine's boards.

    ``held`` are the placements on which a limit may stay; every other limit of ours is lifted. ``changes``
    are carried out on those alone. ``asked`` are the UUIDs of which it is to be told whether a limit could be
    set there.
    """

    held: tuple[Placement, ...] = ()
    changes: tuple[SetPowerLimit, ...] = ()
    asked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """What became of a request.

    ``refused`` says of a change why it was not carried out; then the boards are as they were before it.
    ``unable`` says of a UUID that was asked about why no limit can be set there. ``restored`` are the boards
    that have the limit again that they had before, in watts; ``taken`` those whose limit somebody else has
    changed meanwhile, which is left alone; ``stuck`` says of a board why its limit could not be lifted: that
    is tried again. With a ``problem`` nothing is known of any board; all may be asked again.
    """

    refused: Mapping[Placement, str] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    restored: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[str, float] = field(default_factory=dict)
    stuck: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What a node with a worker tells of the power limits on its boards.

    ``permits`` says of each GPU that was asked about why no limit can be set there, ``None``: one can.
    ``in_force`` are the limits that the boards are known to have, ``noted`` all placements on whose boards a
    limit of ours may be. ``refused`` says of a limit that was wanted last why it was not set.
    """

    permits: Mapping[str, str | None] = field(default_factory=dict)
    in_force: Mapping[Placement, LimitInForce] = field(default_factory=dict)
    noted: frozenset[Placement] = frozenset()
    refused: Mapping[Placement, str] = field(default_factory=dict)
