"""Statistics that go on without their samples."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.engine.running_mean import RunningMean

SAMPLES = st.lists(st.floats(0.01, 1e6), max_size=20)


@given(first=SAMPLES, second=SAMPLES)
def test_merging_equals_measuring_all_at_once(first: list[float], second: list[float]) -> None:
    """The statistics of two parts are those of the whole."""
    merged = RunningMean.of(first).merged(RunningMean.of(second))
    whole = first + second
    assert merged.samples == len(whole)
    assert merged.mean == (pytest.approx(statistics.fmean(whole)) if whole else None)
    if len(whole) < 2:
        assert merged.spread is None
    else:
        assert merged.spread == pytest.approx(statistics.stdev(whole), rel=1e-6, abs=1e-3)


def test_an_unknown_spread_stays_unknown() -> None:
    """Where the spread of many samples is not known, merging cannot know it either."""
    assert RunningMean(5, 10.0, None).merged(RunningMean.of([9.0, 11.0])) == RunningMean(7, 10.0, None)


@given(values=SAMPLES, one=st.floats(0.01, 1e6))
def test_one_value_more_is_what_merging_it_gives(values: list[float], one: float) -> None:
    """The short way for one value gives the same to the last bit, also where the spread is unknown."""
    mean = RunningMean.of(values)
    assert mean.with_one(one) == mean.merged(RunningMean.of([one]))
    unknown = mean._replace(spread=None)
    assert unknown.with_one(one) == unknown.merged(RunningMean.of([one]))
