"""A folder of checkpoints, one a unit, of which the last two are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"unit-(\d+)")


class CheckpointFolder:
    """Names, writes and thins the checkpoints of one training.

    :param folder: of this training alone, and readable wherever it may run next; made when it is needed.
    :param suffix: how the names end, for example ``.pt``.
    """

    def __init__(self, folder: str | os.PathLike[str], suffix: str) -> None:
        self._folder = Path(folder).absolute()
        self._suffix = suffix

    def path(self, unit: int) -> Path:
        """Return where the state after ``unit`` is saved; its folder exists afterwards."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"unit-{unit:06d}{self._suffix}"

    def write(self, unit: int, write: Callable[[Path], object]) -> Path:
        """Have ``write`` fill a file and return its final path: readers see a whole file or none.

        Of the older ones the latest is kept, for the case that the training is stopped after this one was
        written and before anybody was told.
        """
        path = self.path(unit)
        # The ending stays: XGBoost chooses its format by it.
        unfinished = path.with_name(f"unfinished{self._suffix}")
        write(unfinished)
        unfinished.replace(path)
        for old in self.outdated(unit):
            old.unlink(missing_ok=True)
        return path

    def outdated(self, unit: int) -> list[Path]:
        """Return the checkpoints of units before ``unit``, all but the latest of them.

        Later ones, which a run before a clear has left, are overwritten when the training gets there.
        """
        numbered = [
            (int(name[1]), path)
            for path in self._folder.glob(f"unit-*{self._suffix}")
            if (name := _NAME.fullmatch(path.name.removesuffix(self._suffix)))
        ]
        return [path for number, path in sorted(numbered) if number < unit][:-1]
