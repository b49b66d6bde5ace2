"""The energy record of a run in words."""

from __future__ import annotations

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, RunEnergy, SplitRule
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.provider.shown import (
    JOULES_PER_KWH,
    shown_duration,
    shown_energy,
    shown_number,
)

# How an amount of energy was found; one that is not known has no words.
METHOD_TEXTS = {
    EnergyMethod.COUNTER: "from the device's counter",
    EnergyMethod.DIVIDED: "estimated as a part of its device's",
    EnergyMethod.MODEL: "from the device model of a simulated node",
    EnergyMethod.INTEGRATED: "estimated from samples of power",
}


def energy_text(energy: RunEnergy, progress: Progress, co2e_g_per_kwh: float | None = None) -> str:
    """Return joules, time, mean and peak draw, stretch, co-residents, and how all of it was found.

    :param co2e_g_per_kwh: the site's factor; without one no CO2 is named.
    """
    known_j = energy.energy_j if energy.known_s else None
    partial = energy.partial or energy.known_s < energy.seconds
    parts = [
        f"{shown_energy(known_j, partial=partial)} in {shown_duration(energy.seconds)}",
        f"{shown_number(energy.mean_w, 0, 'W')} on average, {shown_number(energy.peak_w, 0, 'W')} at most",
        f"stretch {shown_number(stretch_of(progress), 3)}",
        f"beside {', '.join(sorted(energy.co_residents)) or 'nobody'}",
    ]
    found = [text for method, text in METHOD_TEXTS.items() if method in energy.methods]
    rules = sorted(rule.value for rule in energy.rules if rule is not SplitRule.ALONE)
    if found:
        parts.append(", ".join(found) + (f", split by {', '.join(rules)}" if rules else ""))
    if co2e_g_per_kwh is not None and known_j is not None:
        grams = known_j / JOULES_PER_KWH * co2e_g_per_kwh
        parts.append(f"{shown_number(grams, 1, 'g')} CO2e at {co2e_g_per_kwh:g} g/kWh")
    return "; ".join(parts)


def stretch_of(progress: Progress) -> float | None:
    """Return run time / exclusive run time of what was done, ``None`` where the run never was alone."""
    alone_s = (progress.solo_unit_s or 0.0) * progress.units_done
    return progress.run_s / alone_s if alone_s > 0 and progress.run_s > 0 else None
