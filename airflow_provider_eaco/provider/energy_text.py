"""The energy record of a run in words."""

from __future__ import annotations

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, SplitRule
from airflow_provider_eaco.provider.energy_record import EnergyRecord
from airflow_provider_eaco.provider.energy_record import stretch_of as stretch_of  # noqa: PLC0414 - of its surfaces
from airflow_provider_eaco.provider.shown import shown_duration, shown_energy, shown_number

# How an amount of energy was found; one that is not known has no words.
METHOD_TEXTS = {
    EnergyMethod.COUNTER: "from the device's counter",
    EnergyMethod.DIVIDED: "estimated as a part of its device's",
    EnergyMethod.MODEL: "from the device model of a simulated node",
    EnergyMethod.INTEGRATED: "estimated from samples of power",
}


def energy_text(record: EnergyRecord) -> str:
    """Return joules, time, mean and peak draw, stretch, co-residents, how all of it was found, and CO2e
    where the site has a factor.
    """
    parts = [
        f"{shown_energy(record.energy_j, partial=record.partial)} in {shown_duration(record.seconds)}",
        f"{shown_number(record.mean_w, 0, 'W')} on average, {shown_number(record.peak_w, 0, 'W')} at most",
        f"stretch {shown_number(record.stretch, 3)}",
        f"beside {', '.join(record.co_residents) or 'nobody'}",
    ]
    found = [text for method, text in METHOD_TEXTS.items() if method in record.methods]
    rules = sorted(rule.value for rule in record.rules if rule is not SplitRule.ALONE)
    if found and record.energy_j is not None:
        parts.append(", ".join(found) + (f", split by {', '.join(rules)}" if rules else ""))
    if record.co2e_g is not None:
        grams = shown_number(record.co2e_g, 1, "g")
        parts.append(f"{grams} CO2e at {record.carbon_g_per_kwh:g} g/kWh")
    return "; ".join(parts)
