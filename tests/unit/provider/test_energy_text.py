"""The energy record of a run in words."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, RunEnergy, SplitRule
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.provider.energy_text import METHOD_TEXTS, energy_text

PROGRESS = Progress(units_done=10, run_s=1100.0, solo_unit_s=100.0)
WHOLE = RunEnergy(
    energy_j=220_000.0,
    seconds=1100.0,
    known_s=1100.0,
    peak_w=290.0,
    co_residents={"j3", "j2"},
    methods={EnergyMethod.COUNTER},
    rules={SplitRule.ALONE, SplitRule.SM_TIME},
)


@pytest.mark.parametrize(
    ("energy", "progress", "text"),
    [
        (
            WHOLE,
            PROGRESS,
            (
                "220000 J in 18 min 20 s; 200 W on average, 290 W at most; stretch 1.100; beside j2, j3; "
                "from the device's counter, split by SM time"
            ),
        ),
        (
            RunEnergy(1000.0, 20.0, 10.0, 100.0, methods={EnergyMethod.INTEGRATED, EnergyMethod.UNKNOWN}),
            Progress(units_done=1, run_s=20.0),
            (
                "at least 1000 J in 20 s; 100 W on average, 100 W at most; stretch unknown; beside nobody; "
                "estimated from samples of power"
            ),
        ),
        (
            RunEnergy(0.0, 20.0, 0.0, methods={EnergyMethod.UNKNOWN}),
            Progress(),
            "unknown in 20 s; unknown on average, unknown at most; stretch unknown; beside nobody",
        ),
    ],
    ids=["whole", "a part was not measured", "nothing was measured"],
)
def test_a_record_says_what_is_known(energy: RunEnergy, progress: Progress, text: str) -> None:
    """Joules, time, mean and peak draw, stretch, co-residents, and by which means; unknown is never 0."""
    assert energy_text(energy, progress) == text


def test_every_way_of_measuring_has_words() -> None:
    """Only energy that was not measured has none."""
    assert set(METHOD_TEXTS) == set(EnergyMethod) - {EnergyMethod.UNKNOWN}


def test_c56_co2_is_named_only_with_the_site_s_factor() -> None:
    """Nothing is looked up and no region is guessed; what was not measured has no CO2 either."""
    assert "CO2" not in energy_text(WHOLE, PROGRESS)
    assert energy_text(WHOLE, PROGRESS, 360.0).endswith("; 22.0 g CO2e at 360 g/kWh")
    assert "CO2" not in energy_text(RunEnergy(0.0, 20.0, 0.0), Progress(), 360.0)
