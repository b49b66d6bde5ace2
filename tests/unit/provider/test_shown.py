"""Quantities as they are shown: units, and the word unknown for all that cannot be true (I4)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.provider.shown import (
    counted,
    shown_count,
    shown_duration,
    shown_energy,
    shown_instant,
    shown_number,
    shown_percent,
)


@pytest.mark.parametrize("show", [shown_count, shown_duration, shown_energy, shown_number, shown_percent])
@pytest.mark.parametrize("value", [None, -1])
def test_what_is_not_known_or_cannot_be_is_unknown(show: object, value: int | None) -> None:
    """No quantity is shown as 0 or below where it is missing or negative."""
    assert callable(show)
    assert show(value) == "unknown"


@pytest.mark.parametrize(("count", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_things_are_counted_in_their_number(count: int, text: str) -> None:
    """One is one."""
    assert counted(count, "GPU") == text


@given(st.floats() | st.none())
def test_no_number_shown_is_impossible(value: float | None) -> None:
    """Whatever a meter says: nothing negative, nothing above 100 per cent, no NaN, no infinity."""
    for text in (
        shown_number(value, 0, "W"),
        shown_percent(value),
        shown_energy(value),
        shown_duration(value),
    ):
        assert "-" not in text
        assert "nan" not in text
        assert "inf" not in text
    percent = shown_percent(value)
    assert percent == "unknown" or float(percent.removesuffix(" %")) <= 100


@pytest.mark.parametrize(
    ("elapsed_s", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90061, "1 d 1 h"),
        (86460, "1 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(elapsed_s: float, text: str) -> None:
    """A duration reads by its largest unit and the one after it."""
    assert shown_duration(elapsed_s) == text


def test_an_instant_is_in_utc() -> None:
    """An instant names its zone; one that nobody knows is unknown."""
    assert shown_instant(0.0) == "1970-01-01 00:00:00 UTC"
    assert shown_instant(None) == shown_instant(math.nan) == "unknown"


@pytest.mark.parametrize(("energy_j", "text"), [(0.0, "0 J"), (1234.4, "1234 J"), (7.2e6, "2.000 kWh")])
def test_energy_changes_its_unit(energy_j: float, text: str) -> None:
    """Below one kilowatt-hour energy is in joules."""
    assert shown_energy(energy_j) == text


def test_energy_with_a_gap_is_a_lower_bound() -> None:
    """Joules that could not be measured are not taken for zero."""
    assert shown_energy(10.0, partial=True) == "at least 10 J"
    assert shown_energy(None, partial=True) == "unknown"
