"""A small neural network on scikit-learn's handwritten digits: the training of the example DAGs.

Plain numpy; knows nothing of any scheduler. Every epoch's order depends on the seed and the epoch alone, so a
training that goes on from a checkpoint ends exactly where an uninterrupted one does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Sizes of the hidden layers.
SIZES: dict[str, tuple[int, ...]] = {
    "small": (32,),
    "medium": (64,),
    "large": (128, 64),
    "huge": (256, 128),
}
BATCH = 32
MOMENTUM = 0.9


class DigitClassifier:
    """A multilayer perceptron with ReLU, trained by stochastic gradient descent with momentum."""

    def __init__(self, hidden: Sequence[int] = SIZES["medium"], *, rate: float = 0.02, seed: int = 0) -> None:
        self._train_x, self._train_y, self._test_x, self._test_y = _digits()
        self._rate = rate
        self._seed = seed
        chance = np.random.default_rng(seed)
        widths = [self._train_x.shape[1], *hidden, 10]
        shapes = list(pairwise(widths))
        self._weights: list[Array] = [chance.normal(0, np.sqrt(2 / n), (n, m)) for n, m in shapes]
        self._weights += [np.zeros(m) for _, m in shapes]
        self._speed: list[Array] = [np.zeros_like(each) for each in self._weights]

    @classmethod
    def restore(cls, checkpoint: str | None, hidden: Sequence[int], **options: Any) -> Self:
        """Return the model as it was saved in ``checkpoint``, or a new one if there is none."""
        model = cls(hidden, **options)
        if checkpoint is not None:
            with np.load(checkpoint) as saved:
                count = len(model._weights)
                arrays = [saved[f"arr_{number}"] for number in range(2 * count)]
            model._weights, model._speed = arrays[:count], arrays[count:]
        return model

    def train_epoch(self, epoch: int) -> float:
        """Go through the training digits once, in the order of this epoch; return the mean loss."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._train_x))
        losses = []
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            losses.append(self._step(self._train_x[chosen], self._train_y[chosen]))
        return float(np.mean(losses))

    def accuracy(self) -> float:
        """Return the share of test digits that are recognised, 0 to 1."""
        guesses = self._forward(self._test_x)[-1].argmax(axis=1)
        return float(np.mean(guesses == self._test_y))

    def save(self, folder: Path, epoch: int) -> Path:
        """Write the state after ``epoch`` and return its file; the one before it is kept, older ones go.

        Readers see a whole file or none. The earlier one stays because the training may be stopped after
        this one was written and before anybody was told.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"epoch-{epoch:04d}.npz"
        unfinished = folder / "unfinished.npz"
        np.savez(unfinished, *self._weights, *self._speed)
        unfinished.replace(path)
        for old in sorted(folder.glob("epoch-*.npz"))[:-2]:
            old.unlink(missing_ok=True)
        return path

    def _forward(self, x: Array) -> list[Array]:
        layers = len(self._weights) // 2
        activations = [x]
        for layer in range(layers):
            x = x @ self._weights[layer] + self._weights[layers + layer]
            if layer < layers - 1:
                x = np.maximum(x, 0)
            activations.append(x)
        return activations

    def _step(self, x: Array, y: npt.NDArray[np.int64]) -> float:
        layers = len(self._weights) // 2
        activations = self._forward(x)
        scores = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        odds = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(-np.log(odds[rows, y] + 1e-12).mean())
        odds[rows, y] -= 1
        slope = odds / len(y)
        gradients: list[Array] = [np.empty(0)] * len(self._weights)
        for layer in reversed(range(layers)):
            gradients[layer] = activations[layer].T @ slope
            gradients[layers + layer] = slope.sum(axis=0)
            slope = (slope @ self._weights[layer].T) * (activations[layer] > 0)
        for number, gradient in enumerate(gradients):
            self._speed[number] = MOMENTUM * self._speed[number] - self._rate * gradient
            self._weights[number] = self._weights[number] + self._speed[number]
        return loss


def checkpoint_folder(ti: Any) -> Path:
    """Return where the task instance keeps its checkpoints; every machine that may run it must reach it."""
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    name = ti.task_id if ti.map_index is None or ti.map_index < 0 else f"{ti.task_id}-{ti.map_index}"
    return home / "checkpoints" / ti.dag_id / ti.run_id / name


def _digits() -> tuple[Array, npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order] / 16.0, y[order]
    border = len(x) * 4 // 5
    return x[:border], y[:border], x[border:], y[border:]
