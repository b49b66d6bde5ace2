"""From the text of an option to values: the checks that all options share, each with one clear error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.provider.options import EXAMPLES, SECTION

# What a column of type Integer holds in every database, with room for sums of two.
MAX_WHOLE = 10**9
# So many characters of a wrong value stand in its error.
MOST_SHOWN = 80
# Some 30 years.
MAX_DURATION_S = 1e9

_Choice = TypeVar("_Choice", bound=StrEnum)


def setting_error(option: str, problem: str) -> InvalidSettingError:
    """Return the error that names the option and says what is wrong with its value."""
    return InvalidSettingError(f"[{SECTION}] {option}", problem)


def read_json(option: str, text: str) -> Any:
    """Return what the JSON says; a name that stands twice in an object is an error.

    :raises InvalidSettingError: naming the option.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise setting_error(
            option, f"is not JSON that can be used: {error}; example: {EXAMPLES[option]}"
        ) from error


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{', '.join(map(repr, repeated))} stands there twice")
    return dict(pairs)


def read_objects(option: str, text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the objects of a JSON list.

    :raises InvalidSettingError: naming the option.
    """
    rows = read_json(option, text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise setting_error(option, f"must be a JSON list of objects; example: {EXAMPLES[option]}")
    return tuple(rows)


def one_of(kind: type[_Choice]) -> Callable[[str, object], _Choice]:
    """Return the check that a value is the name of one of these choices.

    The check raises :class:`InvalidSettingError`, naming the option and all choices.
    """

    def check(option: str, value: object) -> _Choice:
        if not isinstance(value, str) or value not in tuple(kind):
            raise setting_error(option, f"{clipped(value)} must be one of {', '.join(kind)}")
        return kind(value)

    return check


def read_number(option: str, value: object, allowed: str, is_allowed: Callable[[float], bool]) -> float:
    """Return a finite number of which ``is_allowed`` holds; ``allowed`` says so in the one message.

    :raises InvalidSettingError: naming the option.
    """
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or not is_allowed(number):
        raise setting_error(option, f"{clipped(value)} must be {allowed}")
    return number


def clipped(value: object) -> str:
    """Return the value as it was written, the middle of a long one left out."""
    written = repr(value)
    half = MOST_SHOWN // 2
    return written if len(written) <= MOST_SHOWN else f"{written[:half]}...{written[-half:]}"


def above_0(option: str, value: object) -> float:
    """Return a number above 0.

    :raises InvalidSettingError: naming the option.
    """
    return read_number(option, value, "a number above 0", lambda number: number > 0)


def duration_s(option: str, value: object) -> float:
    """Return a number of seconds above 0 that added to a date of this century is one still.

    :raises InvalidSettingError: naming the option.
    """
    allowed = f"a number of seconds above 0, at most {MAX_DURATION_S:g}"
    return read_number(option, value, allowed, lambda number: 0 < number <= MAX_DURATION_S)


def whole(option: str, value: object, least: int = 1, most: int = MAX_WHOLE) -> int:
    """Return a whole number of at least ``least`` and at most ``most``.

    :raises InvalidSettingError: naming the option.
    """
    allowed = f"a whole number of at least {least} and at most {most}"
    return int(
        read_number(option, value, allowed, lambda number: number.is_integer() and least <= number <= most)
    )


def refuse_unknown(option: str, row: Mapping[str, Any], allowed: set[str]) -> None:
    """Require that an object has no other names.

    :raises InvalidSettingError: naming the option and what is allowed.
    """
    unknown = sorted(set(row) - allowed)
    if unknown:
        raise setting_error(option, f"unknown {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}")
