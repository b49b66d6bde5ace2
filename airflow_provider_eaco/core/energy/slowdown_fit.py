"""What measured sets say of the slowdowns of others: estimates with a bound, and what a trial would teach.

The bound is the promised quantile: as many spreads above the mean as the errors say that the fit makes on
what it has not seen, taken from leaving out sets, families or models, whichever the asked set resembles.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np

from airflow_provider_eaco.core.energy.effects import NOISE, Design, Row, covariance, prior_variances, rows_of
from airflow_provider_eaco.core.energy.experience import Alone, Experience, rule_log_slowdown
from airflow_provider_eaco.core.energy.prediction import Lesson
from airflow_provider_eaco.core.energy.regression import Regression, normal_quantile, quantile_of_next
from airflow_provider_eaco.core.energy.similarity import Trait
from airflow_provider_eaco.core.energy.tiles import FloatArray, product
from airflow_provider_eaco.core.model.profile import FamilySet, family_set

# Lessons are given to this many decimals: equal ones stay equal, whatever machine computes them.
_DECIMALS = 9

# Pairs grow with the square of the families: a lesson among more looks at the set's own families alone.
_MOST_FAMILIES = 40


class Novelty(IntEnum):
    """How new a set is: its families were measured in sets, else others of their models, else neither."""

    FAMILIES_KNOWN = 1
    MODELS_KNOWN = 2
    NEW_MODEL = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of the logarithm of a member's slowdown: mean, standard deviation, and the careful bound."""

    mean: float
    spread: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Unknown:
    """The members of unmeasured pairs, and the ``spread`` of what is believed of each one's slowdown."""

    design: Design
    cross: FloatArray
    spread: FloatArray


class SlowdownFit:
    """What one experience says of other sets. It depends on the experience and the quantile alone."""

    def __init__(self, experience: Experience, quantile: float) -> None:
        self._quantile = quantile
        self._hardware = experience.hardware
        self._measured = {each.families for each in experience.sets}
        alone = {each.trait.family: each for each in experience.alone}
        self.largest_set = max((len(each.families) for each in experience.sets), default=0)
        self._models = {each.trait.model for each in experience.alone}
        self._traits = {family: each.trait for family, each in alone.items()}
        self._rows = [row for each in experience.sets for row in rows_of(each.families)]
        self._design = Design.of(self._rows, self._traits)
        logs = [value for each in experience.sets for value in each.log_slowdowns]
        start = [self._start(row, alone) for row in self._rows]
        self._regression = Regression(
            covariance(self._design, self._design), NOISE, np.array(logs) - np.array(start)
        )
        self._unknowns: dict[tuple[frozenset[Trait], frozenset[str] | None], _Unknown] = {}

    def estimates(self, families: FamilySet, alone: Mapping[str, Alone]) -> dict[str, Estimate]:
        """Return what is expected of each family of the set."""
        rows = rows_of(families)
        design = Design.of(rows, _traits(alone))
        known = self._regression.posterior(covariance(design, design), covariance(design, self._design))
        factor = self._factors[self.novelty(families, alone)]
        found = {}
        for index, row in enumerate(rows):
            mean = self._start(row, alone) + float(known.mean[index])
            spread = math.sqrt(max(0.0, float(known.covariance[index, index])) + NOISE)
            found[row.member] = Estimate(mean, spread, mean + factor * spread)
        return found

    def novelty(self, families: FamilySet, alone: Mapping[str, Alone]) -> Novelty:
        """Return how new the set is to this experience."""
        if all(family in self._traits for family in families):
            return Novelty.FAMILIES_KNOWN
        if all(alone[family].trait.model in self._models for family in families):
            return Novelty.MODELS_KNOWN
        return Novelty.NEW_MODEL

    def lesson(self, families: FamilySet, among: Collection[str], alone: Mapping[str, Alone]) -> Lesson:
        """Return what measuring the set would teach about pairs of the families in ``among``."""
        own = None if len(among) <= _MOST_FAMILIES else frozenset(families)
        unknown = self._unknown(frozenset(alone[family].trait for family in among), own)
        members = len(unknown.spread)
        if not members:
            return Lesson(0, 0.0, 0.0)
        trial = Design.of(rows_of(families), _traits(alone))
        cross = covariance(trial, self._design)
        weighed = self._regression.explained(cross)
        noisy = covariance(trial, trial) - product(weighed, cross.T) + NOISE * np.eye(len(cross))
        common = covariance(unknown.design, trial) - product(unknown.cross, weighed.T)
        taught = np.sum(common * np.linalg.solve(noisy, common.T).T, axis=1)
        after = np.sqrt(np.maximum(0.0, unknown.spread**2 - taught))
        return Lesson(members, *(round(float(np.mean(each)), _DECIMALS) for each in (unknown.spread, after)))

    def _unknown(self, among: frozenset[Trait], own: frozenset[str] | None) -> _Unknown:
        """Return the unmeasured pairs of these families, only those with one of ``own`` where it is given."""
        known = self._unknowns.get((among, own))
        if known is None:
            traits = {trait.family: trait for trait in among}
            pairs = [family_set(pair) for pair in combinations_with_replacement(sorted(traits), 2)]
            asked = [pair for pair in pairs if own is None or not own.isdisjoint(pair)]
            rows = [row for pair in asked if pair not in self._measured for row in rows_of(pair)]
            design = Design.of(rows, traits)
            cross = covariance(design, self._design)
            variance = prior_variances(design) - np.sum(self._regression.explained(cross) * cross, axis=1)
            known = _Unknown(design, cross, np.sqrt(np.maximum(0.0, variance)))
            self._unknowns[among, own] = known
        return known

    def _start(self, row: Row, alone: Mapping[str, Alone]) -> float:
        members = [alone[family] for family in (row.member, *row.partners)]
        return rule_log_slowdown(members, self._hardware)

    @cached_property
    def _factors(self) -> Mapping[Novelty, float]:
        """How many spreads above its mean the bound lies, by novelty.

        They come from the errors made when sets, families and models are left out in turn; with too few
        errors, that of the normal distribution, or of the lower novelty where it is more.
        """
        factors: dict[Novelty, float] = {}
        least = normal_quantile(self._quantile)
        for novelty in Novelty:
            groups = self._groups(novelty)
            errors = self._regression.left_out(groups) if len(groups) > 1 else []
            found = quantile_of_next(errors, self._quantile)
            factors[novelty] = least if found is None else max(0.0, found)
            least = max(least, factors[novelty])
        return factors

    def _groups(self, novelty: Novelty) -> list[list[int]]:
        """Return the rows that belong to each set, family or model."""
        groups: dict[object, list[int]] = defaultdict(list)
        for index, row in enumerate(self._rows):
            families = dict.fromkeys((row.member, *row.partners))
            keys: Iterable[object] = families
            if novelty is Novelty.FAMILIES_KNOWN:
                keys = (tuple(sorted((row.member, *row.partners))),)
            elif novelty is Novelty.NEW_MODEL:
                keys = dict.fromkeys(self._traits[family].model for family in families)
            for key in keys:
                groups[key].append(index)
        return list(groups.values())


def _traits(alone: Mapping[str, Alone]) -> dict[str, Trait]:
    return {family: each.trait for family, each in alone.items()}
