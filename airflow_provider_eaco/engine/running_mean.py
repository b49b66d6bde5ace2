"""A mean that goes on: samples, mean and standard deviation, without the samples themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class RunningMean(NamedTuple):
    """``mean`` is ``None`` without samples; ``spread`` (sample standard deviation) is ``None`` if unknown,
    as it always is below two samples.
    """

    samples: int = 0
    mean: float | None = None
    spread: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> RunningMean:
        """Return the statistics of these values."""
        if not values:
            return cls()
        mean = math.fsum(values) / len(values)
        if len(values) < 2:
            return cls(1, mean)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return cls(len(values), mean, math.sqrt(variance))

    def merged(self, other: RunningMean) -> RunningMean:
        """Return the statistics of both samples together; an unknown spread of many stays unknown."""
        if not self.samples or self.mean is None:
            return other
        if not other.samples or other.mean is None:
            return self
        samples = self.samples + other.samples
        distance = other.mean - self.mean
        mean = self.mean + distance * other.samples / samples
        own = self._squares()
        others = 0.0 if other.samples == 1 else other._squares()
        if own is None or others is None:
            return RunningMean(samples, mean)
        total = own + others + distance**2 * self.samples * other.samples / samples
        return RunningMean(samples, mean, math.sqrt(total / (samples - 1)))

    def with_one(self, value: float) -> RunningMean:
        """Return the statistics with one value more: what ``merged(RunningMean.of([value]))`` returns."""
        if not self.samples or self.mean is None:
            return RunningMean(1, value)
        samples = self.samples + 1
        distance = value - self.mean
        mean = self.mean + distance / samples
        own = self._squares()
        if own is None:
            return RunningMean(samples, mean)
        total = own + distance**2 * self.samples / samples
        return RunningMean(samples, mean, math.sqrt(total / (samples - 1)))

    def _squares(self) -> float | None:
        """Return the sum of squared distances from the mean, ``None`` if unknown."""
        if self.samples == 1:
            return 0.0
        return None if self.spread is None else self.spread**2 * (self.samples - 1)
