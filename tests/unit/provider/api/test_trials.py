"""Trials of a span, from the events of its job."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.provider.api.trials import trials_of

BEGAN_S, ENDED_S = 100.0, 200.0


@pytest.mark.parametrize(
    ("events", "until_s", "wanted"),
    [
        pytest.param([], None, [], id="alone"),
        pytest.param([(99.9, "trial")], None, [(100.0, None, "open")], id="still on trial"),
        pytest.param([(99.9, "trial")], ENDED_S, [(100.0, 200.0, "open")], id="ended with the span"),
        pytest.param(
            [(99.9, "trial"), (120.0, "confirmed")], None, [(100.0, 120.0, "confirmed")], id="confirmed"
        ),
        pytest.param(
            [(110.0, "trial"), (120.0, "trial"), (150.0, "undone")],
            ENDED_S,
            [(110.0, 150.0, "undone")],
            id="a second newcomer",
        ),
        pytest.param(
            [(99.9, "trial"), (120.0, "confirmed"), (150.0, "undone")],
            ENDED_S,
            [(100.0, 120.0, "confirmed"), (150.0, 150.0, "undone")],
            id="undone after all",
        ),
        pytest.param([(40.0, "trial"), (50.0, "undone")], None, [], id="of a former span"),
        pytest.param([(210.0, "trial")], ENDED_S, [], id="of a later span"),
    ],
)
def test_a_span_has_the_trials_of_its_time(
    events: list[tuple[float, str]], until_s: float | None, wanted: list[tuple[float, float | None, str]]
) -> None:
    """A trial begins with its event, ends with the next word on it or with the span, and never before it."""
    found = trials_of(events, 60.0, BEGAN_S, until_s)
    assert [(trial.from_s, trial.until_s, trial.end) for trial in found] == wanted
