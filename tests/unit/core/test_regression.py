"""What the learner stands on: names, likeness, regression, and errors on what was left out."""

from __future__ import annotations

import numpy as np
import pytest

from airflow_provider_eaco.core.energy.effects import Design, covariance, prior_variances, rows_of
from airflow_provider_eaco.core.energy.regression import Regression, least_errors, quantile_of_next
from airflow_provider_eaco.core.energy.similarity import NameParts, likeness, name_parts, trait_of
from airflow_provider_eaco.core.energy.tiles import inverse, inverses, product
from airflow_provider_eaco.core.model.profile import family_set

NAMES = {
    "ResNet-50:64": ("ResNet-50", 64),
    "A3C:": ("A3C", None),
    "resnet50-b64": ("resnet50", 64),
    "bert_batch_size_32": ("bert", 32),
    "bert.bs8": ("bert", 8),
    "bert-batch=16": ("bert", 16),
    "resnet50-b64-0a1b2c3d": ("resnet50", 64),
    "dag.train-0a1b2c3d": ("dag.train", None),
    # No number is taken for a batch size that is not called one.
    "ResNet-50": ("ResNet-50", None),
    "J1": ("J1", None),
    "vgg16": ("vgg16", None),
    "model:0": ("model:0", None),
    ":64": (":64", None),
    "-0a1b2c3d": ("-0a1b2c3d", None),
}


@pytest.mark.parametrize("family", NAMES)
def test_a_name_tells_its_model_and_batch_size(family: str) -> None:
    """Usual spellings are read, digests of tasks are passed over, and nothing else is guessed."""
    assert name_parts(family) == NameParts(*NAMES[family])


def test_likeness_goes_by_model_scale_and_name() -> None:
    """Families of other models are not alike; those of one model are, the more the nearer in batch size."""
    traits = [trait_of(family, 1.0) for family in ("a:8", "a:16", "a:64", "b:8", "a")]
    found = likeness(traits[:1], traits)
    assert found.family.tolist() == [[1, 0, 0, 0, 0]]
    assert found.model.tolist() == [[1, 1, 1, 0, 1]]
    same, near, far, other, unsized = found.scale[0]
    assert same == 1 > near > far > other == unsized == 0


def test_covariances_are_those_of_a_random_variable() -> None:
    """Sets of any size have a symmetric covariance without negative directions, with its own diagonal."""
    traits = {family: trait_of(family, 2.0) for family in ("a:8", "a:16", "b:8", "c", "d")}
    sets = [("a:8", "a:8"), ("a:8", "a:16"), ("a:8", "b:8", "c"), ("c", "d"), ("d", "d", "d", "a:16")]
    design = Design.of([row for each in sets for row in rows_of(family_set(each))], traits)
    found = covariance(design, design)
    assert np.allclose(found, found.T)
    assert float(np.linalg.eigvalsh(found).min()) > -1e-12
    assert np.allclose(np.diag(found), prior_variances(design))


def test_a_member_stands_beside_all_others_of_its_set() -> None:
    """A family that is there twice is its own partner and has one row."""
    rows = rows_of(family_set(("a", "b", "a")))
    assert [(row.member, row.partners) for row in rows] == [("a", ("a", "b")), ("b", ("a", "a"))]


def test_errors_of_what_is_left_out_are_those_of_fitting_without_it() -> None:
    """The closed form gives what a fit to all other points would miss, in its own standard deviations."""
    draw = np.random.default_rng(7)
    places, values, noise = draw.uniform(0, 3, 12), draw.standard_normal(12), 0.1
    prior = np.exp(-0.5 * np.subtract.outer(places, places) ** 2)
    groups = [[0, 3], [5], [7, 8, 11]]
    expected = []
    for group in groups:
        kept = [index for index in range(12) if index not in group]
        fit = Regression(prior[np.ix_(kept, kept)], noise, values[kept])
        found = fit.posterior(prior[np.ix_(group, group)], prior[np.ix_(group, kept)])
        expected += ((values[group] - found.mean) / np.sqrt(np.diag(found.covariance) + noise)).tolist()
    fit = Regression(prior, noise, values)
    assert [error for group in groups for error in fit.left_out([group])] == pytest.approx(expected)
    assert sorted(fit.left_out(groups)) == pytest.approx(sorted(expected))


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_tiles_change_no_result(size: int) -> None:
    """Products and inverses by tiles are those of the whole matrix, whatever its size."""
    draw = np.random.default_rng(size)
    wide, tall = draw.standard_normal((3, size)), draw.standard_normal((size, 150))
    square = draw.standard_normal((size, size))
    definite = square @ square.T + np.eye(size)
    assert np.allclose(product(wide, square), wide @ square)
    assert np.allclose(product(square, tall), square @ tall)
    assert np.allclose(inverse(definite) @ definite, np.eye(size))
    assert np.allclose(inverses(np.array([definite, definite + 1])), np.linalg.inv([definite, definite + 1]))


def test_without_points_the_prior_stands() -> None:
    """Nothing measured: mean 0 and the prior covariance."""
    found = Regression(np.zeros((0, 0)), 0.1, np.zeros(0)).posterior(np.eye(2), np.zeros((2, 0)))
    assert found.mean.tolist() == [0, 0]
    assert found.covariance.tolist() == np.eye(2).tolist()


QUANTILES = {
    # errors, quantile: the one that the next is below with that probability
    "too-few": (range(8), 0.9, None),
    "the-largest-of-nine": (range(9), 0.9, 8),
    "the-largest-but-one": (range(19), 0.9, 17),
    "of-a-hundred": (range(100), 0.9, 90),
    "three-in-four": (range(3), 0.75, 2),
}


@pytest.mark.parametrize("case", QUANTILES.values(), ids=QUANTILES)
def test_the_quantile_of_the_next_error(case: tuple[range, float, float | None]) -> None:
    """The next error has any rank among n others with equal chance; with too few no promise is made."""
    errors, quantile, expected = case
    assert quantile_of_next([float(error) for error in reversed(errors)], quantile) == expected


@pytest.mark.parametrize(("quantile", "least"), [(0.75, 3), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_a_promise_takes_so_many_errors(quantile: float, least: int) -> None:
    """Nine errors for nine in ten, nineteen for nineteen in twenty, whatever the rounding."""
    assert least_errors(quantile) == least
