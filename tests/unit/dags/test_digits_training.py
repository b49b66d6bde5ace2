"""The example training is real: it learns, and goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

DAGS = Path(__file__).parents[3] / "dags"
EPOCHS = 8


@pytest.fixture(scope="module")
def digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_training", DAGS / "digits_training.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", ["small", "medium", "large", "huge"])
def test_every_size_learns(digits: ModuleType, size: str) -> None:
    """After eight epochs more than nine of ten unseen digits are recognised, and the loss has fallen."""
    model = digits.DigitClassifier(digits.SIZES[size])
    losses = [model.train_epoch(epoch) for epoch in range(EPOCHS)]
    assert model.accuracy() > 0.9
    assert losses[-1] < losses[0] / 4


def test_a_new_model_knows_nothing(digits: ModuleType) -> None:
    """What is recognised was learnt: without training it is about chance."""
    assert digits.DigitClassifier().accuracy() < 0.4


@pytest.mark.parametrize("stop", [1, 4, EPOCHS - 1])
def test_a_resumed_training_ends_like_an_uninterrupted_one(
    digits: ModuleType, tmp_path: Path, stop: int
) -> None:
    """Stopped after any epoch and restored from its checkpoint, the weights end up exactly the same."""
    whole = digits.DigitClassifier(digits.SIZES["large"])
    for epoch in range(EPOCHS):
        whole.train_epoch(epoch)
    first = digits.DigitClassifier(digits.SIZES["large"])
    for epoch in range(stop):
        first.train_epoch(epoch)
    saved = first.save(tmp_path / "new" / "folder", stop - 1)
    second = digits.DigitClassifier.restore(str(saved), digits.SIZES["large"])
    for epoch in range(stop, EPOCHS):
        second.train_epoch(epoch)
    for expected, found in zip(whole._weights, second._weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert second.accuracy() == whole.accuracy()


def test_the_two_latest_checkpoints_are_kept(digits: ModuleType, tmp_path: Path) -> None:
    """A checkpoint that was reported is still there when the next one has been written."""
    model = digits.DigitClassifier(digits.SIZES["small"])
    for epoch in range(4):
        model.save(tmp_path, epoch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-0002.npz", "epoch-0003.npz"]


@pytest.mark.parametrize(("map_index", "name"), [(-1, "train"), (None, "train"), (3, "train-3")])
def test_every_task_instance_has_its_own_folder(
    digits: ModuleType, monkeypatch: pytest.MonkeyPatch, map_index: int | None, name: str
) -> None:
    """Mapped tasks of one run keep their checkpoints apart."""
    monkeypatch.setenv("AIRFLOW_HOME", "/home/of/airflow")
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=map_index)
    assert digits.checkpoint_folder(ti) == Path("/home/of/airflow/checkpoints/d/r", name)
