"""A job in a what-if passes its units at the instants that it has named for them."""

from __future__ import annotations

import random

import pytest

from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.provider.whatif.runs import Run

EPOCH_S = 1_796_134_195.0
UNITS = 60


def run_from(since_s: float, time_scale: float, unit_s: float, slowdown: float) -> Run:
    return Run(
        "j",
        "A",
        1,
        Placement("n", ("GPU-0",)),
        "V100",
        time_scale,
        Progress(units_total=UNITS),
        UNITS * unit_s,
        unit_s,
        unit_s,
        since_s,
        can_yield=True,
        slowdown=slowdown,
        watched=True,
    )


@pytest.mark.parametrize("time_scale", [1.0, 600.0, 3600.0])
def test_a_boundary_is_passed_at_its_instant_however_that_is_rounded(time_scale: float) -> None:
    """Looked at when it has said that its unit ends, it has a unit more, and the next one ends later."""
    draw = random.Random(65)
    for _ in range(200):
        unit_s, slowdown = draw.uniform(200, 2000), draw.uniform(1.0, 1.3)
        run = run_from(EPOCH_S + draw.random(), time_scale, unit_s, slowdown)
        for number in range(1, UNITS + 1):
            at_s = run.boundary_s()
            run.advance(at_s)
            assert run.progress.units_done == number
            assert run.boundary_s() > at_s
