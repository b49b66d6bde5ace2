"""Gavel's measured pairs as belief and truth: leave some out, predict them from the others, and score that.

Truth: the pairs of table ``motivation`` that ran, on one GPU. Belief: every family alone (its name and its
step time, nothing else was measured) and the pairs that were not left out. Each member of a left-out pair is
one prediction; a pair of one family with itself is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from airflow_provider_eaco.core.energy.power_model import BOARD_IDLE_W
from airflow_provider_eaco.core.energy.prediction import Lesson, Predictor
from airflow_provider_eaco.core.energy.similarity import name_parts
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    ProfileBook,
    SoloProfile,
)
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.simulator.importers.choices import ImportChoices
from airflow_provider_eaco.simulator.importers.gavel import read_csv
from airflow_provider_eaco.simulator.truth import BOARD_LIMIT_W, GAVEL_SOLO_W

Fold = frozenset[FamilySet]


@dataclass(frozen=True)
class Pairs:
    """What was measured on one GPU model: families alone, and pairs."""

    gpu_model: str
    solo: Sequence[SoloProfile]
    sets: Mapping[FamilySet, CoallocationProfile]

    def book(self, taught: Iterable[FamilySet]) -> ProfileBook:
        """Return the book of somebody who knows all families alone and these pairs."""
        pairs = (self.sets[families] for families in taught)
        return ProfileBook({each.key: each for each in self.solo}, {each.key: each for each in pairs})

    def without(self, left_out: Fold) -> ProfileBook:
        """Return the book with all pairs but these."""
        return self.book(families for families in self.sets if families not in left_out)


def read_pairs(folder: Path, gpu_model: str) -> Pairs:
    """Return the pairs of that model from the data set ``gavel_throughputs``."""
    choices = ImportChoices(gpu_model)
    found = [
        profile
        for name in ("isolated.csv", "pairs.csv")
        for profile in read_csv(folder / name, (folder / name).read_text(encoding="utf-8"), choices).profiles
    ]
    sets = {each.families: each for each in found if isinstance(each, CoallocationProfile)}
    paired = {family for families in sets for family in families}
    solo = [
        each
        for each in found
        if isinstance(each, SoloProfile) and each.gpu_count == 1 and each.family in paired
    ]
    return Pairs(gpu_model, solo, sets)


def with_assumed_use(pairs: Pairs) -> Pairs:
    """Return the pairs with powers and utilisations alone, as benchmark B2 assumes them by model."""
    idle_w = BOARD_IDLE_W["V100"]
    solo = []
    for each in pairs.solo:
        power_w = GAVEL_SOLO_W[name_parts(each.family).model]
        busy_pct = 100 * (power_w - idle_w) / (BOARD_LIMIT_W - idle_w)
        solo.append(replace(each, power_w=power_w, utilisation_pct=busy_pct))
    return replace(pairs, solo=solo)


def pair_folds(pairs: Pairs, count: int = 10, seed: int = 1) -> list[Fold]:
    """Return the pairs in that many folds, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(pairs.sets))
    sets = sorted(pairs.sets)
    return [frozenset(sets[index] for index in order[start::count]) for start in range(count)]


def family_folds(pairs: Pairs) -> list[Fold]:
    """Return for each family, a model with its batch size, all pairs with it."""
    return _folds((family, families) for families in pairs.sets for family in families)


def model_folds(pairs: Pairs) -> list[Fold]:
    """Return for each model all pairs with it, whatever the batch size."""
    return _folds((name_parts(family).model, families) for families in pairs.sets for family in families)


def _folds(belongs: Iterable[tuple[str, FamilySet]]) -> list[Fold]:
    folds: dict[str, set[FamilySet]] = defaultdict(set)
    for name, families in belongs:
        folds[name].add(families)
    return [frozenset(folds[name]) for name in sorted(folds)]


@dataclass
class Score:
    """Predictions of members that were scored; ``unknown`` got none."""

    errors: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    unknown: int = 0

    @property
    def median(self) -> float:
        """The median absolute error of a member's rate, as a share of its speed alone."""
        return float(np.quantile(self.errors, 0.5))

    @property
    def p90(self) -> float:
        """The 90th percentile of the absolute error of a member's rate."""
        return float(np.quantile(self.errors, 0.9))

    @property
    def coverage(self) -> float:
        """The share of members that were slowed by no more than the careful slowdown."""
        return float(np.mean(self.covered))

    @property
    def width(self) -> float:
        """The median of careful / expected slowdown - 1."""
        return float(np.quantile(self.widths, 0.5))

    def add(self, predictor: Predictor, pairs: Pairs, book: ProfileBook, asked: Iterable[FamilySet]) -> None:
        """Predict these pairs from the book and score every member."""
        for families in sorted(asked):
            found = predictor.predict(families, pairs.gpu_model, 1, book)
            truth = pairs.sets[families].slowdowns
            if found is None:
                self.unknown += len(truth)
                continue
            for family, slowdown in truth.items():
                expected, careful = found.expected_slowdowns[family], found.slowdowns[family]
                self.errors.append(abs(1 / expected - 1 / slowdown))
                self.covered.append(slowdown <= careful)
                self.widths.append(careful / expected - 1)


def cross_validated(predictor: Predictor, pairs: Pairs, folds: Sequence[Fold]) -> Score:
    """Return the score of predicting each fold from all others."""
    score = Score()
    for left_out in folds:
        score.add(predictor, pairs, pairs.without(left_out), left_out)
    return score


def learning_score(predictor: Predictor, pairs: Pairs, taught: int, seeds: Iterable[int]) -> Score:
    """Return the score of predicting all pairs but ``taught`` ones that are drawn by each seed."""
    score, sets = Score(), sorted(pairs.sets)
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(sets))
        known = [sets[index] for index in order[:taught]]
        score.add(predictor, pairs, pairs.book(known), set(sets).difference(known))
    return score


def taught_by_lessons(predictor: Predictor, pairs: Pairs, count: int) -> list[FamilySet]:
    """Return that many pairs, each the one whose measuring would teach most when it was chosen."""
    known: list[FamilySet] = []
    while len(known) < min(count, len(pairs.sets)):
        book = pairs.book(known)
        unknown = sorted(pairs.sets.keys() - set(known))
        known.append(max(unknown, key=lambda pair: _worth(predictor.lesson(pair, pairs.gpu_model, 1, book))))
    return known


def _worth(lesson: Lesson | None) -> float:
    return 0.0 if lesson is None else lesson.taught


def set_powers(predictor: Predictor) -> list[tuple[FamilySet, float, float]]:
    """Return the built-in sets with their measured power and that predicted without any of their own figures.

    Each is left out in turn; its speeds are left out as well.
    """
    book, found = built_in_book(), []
    for key, measured in sorted(book.coallocation.items()):
        others = {other: each for other, each in book.coallocation.items() if other != key}
        told = predictor.predict(
            key.families, key.gpu_model, key.gpu_count, replace(book, coallocation=others)
        )
        if told is not None and told.joint_power_w is not None and measured.power_w is not None:
            found.append((key.families, measured.power_w, told.joint_power_w))
    return found
