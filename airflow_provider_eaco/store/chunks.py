"""Many values in a few statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# Below the number of variables that every supported database takes in one statement.
MOST_VALUES = 500


def chunks(values: Iterable[str]) -> Iterator[list[str]]:
    """Give each of the values once, in order, in lists that fit one statement; no list is empty."""
    ordered = sorted(set(values))
    for start in range(0, len(ordered), MOST_VALUES):
        yield ordered[start : start + MOST_VALUES]
