"""From quantities to pixels: axes with round ticks, and quantities in units that people read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_JOULES_PER_KWH = 3.6e6
# What a logarithmic axis of time is marked with.
TIME_TICKS: Sequence[tuple[float, str]] = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (6 * 3600, "6 h"),
    (86400, "1 d"),
    (4 * 86400, "4 d"),
    (16 * 86400, "16 d"),
    (64 * 86400, "64 d"),
    (256 * 86400, "256 d"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start_px: float
    end_px: float
    scaled: Callable[[float], float] = float

    def at(self, value: float) -> float:
        """Return the pixel of ``value``; values outside of the range lie on its ends."""
        low, high = self.scaled(self.low), self.scaled(self.high)
        share = (self.scaled(min(max(value, self.low), self.high)) - low) / ((high - low) or 1.0)
        return self.start_px + share * (self.end_px - self.start_px)


def logarithmic(low: float, high: float, start_px: float, end_px: float) -> Axis:
    """Return a logarithmic axis; ``low`` is above 0."""
    return Axis(low, high, start_px, end_px, math.log10)


def round_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return about ``about`` round values that lie from ``low`` to ``high``."""
    step = _round_step((high - low) / max(1, about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _round_step(raw: float) -> float:
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)


def short(value: float) -> str:
    """Return a number for an axis, without a tail of zeros."""
    return f"{value:,.6g}"


def energy_text(energy_j: float) -> str:
    """Return an amount of energy in kWh or MWh with three digits."""
    kwh = energy_j / _JOULES_PER_KWH
    for factor, unit in ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh")):
        if abs(kwh) >= factor:
            return f"{_three(kwh / factor)} {unit}"
    return f"{_three(energy_j / 1000)} kJ" if energy_j else "0"


def energy_unit(most_j: float) -> tuple[float, str]:
    """Return joules per unit and the unit's name for an axis up to ``most_j``."""
    kwh = most_j / _JOULES_PER_KWH
    for factor, unit in ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh")):
        if kwh >= factor:
            return factor * _JOULES_PER_KWH, unit
    return 1000.0, "kJ"


def time_text(seconds: float) -> str:
    """Return a duration with two or three digits in the unit that fits."""
    for factor, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * factor:
            return f"{_three(seconds / factor)} {unit}"
    return f"{_three(seconds)} s"


def percent_text(share: float, digits: int = 1) -> str:
    """Return a change in per cent with its sign, if it has one; the minus is a real one."""
    if round(100 * share, digits) == 0:
        return "0 %"
    return f"{100 * share:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def _three(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 2)}f}"
