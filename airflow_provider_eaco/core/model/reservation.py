"""Reservations: GPUs that are promised to somebody for a time to come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_eaco.core.model.placement import Placement


@dataclass(frozen=True, slots=True)
class Reservation:
    """``placement`` is for ``whom`` from ``start_s`` until ``end_s`` (instants; infinite: until released).

    Others may use its GPUs before, if they are predicted to be gone at ``start_s``. A distant one is in the
    way only of those that are predicted to be there still: who runs for nobody knows how long may start.
    """

    placement: Placement
    start_s: float
    end_s: float = math.inf
    whom: str = ""
    is_distant: bool = False
