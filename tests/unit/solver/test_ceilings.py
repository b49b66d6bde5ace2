"""What the published sets can give at most: the ceilings against which the paper's claims are held.

Only what was measured counts here: four families alone, six sets, each as often as one likes.
"""

from __future__ import annotations

import numpy as np
import pytest

from airflow_provider_eaco.core.energy.configuration import (
    JobClass,
    SetPerformance,
    configuration_program,
)
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from tests.simulation.paper_rules import ALONE, TOGETHER, paper_truth

# kWh of whole runs, tables 2 and 4 of the paper.
ENERGY_KWH = {
    ("J1",): 24.73,
    ("J2",): 33.69,
    ("J3",): 47.87,
    ("J4",): 55.38,
    ("J1", "J3"): 50.93,
    ("J1", "J4"): 54.97,
    ("J2", "J4"): 60.84,
    ("J1", "J2", "J3"): 59.01,
    ("J1", "J2", "J4"): 65.55,
    ("J1", "J2", "J3", "J4"): 93.66,
}


def most_saved_pct(mean_stretch: float) -> float:
    """Return what the most favourable mix of whole published runs saves at this mean stretch, in per cent."""
    from scipy.optimize import linprog

    alone_kwh = [sum(ENERGY_KWH[family,] for family in families) for families in ENERGY_KWH]
    alone_h = [sum(ALONE[family][2] for family in families) for families in ENERGY_KWH]
    hours = {**{(family,): known[2] for family, known in ALONE.items()}}
    hours.update({families: known[1] for families, known in TOGETHER.items()})
    job_h = [len(families) * hours[families] for families in ENERGY_KWH]
    solved = linprog(
        list(ENERGY_KWH.values()),
        A_ub=[np.array(job_h) - mean_stretch * np.array(alone_h)],
        b_ub=[0.0],
        A_eq=[alone_kwh],
        b_eq=[100.0],
    )
    return float(100.0 - solved.fun)


def measured_only(families: tuple[str, ...]) -> list[SetPerformance]:
    if len(families) > 1 and families not in TOGETHER:
        return []
    power_w, rates = paper_truth(families, 8)
    return [SetPerformance(power_w, rates)]


@pytest.mark.parametrize(("mean_stretch", "saved_pct"), [(1.0323, 31.8), (1.063, 39.0)])
def test_the_most_favourable_mix(mean_stretch: float, saved_pct: float) -> None:
    """The paper's +3.23 % allows 31.8 %; its 39 % needs at least +6.3 %."""
    assert most_saved_pct(mean_stretch) == pytest.approx(saved_pct, abs=0.1)


def test_equal_shares_of_the_four_jobs() -> None:
    """At +3.23 % equal shares of the four families save at most 27.4 % with the measured sets alone."""
    program = configuration_program([JobClass(family, None, 0.25) for family in ALONE], measured_only, 4)
    alone_w = sum(0.25 * paper_truth((family,), 8)[0] for family in ALONE)
    solution = HighsEnergySolver().solve(program, 1.0323)
    assert 100 * (1 - solution.energy_j / alone_w) == pytest.approx(27.4, abs=0.1)
