"""What an ordering may say beyond a rank: what is kept for who waits, and a plan of the present step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol, cast, runtime_checkable

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.base import Ordering


class Keeping(StrEnum):
    """What is kept from later jobs when one is held.

    ``HEAD_OF_LINE``: the free GPUs of every node that could serve it. ``FIRST_RESERVED``: for the first that
    is held, a reservation at its earliest predicted start. ``NOTHING``: whoever fits may start.
    An ordering says so in its attribute ``keeping``; one without it keeps the head of the line.
    """

    HEAD_OF_LINE = "head_of_line"
    FIRST_RESERVED = "first_reserved"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Agenda:
    """A plan's present step: the queue, and by job id the place at which some of it start now."""

    order: tuple[Job, ...]
    offers: Mapping[str, Placement]


@runtime_checkable
class PlanningOrdering(Protocol):
    """An ordering that also plans when and where; ``order`` then only ranks where no plan is asked for."""

    def order(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> tuple[Job, ...]: ...

    def plan(self, first: Sequence[Job], rest: Sequence[Job], snapshot: ClusterSnapshot) -> Agenda:
        """Return the agenda; jobs in ``first`` come before all others, in their order."""


def as_planning(ordering: Ordering) -> PlanningOrdering | None:
    """Return the ordering if it plans."""
    return cast("PlanningOrdering", ordering) if _plans(type(ordering)) else None


# Looking a protocol's methods up takes longer than many a cycle.
@cache
def _plans(kind: type) -> bool:
    return issubclass(kind, PlanningOrdering)
