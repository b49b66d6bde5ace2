"""The learner on Gavel's measured V100 pairs: how near it comes, and whether its promise holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_eaco.core.energy.learned import LearnedPredictor
from bench.predictor_rig import (
    Fold,
    Pairs,
    Score,
    cross_validated,
    family_folds,
    model_folds,
    pair_folds,
    read_pairs,
)
from tests.unit.simulator.benchmark_data import benchmark_data


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return read_pairs(benchmark_data("gavel_throughputs"), "V100")


@pytest.fixture(scope="module")
def known(pairs: Pairs) -> Score:
    return scored(pairs, pair_folds)


def scored(pairs: Pairs, folds: Callable[[Pairs], list[Fold]]) -> Score:
    score = cross_validated(LearnedPredictor(0.05), pairs, folds(pairs))
    assert score.unknown == 0
    assert 0.85 <= score.coverage <= 0.95
    return score


def test_pairs_left_out_are_predicted_from_the_others(pairs: Pairs, known: Score) -> None:
    """Of the 328 pairs that ran, in ten folds: median error at most 0.035 of the solo speed, p90 0.10."""
    assert len(pairs.sets) == 328
    assert known.median <= 0.035
    assert known.p90 <= 0.10


def test_a_family_that_was_never_measured_is_predicted_from_its_model(pairs: Pairs) -> None:
    """With each (model, batch) left out: median error at most 0.065, p90 0.18; the promise holds."""
    score = scored(pairs, family_folds)
    assert score.median <= 0.065
    assert score.p90 <= 0.18


def test_a_model_that_was_never_measured_widens_the_promise(pairs: Pairs, known: Score) -> None:
    """With whole models left out errors are large, margins are wide accordingly, and the promise holds."""
    assert scored(pairs, model_folds).width > 5 * known.width
