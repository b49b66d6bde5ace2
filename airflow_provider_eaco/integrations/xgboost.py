"""XGBoost: a callback that reports boosting rounds, saves the model and gives way."""

from __future__ import annotations

import os
from typing import Any

from airflow_provider_eaco.integrations.boosting import BoostingProgress
from airflow_provider_eaco.integrations.libraries import library
from airflow_provider_eaco.provider.training import TrainingRun

_xgboost: Any = library("xgboost", extra="xgboost")


class XGBoostCallback(_xgboost.callback.TrainingCallback):  # type: ignore[misc]  # as in integrations.lightning
    """Reports every ``rounds_per_unit`` rounds of ``xgboost.train``, or of ``fit``, with the model so far.

    Pass what the run says on: ``num_boost_round=callback.rounds_left`` (for ``fit``: ``n_estimators``) and
    ``xgb_model=run.checkpoint``. Asked to yield, XGBoost stops after the round, and the task leaves.

    :param run: open for as long as the training runs.
    :param folder: for the checkpoints: of this training alone, and readable wherever it may run next.
    :param rounds_per_unit: how many boosting rounds make one unit of the run; a report costs about 0.1 s.
    """

    def __init__(self, run: TrainingRun, folder: str | os.PathLike[str], *, rounds_per_unit: int = 1) -> None:
        super().__init__()
        self._progress = BoostingProgress(run, folder, ".ubj", rounds_per_unit)

    @property
    def rounds_left(self) -> int:
        """How many boosting rounds are still to be done."""
        return self._progress.rounds_left()

    def before_training(self, model: Any) -> Any:
        """Be called by XGBoost once."""
        if not isinstance(model, _xgboost.Booster):
            raise TypeError("XGBoostCallback: trainings of xgboost.cv cannot be gone on with; use train")
        self._progress.start(model.num_boosted_rounds(), "xgb_model=run.checkpoint")
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Be called by XGBoost before each round; never stops it."""
        self._progress.begin()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Be called by XGBoost after each round; stops it if the task is asked to yield."""
        metrics = {
            f"{data} {metric}": _latest(values)
            for data, of_data in evals_log.items()
            for metric, values in of_data.items()
        }
        return self._progress.round_done(model.num_boosted_rounds(), model.save_model, metrics)

    def after_training(self, model: Any) -> Any:
        """Leave, if asked to."""
        self._progress.leave_if_yielded()
        return model


def _latest(values: Any) -> float:
    return float(values[-1])
