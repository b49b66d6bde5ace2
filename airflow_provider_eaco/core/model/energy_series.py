"""A series: what a kilowatt-hour costs, or how much carbon stands behind it, over time."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True)
class EnergySeries:
    """Values in steps: each holds from its instant to the next one's.

    ``steps`` are instants with their values, ascending; the last instant ends the series, its value counts
    for nothing. Outside of it nothing is known.

    :raises ValueError: if there are fewer than two steps, they do not ascend, or a value is not finite.
    """

    name: str
    steps: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        instants = self._instants
        if len(instants) < 2:
            raise ValueError(f"steps: {len(instants)} are too few; two and more make a series")
        if any(later <= earlier for earlier, later in pairwise(instants)):
            raise ValueError("steps: their instants must ascend")
        if not all(math.isfinite(part) for step in self.steps for part in step):
            raise ValueError("steps: all instants and values must be finite numbers")

    @cached_property
    def _instants(self) -> tuple[float, ...]:
        return tuple(at_s for at_s, _ in self.steps)

    def at(self, now_s: float) -> float | None:
        """Return the value at an instant, ``None`` outside of the series."""
        place = bisect_right(self._instants, now_s) - 1
        return self.steps[place][1] if 0 <= place < len(self.steps) - 1 else None

    def mean(self, from_s: float, until_s: float) -> float | None:
        """Return the mean over time between two instants, as far as the series goes; ``None`` outside."""
        ends = zip(self.steps, self._instants[1:], strict=False)
        parts = [
            (min(end_s, until_s) - max(begin_s, from_s), value)
            for (begin_s, value), end_s in ends
            if begin_s < until_s and end_s > from_s
        ]
        covered_s = math.fsum(length_s for length_s, _ in parts)
        if covered_s <= 0:
            return None
        return math.fsum(length_s * value for length_s, value in parts) / covered_s

    def is_dear(self, now_s: float, horizon_s: float, factor: float) -> bool:
        """Tell whether the present value is above ``factor`` times the mean from now to the horizon.

        What is not known is not dear.
        """
        present, mean = self.at(now_s), self.mean(now_s, now_s + horizon_s)
        return present is not None and mean is not None and present > factor * mean

    def next_step_s(self, now_s: float) -> float | None:
        """Return the next instant at which the value changes or ends, ``None`` after the last."""
        place = bisect_right(self._instants, now_s)
        return self._instants[place] if place < len(self._instants) else None
