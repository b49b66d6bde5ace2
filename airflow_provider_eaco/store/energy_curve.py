"""What a run used over time, as few enough points: joules and measured seconds up to each instant.

Sums are kept, not draws, so that a point can be left out without losing a joule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from airflow_provider_eaco.store.energy_tables import energy_run as run_table
from airflow_provider_eaco.store.schema import energy as energy_table

# A curve has so many points at most; a new one comes no sooner than after this part of the time so far.
MOST_POINTS = 120
_STEPS = 60
LEAST_STEP_S = 10.0

# An instant, the joules up to it, and the seconds in which they were measured.
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Watts:
    """The mean draw of a run's GPUs between two instants; ``None``: nothing was measured."""

    from_s: float
    until_s: float
    mean_w: float | None


def is_due(curve: Sequence[Sequence[float]], now_s: float) -> bool:
    """Tell whether the curve is to get another point now."""
    if not curve:
        return True
    return now_s - curve[-1][0] >= max(LEAST_STEP_S, (curve[-1][0] - curve[0][0]) / _STEPS)


def grown(curve: Sequence[Sequence[float]], point: Point) -> list[list[float]]:
    """Return the curve with another point, without the points whose neighbours are nearest if it is full.

    Sums that were not stored anew since the last point are none: they would tell of a time without a draw.
    """
    points = [*map(list, curve)]
    if not points or point[0] > points[-1][0]:
        points.append(list(point))
    while len(points) > MOST_POINTS:
        inner = range(1, len(points) - 1)
        del points[min(inner, key=lambda place: points[place + 1][0] - points[place - 1][0])]
    return points


def used_until_now(connection: Connection, token: int) -> Point | None:
    """Return when the lease's energy was stored last, and its sums; ``None``: nothing is known of it."""
    return _used(connection, energy_table.c.token == token).get(token)


def curves_of_jobs(connection: Connection, job_ids: Sequence[str]) -> dict[int, list[Point]]:
    """Return what each lease of these jobs has used over time, by token, up to now.

    :param job_ids: so many as fit one statement.
    """
    used = _used(connection, energy_table.c.job_id.in_(job_ids))
    rows = connection.execute(
        select(run_table.c.token, run_table.c.curve).where(run_table.c.job_id.in_(job_ids))
    )
    return {row.token: _whole(row.curve, used.get(row.token)) for row in rows}


def _used(connection: Connection, condition: ColumnElement[bool]) -> dict[int, Point]:
    stored = energy_table.c
    query = (
        select(stored.token, func.sum(stored.energy_j), func.sum(stored.known_s), func.max(stored.updated_at))
        .where(condition)
        .group_by(stored.token, stored.gpu_uuid)
    )
    known: dict[int, list[Point]] = defaultdict(list)
    for token, energy_j, known_s, updated_s in connection.execute(query):
        if energy_j is not None:
            known[token].append((updated_s, energy_j, known_s))
    return {token: _added(points) for token, points in known.items()}


def _added(of_gpus: Sequence[Point]) -> Point:
    # All GPUs of a lease are held together.
    return (
        max(at_s for at_s, _, _ in of_gpus),
        math.fsum(energy_j for _, energy_j, _ in of_gpus),
        max(known_s for _, _, known_s in of_gpus),
    )


def _whole(curve: Sequence[Any], last: Point | None) -> list[Point]:
    points = [(at_s, energy_j, known_s) for at_s, energy_j, known_s in curve]
    if last is not None and (not points or last[0] > points[-1][0]):
        points.append(last)
    return points


def watts_over_time(curve: Sequence[Point], began_s: float) -> list[Watts]:
    """Return the mean draws between the points of a lease that began then, in their order."""
    found = []
    for (from_s, before_j, before_s), (until_s, energy_j, known_s) in pairwise([(began_s, 0.0, 0.0), *curve]):
        if until_s > from_s:
            measured_s = known_s - before_s
            mean_w = max(0.0, energy_j - before_j) / measured_s if measured_s > 0 else None
            found.append(Watts(from_s, until_s, mean_w))
    return found
