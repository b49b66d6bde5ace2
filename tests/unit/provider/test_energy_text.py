"""The energy record of a run as a value and in words."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, RunEnergy, SplitRule
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.provider.energy_record import EnergyRecord, record_of_run, stretch_of
from airflow_provider_eaco.provider.energy_text import METHOD_TEXTS, energy_text

PROGRESS = Progress(units_done=10, run_s=1100.0, solo_unit_s=100.0)
WHOLE = RunEnergy(
    energy_j=220_000.0,
    seconds=1100.0,
    known_s=1100.0,
    peak_w=290.0,
    methods={EnergyMethod.COUNTER},
    rules={SplitRule.ALONE, SplitRule.SM_TIME},
)
LOWER = RunEnergy(1000.0, 20.0, 10.0, 100.0, methods={EnergyMethod.INTEGRATED, EnergyMethod.UNKNOWN})
NOTHING = RunEnergy(0.0, 20.0, 0.0, methods={EnergyMethod.UNKNOWN})


def record(run: RunEnergy, progress: Progress, *beside: str, factor: float | None = None) -> EnergyRecord:
    return record_of_run(run, beside, stretch_of(progress), factor)


@pytest.mark.parametrize(
    ("shown", "method", "text"),
    [
        (
            record(WHOLE, PROGRESS, "d.b", "d.a"),
            "counter",
            (
                "220000 J in 18 min 20 s; 200 W on average, 290 W at most; stretch 1.100; beside d.a, d.b; "
                "from the device's counter, split by SM time"
            ),
        ),
        (
            record(LOWER, Progress(units_done=1, run_s=20.0)),
            "estimated",
            (
                "at least 1000 J in 20 s; 100 W on average, 100 W at most; stretch unknown; beside nobody; "
                "estimated from samples of power"
            ),
        ),
        (
            record(NOTHING, Progress()),
            "unknown",
            "unknown in 20 s; unknown on average, unknown at most; stretch unknown; beside nobody",
        ),
    ],
    ids=["whole", "a part was not measured", "nothing was measured"],
)
def test_c52_a_record_says_what_is_known(shown: EnergyRecord, method: str, text: str) -> None:
    """Joules, time, mean and peak draw, stretch, co-residents, and by which means; unknown is never 0."""
    assert energy_text(shown) == text
    assert shown.method == method


def test_c52_what_is_unknown_is_null_for_programs() -> None:
    """In the value that XCom and JSON get, nothing that was not measured is a number."""
    value = record(NOTHING, Progress()).as_json()
    assert {name for name, each in value.items() if each is None} == {
        "energy_j",
        "mean_w",
        "peak_w",
        "stretch",
    }
    assert (value["method"], value["partial"]) == ("unknown", True)


def test_every_way_of_measuring_has_words() -> None:
    """Only energy that was not measured has none."""
    assert set(METHOD_TEXTS) == set(EnergyMethod) - {EnergyMethod.UNKNOWN}


def test_the_stretch_of_a_run_that_never_was_alone_is_by_its_family() -> None:
    """Its own time alone comes first; with neither it is unknown."""
    shared = Progress(units_done=10, run_s=1200.0)
    assert stretch_of(shared, 100.0) == pytest.approx(1.2)
    assert stretch_of(PROGRESS, 50.0) == pytest.approx(1.1)
    assert stretch_of(shared) is None


def test_c56_co2_is_named_only_with_the_site_s_factor() -> None:
    """Nothing is looked up and no region is guessed; what was not measured has no CO2 either."""
    assert "CO2" not in energy_text(record(WHOLE, PROGRESS))
    assert not {"co2e_g", "carbon_g_per_kwh"} & record(WHOLE, PROGRESS).as_json().keys()
    assert energy_text(record(WHOLE, PROGRESS, factor=360.0)).endswith("; 22.0 g CO2e at 360 g/kWh")
    assert record(WHOLE, PROGRESS, factor=360.0).as_json()["co2e_g"] == pytest.approx(22.0)
    assert "CO2" not in energy_text(record(NOTHING, Progress(), factor=360.0))
    assert record(NOTHING, Progress(), factor=360.0).as_json()["co2e_g"] is None
