"""Plain PyTorch: save and restore what a training loop has to carry over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_eaco.integrations.checkpoint_folder import CheckpointFolder
from airflow_provider_eaco.integrations.libraries import library

_CHANCE = "chance"


class Stateful(Protocol):
    """A model, an optimizer, a learning-rate scheduler, a gradient scaler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class TorchCheckpoints:
    """The checkpoints of a training loop in PyTorch: the named parts and, in a single process, the state of
    PyTorch's random numbers, so that a training that goes on draws what an uninterrupted one would.

    :param folder: of this training alone, and readable wherever it may run next.
    :param parts: by any names, those that have ``state_dict`` and ``load_state_dict``.
    :raises MissingLibraryError: if PyTorch is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], **parts: Stateful) -> None:
        if not parts:
            raise ValueError("parts: nothing to save; pass at least model=")
        if _CHANCE in parts:
            raise ValueError(f"parts: {_CHANCE!r} is the name of the random numbers; choose another")
        self._torch = library("torch", extra="torch")
        self._folder = CheckpointFolder(folder, ".pt")
        self._parts = parts

    def save(self, epoch: int) -> Path:
        """Write the state after ``epoch`` and return its file, for :meth:`TrainingRun.report`.

        Of several ranks the one with ``RANK`` 0 writes; the others return the same path.
        """
        if os.environ.get("RANK", "0") != "0":
            return self._folder.path(epoch)
        state = {name: part.state_dict() for name, part in self._parts.items()}
        if _is_alone():
            state[_CHANCE] = {
                "cpu": self._torch.get_rng_state(),
                "cuda": self._torch.cuda.get_rng_state_all() if self._torch.cuda.is_available() else [],
            }
        return self._folder.write(epoch, lambda path: self._torch.save(state, path))

    def restore(self, checkpoint: str | os.PathLike[str] | None) -> None:
        """Load every part from ``checkpoint``; with ``None``, a first start, do nothing.

        Only tensors and plain values are loaded, never code.

        :raises KeyError: if the checkpoint lacks one of the parts; none is changed then.
        """
        if checkpoint is None:
            return
        state = self._torch.load(checkpoint, map_location="cpu", weights_only=True)
        missing = sorted(self._parts.keys() - state.keys())
        if missing:
            raise KeyError(f"{checkpoint} holds {sorted(state)}, not {missing}")
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        chance = state.get(_CHANCE)
        if chance is None or not _is_alone():
            return
        self._torch.set_rng_state(chance["cpu"])
        # Another number of GPUs than before cannot have the same random numbers.
        if len(chance["cuda"]) == self._torch.cuda.device_count():
            self._torch.cuda.set_rng_state_all(chance["cuda"])


def _is_alone() -> bool:
    # Ranks draw different random numbers, of which one checkpoint keeps only the first's.
    return os.environ.get("WORLD_SIZE", "1") == "1"
