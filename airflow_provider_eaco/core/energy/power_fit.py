"""What the measured powers of sets say of the power of others.

The logarithm of a set's power is that of a formula over its members alone, plus what is common to all sets
and the mean of what its members add, which the families of one model share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from airflow_provider_eaco.core.energy.effects import Design, Row
from airflow_provider_eaco.core.energy.experience import Alone, Experience, Hardware
from airflow_provider_eaco.core.energy.power_model import V100, joint_power_w, v100_power_w
from airflow_provider_eaco.core.energy.regression import Regression, quantile_of_next
from airflow_provider_eaco.core.energy.similarity import Trait, likeness
from airflow_provider_eaco.core.energy.tiles import FloatArray, product
from airflow_provider_eaco.core.model.profile import FamilySet, PowerScope

# Variances of the logarithm of power / formula: on other hardware the formulas may err by some 10 %, for
# single models by some 3 % more, and published tables of set power are good to about 2 %.
_ALL_SETS = 0.01
_MODEL, _SCALE, _FAMILY = 0.001, 0.001, 0.0002
_NOISE = 0.0004


def formula_power_w(
    members: Sequence[Alone], rates: Sequence[float], hardware: Hardware, scope: PowerScope
) -> float | None:
    """Return the power of a set by formula, ``None`` where a member's power in that scope is not known.

    A whole V100 node follows its concave curve over utilisation; boards follow the members' rates.
    """
    solo_w = [member.power_w for member in members if member.power_w is not None]
    if len(solo_w) < len(members) or any(member.scope is not scope for member in members):
        return None
    busy = [member.utilisation_pct for member in members if member.utilisation_pct is not None]
    if hardware.gpu_model == V100 and scope is PowerScope.NODE and len(busy) == len(members):
        return max(*solo_w, v100_power_w(math.fsum(busy), hardware.gpu_count))
    return joint_power_w(solo_w, rates, *hardware)


class PowerFit:
    """What one experience says of the power of other sets, against the formula."""

    def __init__(self, experience: Experience, quantile: float) -> None:
        alone = {each.trait.family: each for each in experience.alone}
        self._traits = {family: each.trait for family, each in alone.items()}
        rows, values = [], []
        for each in experience.sets:
            slowdowns = dict(zip(dict.fromkeys(each.families), each.log_slowdowns, strict=True))
            formula_w = formula_power_w(
                [alone[family] for family in each.families],
                [math.exp(-slowdowns[family]) for family in each.families],
                experience.hardware,
                each.scope,
            )
            if each.power_w is not None and formula_w is not None:
                rows.append(Row(each.families[0], each.families))
                values.append(math.log(each.power_w / formula_w))
        self._design = Design.of(rows, self._traits)
        self._regression = Regression(_covariance(self._design, self._design), _NOISE, np.array(values))
        self._factor = quantile_of_next(self._regression.left_out([[i] for i in range(len(rows))]), quantile)

    def log_correction(self, families: FamilySet, alone: Mapping[str, Alone]) -> tuple[float, float | None]:
        """Return the logarithm of power / formula as expected, and its bound.

        The bound is ``None`` where too few sets were metered to promise one.
        """
        traits: Mapping[str, Trait] = {family: alone[family].trait for family in families}
        design = Design.of([Row(families[0], families)], traits)
        known = self._regression.posterior(_covariance(design, design), _covariance(design, self._design))
        mean = float(known.mean[0])
        if self._factor is None:
            return mean, None
        spread = math.sqrt(max(0.0, float(known.covariance[0, 0])) + _NOISE)
        return mean, mean + max(0.0, self._factor) * spread


def _covariance(left: Design, right: Design) -> FloatArray:
    alike = likeness(left.traits, right.traits)
    members = _MODEL * alike.model + _SCALE * alike.scale + _FAMILY * alike.family
    found: FloatArray = _ALL_SETS + product(product(_shares(left), members), _shares(right).T)
    return found


def _shares(design: Design) -> FloatArray:
    """Return which part of a set's members each family is."""
    found: FloatArray = design.partners / np.maximum(1.0, design.partners.sum(axis=1))[:, None]
    return found
