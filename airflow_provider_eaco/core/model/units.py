"""Reading and showing quantities: memory in MiB, shares of time in seconds.

Quantities are plain numbers whose names carry the unit (``power_w``, ``memory_mib``); this module is the
one place where text becomes such a number.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from airflow_provider_eaco.core.model.errors import InvalidRequestError, shown

_BYTES_PER_UNIT = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_MIB = 2**20
# More digits than any figure has, and few enough for int().
_MEMORY = re.compile(r"(?P<number>[0-9]{1,40}(?:\.[0-9]{1,40})?) ?(?P<unit>[A-Za-z]+)", re.ASCII)
# Above this no machine exists; a larger figure is a slip of the unit (bytes written where MiB is meant).
MAX_MEMORY_MIB = 16 * 2**20

_ALLOWED = "a whole number of MiB, or text such as '16384MiB', '16GiB', '1.5GiB' or '16GB' (GB is 10^9 bytes)"


def parse_memory_mib(value: object, argument: str) -> int:
    """Return ``value`` in MiB, rounded up to a whole one, so that a request is never understated.

    A bare ``int`` counts as MiB. Every text needs one of the units B, kB, MB, GB, TB (powers of 1000) or
    KiB, MiB, GiB, TiB (powers of 1024), spelt exactly so: ``16Gi`` and ``16 gb`` are ambiguous.

    :raises InvalidRequestError: for anything else, for zero, negative and not finite numbers, and for more
        than 16 TiB.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequestError(argument, f"{shown(value)} has no unit; write {_ALLOWED}")
    mib = value if isinstance(value, int) else _parse_memory_text(value, argument)
    if mib <= 0:
        raise InvalidRequestError(argument, f"{shown(value)} must be more than 0")
    if mib > MAX_MEMORY_MIB:
        raise InvalidRequestError(argument, f"{shown(value)} is more than 16 TiB; write {_ALLOWED}")
    return mib


def _parse_memory_text(text: str, argument: str) -> int:
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(argument, f"{shown(text)} is not an amount of memory; write {_ALLOWED}")
    unit = match["unit"]
    if unit not in _BYTES_PER_UNIT:
        allowed = ", ".join(_BYTES_PER_UNIT)
        raise InvalidRequestError(
            argument, f"{shown(text)} has the unknown unit {shown(unit)}; units are {allowed}"
        )
    whole, _, fraction = match["number"].partition(".")
    scale: int = 10 ** len(fraction)
    size_bytes_scaled: int = int(whole + fraction) * _BYTES_PER_UNIT[unit]
    return -(-size_bytes_scaled // (_MIB * scale))


def format_memory_mib(memory_mib: int | None) -> str:
    """Return the amount as it is shown everywhere: whole MiB, or ``unknown``."""
    return "unknown" if memory_mib is None else f"{memory_mib} MiB"


def to_float(value: float) -> float:
    """Return the number as a float; a whole number that is too large for one is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_seconds(value: object, argument: str) -> float:
    """Return a positive duration in seconds from a ``timedelta`` or a number of seconds.

    :raises InvalidRequestError: for other types and for durations that are not positive and finite.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = to_float(value)
    else:
        raise InvalidRequestError(argument, f"{shown(value)} must be a timedelta or a number of seconds")
    if not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequestError(argument, f"{shown(value)} must be a finite duration above 0 seconds")
    return seconds
