"""Gaussian-process regression in closed form, with the errors that it makes on what it has not seen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from airflow_provider_eaco.core.energy.tiles import FloatArray, Tiled, inverse, inverses, product


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and covariance of the values at some points, without the noise of measuring them."""

    mean: FloatArray
    covariance: FloatArray


class Regression:
    """What noisy values at some points say of the values at others.

    :param covariance: prior covariance of the values at the measured points.
    :param noise: variance of the noise in each of them.
    :param values: measured values, less their prior means.
    """

    def __init__(self, covariance: FloatArray, noise: float, values: FloatArray) -> None:
        self._precision = inverse(covariance + noise * np.eye(len(values)))
        self._tiled = Tiled(self._precision)
        self._weights: FloatArray = self._tiled.times(values[None])[0]

    def explained(self, cross: FloatArray) -> FloatArray:
        """Return ``cross`` weighed by what was measured.

        Its product with a second cross-covariance is what the two have in common through measurements.
        """
        return self._tiled.times(cross)

    def posterior(self, prior: FloatArray, cross: FloatArray) -> Posterior:
        """Return what is known of other points.

        :param prior: their prior covariance.
        :param cross: their prior covariance (rows) with the measured points (columns).
        """
        mean = product(cross, self._weights[:, None])[:, 0]
        return Posterior(mean, prior - product(self.explained(cross), cross.T))

    def left_out(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """Return the errors of predicting each group of points from all others, in standard deviations.

        Above 0 where the measured value is the larger one; by the size of the groups, not in their order. The
        closed form of fitting once a group.
        """
        by_size: dict[int, list[Sequence[int]]] = defaultdict(list)
        for group in groups:
            by_size[len(group)].append(group)
        errors: list[float] = []
        for size in sorted(by_size):
            chosen = np.array(by_size[size], dtype=np.int64)
            blocks = self._precision[chosen[:, :, None], chosen[:, None, :]]
            covariance = inverses(blocks)
            missed = np.sum(covariance * self._weights[chosen][:, None, :], axis=2)
            spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
            errors.extend((missed / spread).ravel().tolist())
        return errors


def least_errors(quantile: float) -> int:
    """Return how many errors it takes for that quantile of the next one to be among them."""
    # The small part keeps 0.9 / (1 - 0.9), which is 9.000000000000002, at nine.
    return math.ceil(quantile / (1 - quantile) - 1e-9)


def quantile_of_next(errors: Sequence[float], quantile: float) -> float | None:
    """Return the number that the next error is below with that probability, ``None`` with too few errors.

    The next error is equally likely to have any rank among them; nothing is supposed of their distribution.
    """
    if len(errors) < least_errors(quantile):
        return None
    rank = math.ceil(quantile * (len(errors) + 1) - 1e-9)
    return sorted(errors)[rank - 1]


def normal_quantile(quantile: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(quantile)
