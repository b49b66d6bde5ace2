"""LightGBM: a callback that reports boosting rounds, saves the model and gives way."""

from __future__ import annotations

import os
from typing import Any

from airflow_provider_eaco.integrations.boosting import BoostingProgress
from airflow_provider_eaco.integrations.libraries import library
from airflow_provider_eaco.provider.training import TrainingRun


class LightGBMCallback:
    """Reports every ``rounds_per_unit`` rounds of ``lightgbm.train``, or of ``fit``, with the model so far.

    Pass what the run says on: ``num_boost_round=callback.rounds_left`` (for ``fit``: ``n_estimators``) and
    ``init_model=run.checkpoint``. Asked to yield, training ends after the round, and the task leaves. The
    first unit's time counts from here, the binning of the data included.

    :param run: open for as long as the training runs.
    :param folder: for the checkpoints: of this training alone, and readable wherever it may run next.
    :param rounds_per_unit: how many boosting rounds make one unit of the run; a report costs about 0.1 s.
    :raises MissingLibraryError: if LightGBM is not installed.
    """

    def __init__(self, run: TrainingRun, folder: str | os.PathLike[str], *, rounds_per_unit: int = 1) -> None:
        self._booster_class = library("lightgbm", extra="lightgbm").Booster
        self._progress = BoostingProgress(run, folder, ".txt", rounds_per_unit)
        self._started = False
        # LightGBM's own: evaluations are logged at 10 and recorded at 20, early stopping decides at 30.
        self.order = 25
        self.before_iteration = False
        self._progress.begin()

    @property
    def rounds_left(self) -> int:
        """How many boosting rounds are still to be done; 0 after the last unit, where nothing is to train."""
        return self._progress.rounds_left()

    def __call__(self, env: Any) -> None:
        """Be called by LightGBM after each round."""
        if not isinstance(env.model, self._booster_class):
            raise TypeError("LightGBMCallback: trainings of lightgbm.cv cannot be gone on with; use train")
        if not self._started:
            self._started = True
            self._progress.start(env.begin_iteration, "init_model=run.checkpoint")
        metrics = {f"{each[0]} {each[1]}": float(each[2]) for each in env.evaluation_result_list or ()}
        rounds = env.iteration + 1
        self._progress.round_done(rounds, lambda path: env.model.save_model(path, num_iteration=-1), metrics)
        self._progress.leave_if_yielded()
        if rounds < env.end_iteration:
            self._progress.begin()
