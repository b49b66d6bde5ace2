"""How quantities read on every surface: with their unit, and ``unknown`` where nothing usable is known.

A value that cannot be true (negative, not a number, more than 100 per cent) is shown as unknown too: a wrong
meter must not look like a measurement.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.units import format_memory_mib

UNKNOWN = "unknown"

_UNITS_S = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
JOULES_PER_KWH = 3.6e6


def shown_number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """Return a quantity that is never negative, with ``digits`` decimals and its unit."""
    if value is None or not math.isfinite(value) or value < 0:
        return UNKNOWN
    # abs: the float -0.0 is not below 0 and would keep its sign.
    text = f"{abs(value):.{digits}f}"
    return f"{text} {unit}" if unit else text


def shown_count(value: int | None) -> str:
    """Return a count of things."""
    return UNKNOWN if value is None or value < 0 else str(value)


def counted(count: int, thing: str) -> str:
    """Return ``1 GPU``, ``2 GPUs``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def shown_percent(value: float | None) -> str:
    """Return a share in per cent, from 0 to 100."""
    return UNKNOWN if value is None or value > 100 else shown_number(value, 1, "%")


def shown_foreign(reading: GpuReading | None) -> str:
    """Return what somebody else has on a GPU and by which processes; ``none`` where it is known to be so."""
    if reading is None or (reading.foreign_memory_mib is None and not reading.foreign_processes):
        return UNKNOWN
    if not (reading.foreign_memory_mib or reading.foreign_processes):
        return "none"
    by = ", ".join(map(str, reading.foreign_by)) or f"processes {UNKNOWN}"
    return f"{format_memory_mib(reading.foreign_memory_mib)}: {by}"


def shown_energy(energy_j: float | None, *, partial: bool = False) -> str:
    """Return joules, and from one kilowatt-hour on kilowatt-hours; a lower bound if a part is missing."""
    if energy_j is not None and energy_j >= JOULES_PER_KWH:
        text = shown_number(energy_j / JOULES_PER_KWH, 3, "kWh")
    else:
        text = shown_number(energy_j, 0, "J")
    return f"at least {text}" if partial and text != UNKNOWN else text


def shown_instant(at_s: float | None) -> str:
    """Return seconds since the Unix epoch as date and time in UTC, to the second."""
    if at_s is None or not math.isfinite(at_s):
        return UNKNOWN
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_duration(elapsed_s: float | None) -> str:
    """Return a duration by its two largest units, such as ``2 h 5 min``."""
    if elapsed_s is None or not math.isfinite(elapsed_s) or elapsed_s < 0:
        return UNKNOWN
    rest = int(elapsed_s)
    parts: list[str] = []
    for size, name in _UNITS_S:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or "0 s"
