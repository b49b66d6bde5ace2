"""The columns of a profile file: name, unit, what is allowed, and how text becomes a value and back.

An empty cell (CSV) or ``null`` (JSON) means unknown. Units are in the names, as everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from airflow_provider_eaco.core.model.job import MAX_GPUS
from airflow_provider_eaco.core.model.profile import MAX_FAMILY_LENGTH, PowerLevel, PowerScope

SEPARATOR = ";"


class CellError(ValueError):
    """A cell that cannot be read; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``read`` turns a cell that is not empty into its value.

    :raises CellError: from ``read``, with what is allowed.
    """

    name: str
    meaning: str
    read: Callable[[str], object]
    required: bool = False


def join_parts(parts: Iterable[str]) -> str:
    """Return the parts as one cell; a separator inside a part is written with a backslash before it."""
    return SEPARATOR.join(re.sub(r"([\\;])", r"\\\1", part) for part in parts)


def split_parts(text: str) -> tuple[str, ...]:
    """Return the parts of a cell that :func:`join_parts` wrote."""
    ends = [at.start() for at in re.finditer(r"\\.|;", text) if at.group() == SEPARATOR]
    parts = [text[start + 1 : end] for start, end in pairwise([-1, *ends, len(text)])]
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in parts)


def _number(
    expected: str, low: float, high: float = math.inf, *, open_low: bool = False
) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise CellError(expected) from None
        if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
            raise CellError(expected)
        return value

    return read


def _whole(expected: str, low: int, high: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", text, re.ASCII):
            raise CellError(expected)
        value = int(text)
        if value < low or (high is not None and value > high):
            raise CellError(expected)
        return value

    return read


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise CellError(" or ".join(allowed))
        return text

    return read


def _yes_or_no(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


def _name(text: str) -> str:
    return text


def _families(text: str) -> tuple[str, ...]:
    families = tuple(part.strip() for part in split_parts(text))
    if not all(0 < len(family) <= MAX_FAMILY_LENGTH and family.isprintable() for family in families):
        raise CellError(
            f"names of families, separated by {SEPARATOR!r}, each of 1 to {MAX_FAMILY_LENGTH} characters"
        )
    return families


def _slowdowns(text: str) -> tuple[float, ...]:
    expected = f"one number above 0 per family, in the order of families, separated by {SEPARATOR!r}"
    read = _number(expected, 0, open_low=True)
    return tuple(read(part.strip()) for part in split_parts(text))


def _levels(text: str) -> tuple[PowerLevel, ...]:
    expected = (
        "power limits as WATTS:SLOWDOWN:POWER_RATIO, each number above 0 and each limit once, separated by "
        f"{SEPARATOR!r}; such as 200:1.02:0.86;175:1.05:0.78"
    )
    read = _number(expected, 0, open_low=True)
    levels = []
    for part in split_parts(text):
        numbers = part.split(":")
        if len(numbers) != 3:
            raise CellError(expected)
        levels.append(PowerLevel(*(read(number.strip()) for number in numbers)))
    if len({level.limit_w for level in levels}) < len(levels):
        raise CellError(expected)
    return tuple(sorted(levels, key=lambda level: -level.limit_w))


def _instant(text: str) -> float:
    expected = "an instant in ISO 8601 with its offset, such as 2026-11-30T12:00:00+00:00"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise CellError(expected) from None
    if instant.tzinfo is None:
        raise CellError(expected)
    return instant.timestamp()


_PERCENT = "a number from 0 to 100, in per cent"

COLUMNS: tuple[Column, ...] = (
    Column("families", "family, or the families of a set separated by ;", _families, required=True),
    Column("gpu_model", "model of the GPUs, as `airflow eaco nodes` shows it", _name, required=True),
    Column(
        "gpu_count",
        "number of GPUs, all on one node",
        _whole(f"a whole number from 1 to {MAX_GPUS}", 1, MAX_GPUS),
        required=True,
    ),
    Column(
        "unit_s",
        "one family: mean seconds of one unit (epoch)",
        _number("a number above 0, in seconds", 0, open_low=True),
    ),
    Column(
        "spread_s",
        "one family: standard deviation of unit_s, in seconds",
        _number("a number of at least 0, in seconds", 0),
    ),
    Column(
        "slowdowns",
        "set: shared unit time / solo unit time, one per family in the order of families, separated by ;",
        _slowdowns,
    ),
    Column("spread", "set: standard deviation of the slowdowns", _number("a number of at least 0", 0)),
    Column("samples", "how many units were measured", _whole("a whole number of at least 0", 0)),
    Column(
        "power_w",
        "mean draw of all GPUs of the placement together, in watts",
        _number("a number above 0, in watts", 0, open_low=True),
    ),
    Column("utilisation_pct", "mean GPU utilisation, in per cent", _number(_PERCENT, 0, 100)),
    Column("utilisation_max_pct", "highest GPU utilisation, in per cent", _number(_PERCENT, 0, 100)),
    Column("memory_utilisation_pct", "mean memory utilisation, in per cent", _number(_PERCENT, 0, 100)),
    Column(
        "memory_peak_mib",
        "one family: highest memory in use on any of its GPUs, in MiB",
        _whole("a whole number above 0, in MiB", 1),
    ),
    Column("units_total", "one family: units of a complete run", _whole("a whole number of at least 1", 1)),
    Column("checkpoints", "one family: whether it saves checkpoints (yes, no)", _yes_or_no),
    Column(
        "levels",
        "what power limits do, as WATTS:SLOWDOWN:POWER_RATIO, separated by ;: watts of each board, unit time "
        "and draw under the limit / those at full power",
        _levels,
    ),
    Column("undone", "set: how many trials were undone", _whole("a whole number of at least 0", 0)),
    Column(
        "scope",
        "what power_w covers: node (GPUs with their share of the host) or board",
        _one_of(*(scope.value for scope in PowerScope)),
    ),
    Column("stale", "whether it no longer describes the present program (yes, no)", _yes_or_no),
    Column("source", "where the numbers come from; written by export, ignored by import", _name),
    Column("updated_at", "when the numbers were last changed, ISO 8601 with offset", _instant),
    Column("reference", "publication, run or person that the numbers come from", _name),
)

COLUMN_NAMES = tuple(column.name for column in COLUMNS)
SOLO_ONLY = ("unit_s", "spread_s", "memory_peak_mib", "units_total", "checkpoints")
SET_ONLY = ("slowdowns", "spread", "undone")


def write_cell(value: object) -> str:
    """Return a value as the text that its column reads back; ``None`` becomes an empty cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, PowerLevel):
        return f"{value.limit_w!r}:{value.slowdown!r}:{value.power_ratio!r}"
    if isinstance(value, tuple):
        return join_parts(write_cell(part) for part in value)
    if isinstance(value, float):
        return repr(value)
    return str(value)


def write_instant(at_s: float | None) -> str | None:
    """Return seconds since the epoch as the text of the column ``updated_at``."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat()
