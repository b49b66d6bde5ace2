"""Real-time demand: the GPUs that a curve keeps for services, as reservations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import DemandCurve
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot

_HOUR_S = 3600.0
_HOURS = 24
WHOM = "real-time demand"


def demand_reservations(snapshot: ClusterSnapshot, hours: int = 2 * _HOURS) -> tuple[Reservation, ...]:
    """Return what the pool's demand curves keep in the next ``hours``, the present hour included.

    Demand takes a node's GPUs from the lowest index on, so that what is left stays in one piece. Two days
    are told unless asked otherwise: whoever starts within a day's horizon and runs for a day more sees them.
    """
    found: list[Reservation] = []
    for curve in snapshot.pool.settings.demand:
        state = snapshot.nodes.get(curve.node)
        if state is not None:
            found.extend(_of_curve(curve, state.node, snapshot.now_s, hours))
    return tuple(found)


def _of_curve(curve: DemandCurve, node: Node, now_s: float, hours: int) -> Iterable[Reservation]:
    gpus = sorted(node.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    first = int(now_s // _HOUR_S)
    wanted = [curve.gpus_by_hour[hour % _HOURS] for hour in range(first, first + hours)]
    for place, gpu in enumerate(gpus):
        for begin, end in _spans([count > place for count in wanted]):
            placement = Placement(node.name, (gpu.uuid,))
            yield Reservation(placement, (first + begin) * _HOUR_S, (first + end) * _HOUR_S, WHOM)


def _spans(needed: Sequence[bool]) -> Iterable[tuple[int, int]]:
    """Return the stretches of true, as first and one past the last."""
    begin: int | None = None
    for position, is_needed in enumerate((*needed, False)):
        if is_needed and begin is None:
            begin = position
        elif not is_needed and begin is not None:
            yield begin, position
            begin = None
