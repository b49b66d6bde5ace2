"""The configuration program against an independent calculation and against what must always hold."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.energy.configuration import (
    JobClass,
    SetPerformance,
    configuration_program,
)
from airflow_provider_eaco.core.model.errors import SolverError
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from airflow_provider_eaco.telemetry.truth import TruthTable

FAMILIES = ("J1", "J2", "J3", "J4")
TRUTH = TruthTable(built_in_book())


def performance_of(families: tuple[str, ...]) -> list[SetPerformance]:
    truth = TRUTH.of(families, "V100", 8)
    return [SetPerformance(truth.power_w, tuple(member.rate for member in truth.members))]


EXCLUSIVE_J = sum(0.25 * performance_of((family,))[0].power_w for family in FAMILIES)

# Percent of exclusive energy saved at a work-weighted mean stretch, equal shares of the four families; from
# an independent program over the same tables.
WITHOUT_CLASS_LIMITS = [
    (1.01, -12.9),
    (1.02, -23.3),
    (1.0323, -33.0),
    (1.05, -38.4),
    (1.0647, -42.0),
    (1.10, -45.9),
    (1.25, -46.6),
]
# The same with the limits 1.05, 1.15, 1.15 and none on a quarter of each family.
WITH_CLASS_LIMITS = [(1.0323, -33.0), (1.0647, -42.0), (1.10, -44.1)]


def saving_pct(classes: list[JobClass], mean_stretch: float, class_limits: bool) -> float:
    program = configuration_program(classes, performance_of, 4)
    solution = HighsEnergySolver().solve(program, mean_stretch, class_limits)
    assert solution.mean_stretch <= mean_stretch + 1e-6
    return 100 * (solution.energy_j / EXCLUSIVE_J - 1)


@pytest.mark.parametrize(("mean_stretch", "expected_pct"), WITHOUT_CLASS_LIMITS)
def test_energy_at_a_bounded_mean_stretch(mean_stretch: float, expected_pct: float) -> None:
    """The program gives the independent calculation's savings to 0.1 points."""
    classes = [JobClass(family, None, 0.25) for family in FAMILIES]
    assert saving_pct(classes, mean_stretch, class_limits=False) == pytest.approx(expected_pct, abs=0.1)


@pytest.mark.parametrize(("mean_stretch", "expected_pct"), WITH_CLASS_LIMITS)
def test_energy_with_the_limits_of_every_class(mean_stretch: float, expected_pct: float) -> None:
    """With the limits of single jobs the program gives the independent calculation's savings as well."""
    classes = [
        JobClass(family, limit, work_s)
        for family in FAMILIES
        for limit, work_s in ((1.05, 1 / 16), (1.15, 1 / 8), (None, 1 / 16))
    ]
    assert saving_pct(classes, mean_stretch, class_limits=True) == pytest.approx(expected_pct, abs=0.1)


def test_prices_pay_for_the_energy() -> None:
    """Without a bound on stretch the prices of the work add up to the energy (strong duality)."""
    program = configuration_program([JobClass(f, None, 3600.0) for f in FAMILIES], performance_of, 4)
    solution = HighsEnergySolver().solve(program)
    assert float(solution.price_w @ program.work_s) == pytest.approx(solution.energy_j, rel=1e-9)


def test_a_bound_that_nobody_can_keep_is_an_error() -> None:
    """A mean stretch below 1 has no schedule and says so."""
    program = configuration_program([JobClass("J1", None, 1.0)], performance_of, 2)
    with pytest.raises(SolverError, match="no solution"):
        HighsEnergySolver().solve(program, 0.99)


def test_no_work_takes_no_energy() -> None:
    """An empty mix has the bound 0."""
    program = configuration_program([JobClass("J1", None, 0.0)], performance_of, 2)
    assert HighsEnergySolver().solve(program).energy_j == 0.0
