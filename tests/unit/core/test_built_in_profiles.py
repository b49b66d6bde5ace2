"""The built-in book holds the published numbers: written again here, independent of the CSV files."""

from __future__ import annotations

import math

import pytest

from airflow_provider_eaco.core.energy.power_model import v100_power_w
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileSource, family_set
from airflow_provider_eaco.data import built_in_book, exclusive_rows, families_of, shared_rows

# power W, energy kWh, JCT h, epoch h, GPU utilisation average / max %, memory utilisation average / max %
EXCLUSIVE = {
    "J1": ("AlexNet", 712, 24.73, 34.76, 0.39, 4.72, 11, 1.73, 4.21),
    "J2": ("ResNet-18", 959, 33.69, 35.13, 0.39, 11.17, 27.29, 6.07, 14.63),
    "J3": ("ResNet-50", 1330, 47.87, 36.01, 0.40, 36.61, 72.04, 22.29, 43.92),
    "J4": ("VGG-16", 1533, 55.38, 36.13, 0.40, 48.01, 81.5, 30.03, 51.29),
}
# the same, then energy saved % and JCT rise %
SHARED = {
    "J1 J3": (1390, 50.93, 36.63, 0.407, 40.25, 76.67, 22.66, 46.25, 29.8, 3.5),
    "J1 J4": (1506, 54.97, 36.51, 0.406, 55.16, 87.75, 31.26, 52.96, 31.4, 3.0),
    "J2 J4": (1644, 60.84, 37.01, 0.411, 61.06, 93.46, 34.85, 52.54, 31.7, 3.9),
    "J1 J2 J3": (1541, 59.01, 38.28, 0.425, 52.24, 91.88, 27.77, 55.88, 44.5, 8.4),
    "J1 J2 J4": (1713, 65.55, 38.26, 0.425, 66.99, 93.96, 35.83, 52.75, 42.4, 8.3),
    "J1 J2 J3 J4": (1944, 93.66, 44.21, None, 96.64, 100, 43.46, 52.54, 42.1, 24.5),
}


@pytest.mark.parametrize("family", EXCLUSIVE)
def test_exclusive_rows_hold_every_published_number(family: str) -> None:
    """Each exclusive row equals Tables 1 and 2 of the paper, and the profile is made from it."""
    model_name, *numbers = EXCLUSIVE[family]
    row = next(row for row in exclusive_rows() if row["family"] == family)
    names = ("power_w", "energy_kwh", "jct_h", "epoch_h", "utilisation_pct", "utilisation_max_pct")
    names += ("memory_utilisation_pct", "memory_utilisation_max_pct")
    assert [float(row[name]) for name in names] == numbers
    assert row["model_name"] == model_name
    profile = built_in_book().solo_of(family, "V100", 8)
    assert profile is not None
    assert profile.unit_s == pytest.approx(numbers[2] * 3600 / 90)
    assert (profile.power_w, profile.utilisation_pct, profile.utilisation_max_pct) == (
        numbers[0],
        numbers[4],
        numbers[5],
    )
    assert profile.memory_utilisation_pct == numbers[6]
    assert model_name in profile.reference
    assert "2412.08294" in profile.reference
    assert (profile.scope, profile.source) == (PowerScope.NODE, ProfileSource.BUILT_IN)


@pytest.mark.parametrize("families", SHARED)
def test_shared_rows_hold_every_published_number(families: str) -> None:
    """Each shared row equals Tables 3 and 4, and the members' slowdown is JCT / mean exclusive JCT."""
    numbers = SHARED[families]
    row = next(row for row in shared_rows() if row["families"] == families)
    names = ("power_w", "energy_kwh", "jct_mean_h", "epoch_h", "utilisation_pct", "utilisation_max_pct")
    names += ("memory_utilisation_pct", "memory_utilisation_max_pct", "energy_saved_pct", "jct_rise_pct")
    assert tuple(float(row[name]) if row[name] else None for name in names) == numbers
    members = families.split()
    profile = built_in_book().coallocation_of(family_set(members), "V100", 8)
    assert profile is not None
    mean_h = sum(EXCLUSIVE[member][3] for member in members) / len(members)
    assert profile.slowdowns == dict.fromkeys(members, pytest.approx(numbers[2] / mean_h))
    assert (profile.slowdowns[members[0]] - 1) * 100 == pytest.approx(numbers[9], abs=0.06)
    assert (profile.power_w, profile.utilisation_pct) == (numbers[0], numbers[4])


def test_the_book_holds_these_ten_sets_and_no_other() -> None:
    """Four families alone and six sets are built in; what was not published stays unknown."""
    book = built_in_book()
    assert {profile.family for profile in book.solo.values()} == set(EXCLUSIVE)
    assert {" ".join(families_of(row)) for row in shared_rows()} == set(SHARED)
    assert len(book.coallocation) == len(SHARED)
    for profile in book.solo.values():
        assert (profile.memory_peak_mib, profile.checkpoints, profile.units_total) == (None, None, None)


def test_energy_saved_and_epoch_counts_follow_from_the_other_columns() -> None:
    """The derived columns agree with the measured ones: 90 epochs, and energy against exclusive runs."""
    for row in exclusive_rows():
        assert float(row["jct_h"]) / float(row["epoch_h"]) == pytest.approx(90, rel=0.011)
    for families, numbers in SHARED.items():
        alone_kwh = sum(EXCLUSIVE[family][2] for family in families.split())
        assert (1 - numbers[1] / alone_kwh) * 100 == pytest.approx(numbers[8], abs=0.1)


def test_the_power_model_fits_the_ten_measured_points() -> None:
    """392 W + 158.5 W x sqrt(utilisation) explains the measured powers with R2 = 0.992."""
    points = [(row[5], row[1]) for row in EXCLUSIVE.values()] + [(row[4], row[0]) for row in SHARED.values()]
    mean_w = sum(power for _, power in points) / len(points)
    residual = sum((power - v100_power_w(busy, 8)) ** 2 for busy, power in points)
    assert 1 - residual / sum((power - mean_w) ** 2 for _, power in points) == pytest.approx(0.992, abs=5e-4)
    assert v100_power_w(0, 8) == 392
    assert v100_power_w(0, 1) == 49
    assert v100_power_w(250, 4) == pytest.approx((392 + 158.5 * math.sqrt(100)) / 2)
