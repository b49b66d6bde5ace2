"""Energy budgets of pools, the series that shift jobs, and for how long: from configuration to values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget, Shift
from airflow_provider_eaco.provider.option_values import (
    above_0,
    one_of,
    read_number,
    refuse_unknown,
    setting_error,
)

HOUR_S = 3600.0
# The options that name a series, with what it is a series of.
SERIES = {"price_series": "price", "carbon_series": "carbon intensity"}


@dataclass(frozen=True, slots=True)
class SeriesSource:
    """Where a series comes from: ``place`` is the absolute path of a CSV file, or a URL."""

    name: str
    place: str

    @property
    def is_http(self) -> bool:
        return self.place.startswith(("http://", "https://"))


def energy_budget(option: str, value: object) -> EnergyBudget:
    """Return a pool's budget; it names watts, kilowatt-hours per day, or both.

    :raises InvalidSettingError: naming what cannot be used.
    """
    if not isinstance(value, dict):
        raise setting_error(option, f"{value!r} must be a JSON object with power_w, kwh_per_day or both")
    refuse_unknown(option, value, {"power_w", "kwh_per_day", "action"})
    limits = {
        name: above_0(f"{option}, {name}", value[name])
        for name in ("power_w", "kwh_per_day")
        if name in value
    }
    if not limits:
        raise setting_error(option, "must be an object that names power_w, kwh_per_day or both")
    action = one_of(BudgetAction)(f"{option}, action", value.get("action", BudgetAction.HOLD))
    return EnergyBudget(limits.get("power_w"), limits.get("kwh_per_day"), action)


def shift(option: str, value: object) -> Shift:
    """Return how long jobs of a pool that allow it wait for a better hour.

    :raises InvalidSettingError: naming what cannot be used.
    """
    if not isinstance(value, dict):
        raise setting_error(
            option, f"{value!r} must be a JSON object with any of max_h, horizon_h and factor"
        )
    refuse_unknown(option, value, {"max_h", "horizon_h", "factor"})
    usual = Shift()
    return Shift(
        hours_s(f"{option}, max_h", value.get("max_h", usual.max_shift_s / HOUR_S)),
        above_0(f"{option}, horizon_h", value.get("horizon_h", usual.horizon_s / HOUR_S)) * HOUR_S,
        above_0(f"{option}, factor", value.get("factor", usual.factor)),
    )


def hours_s(option: str, value: object) -> float:
    """Return a number of hours from 0 up, in seconds.

    :raises InvalidSettingError: naming the option.
    """
    allowed = "a number of hours of at least 0"
    return read_number(option, value, allowed, lambda number: 0 <= number < float("inf")) * HOUR_S


def series_source(option: str, text: str) -> SeriesSource | None:
    """Return where the series comes from, ``None`` for an empty text.

    :raises InvalidSettingError: if it is neither an absolute path nor an http URL.
    """
    place = text.strip()
    if not place:
        return None
    source = SeriesSource(SERIES[option], place)
    if not source.is_http and not (Path(place).is_absolute() and place.isprintable()):
        allowed = "the absolute path of a CSV file, a URL that begins with http:// or https://, or empty"
        raise setting_error(option, f"{text!r} must be {allowed}")
    return source
