"""What gradient-boosting libraries have in common: units are boosting rounds of a tree (or one a class)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_provider_eaco.integrations.checkpoint_folder import CheckpointFolder
from airflow_provider_eaco.integrations.starting_point import check_positive, check_starting_point
from airflow_provider_eaco.provider.training import TrainingRun


class BoostingProgress:
    """Counts boosting rounds into units of a run and saves the model after each unit.

    :param run: open for as long as the training runs.
    :param folder: for the checkpoints: of this training alone, and readable wherever it may run next.
    :param suffix: how the names of the model files end.
    :param rounds_per_unit: how many boosting rounds make one unit of the run.
    """

    def __init__(
        self, run: TrainingRun, folder: str | os.PathLike[str], suffix: str, rounds_per_unit: int
    ) -> None:
        self._run = run
        self._folder = CheckpointFolder(folder, suffix)
        self._per_unit = check_positive("rounds_per_unit", rounds_per_unit)
        self._offset = 0

    def rounds_left(self) -> int:
        """Return how many rounds are still to be done.

        :raises ValueError: if the run was opened without a total.
        """
        total = self._run.units_total
        if total is None:
            raise ValueError("rounds_left: the run has no total; open it with training_run(epochs=...)")
        return max(0, total - self._run.units_done) * self._per_unit

    def start(self, rounds: int, remedy: str) -> None:
        """Take note of how many rounds the model has before the first one of this start.

        :raises ValueError: if they are fewer than the run counts as done.
        """
        check_starting_point(self._run, rounds, per_unit=self._per_unit, what="rounds", remedy=remedy)
        self._offset = rounds - self._run.units_done * self._per_unit

    def begin(self) -> None:
        """Tell that work on a round begins, unless all that the run has are done."""
        total = self._run.units_total
        if total is None or self._run.units_done < total:
            self._run.begin_unit()

    def round_done(self, rounds: int, save: Callable[[Path], object], metrics: Mapping[str, float]) -> bool:
        """Report the unit if the model's last round ends one; return whether the task is asked to yield.

        :param rounds: how many rounds the model has.
        :param save: writes the model to a file.
        """
        if (rounds - self._offset) % self._per_unit:
            return False
        path = self._folder.write(self._run.units_done, save)
        told = {name: value for name, value in metrics.items() if name != "checkpoint"}
        return self._run.finish_unit(checkpoint=path, **told)

    def leave_if_yielded(self) -> None:
        """Leave the task if its last unit ended in a yield."""
        self._run.leave_if_yielded()
