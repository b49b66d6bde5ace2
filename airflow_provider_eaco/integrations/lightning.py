"""Lightning: a callback that reports epochs, saves checkpoints and gives way."""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow_provider_eaco.integrations.checkpoint_folder import CheckpointFolder
from airflow_provider_eaco.integrations.libraries import library
from airflow_provider_eaco.integrations.starting_point import check_starting_point
from airflow_provider_eaco.provider.training import TrainingRun

# Both names are published; the one whose Trainer the author has imported already is the one to join.
_NAMES = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
# Lightning calls its checkpoint callbacks last, when all others and the module have seen the epoch's end.
_Checkpoint: Any = library(*_NAMES, extra="lightning").callbacks.Checkpoint


class LightningCallback(_Checkpoint):  # type: ignore[misc]  # the library may be absent where types are checked
    """Reports each epoch of ``Trainer.fit`` with a checkpoint.

    Pass the run's checkpoint on: ``trainer.fit(model, ckpt_path=run.checkpoint)``. Asked to yield, Lightning
    stops as it does when a callback sets ``trainer.should_stop``; when it has wound up, ``fit`` does not
    return: the task leaves. Takes the place of Lightning's default checkpoints; a ``ModelCheckpoint`` of your
    own goes before it in the list.

    :param run: open for as long as ``fit`` runs.
    :param folder: for the checkpoints: of this training alone, and readable wherever it may run next.
    """

    def __init__(self, run: TrainingRun, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self._run = run
        self._folder = CheckpointFolder(folder, ".ckpt")
        self._yielded = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        check_starting_point(
            self._run, trainer.current_epoch, what="epochs", remedy="ckpt_path=run.checkpoint to Trainer.fit"
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._run.begin_unit()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        unit = self._run.units_done
        path = self._folder.path(unit)
        trainer.save_checkpoint(path)
        # What stops early by itself has nothing to come back for: without a checkpoint nobody asks.
        is_over = trainer.should_stop
        self._yielded = self._run.finish_unit(
            checkpoint=None if is_over else path, **_as_numbers(trainer.callback_metrics)
        )
        if trainer.is_global_zero:
            for old in self._folder.outdated(unit):
                trainer.strategy.remove_checkpoint(old)
        if self._yielded:
            trainer.should_stop = True
            # With a minimum that is not reached yet, Lightning would train on.
            trainer.fit_loop.min_epochs = None
            trainer.fit_loop.epoch_loop.min_steps = None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave, if asked to: all that Lightning does at a training's end is done, but for its loggers."""
        if not self._yielded:
            return
        for logger in trainer.loggers:
            logger.finalize("success")
        # Lightning takes the way out for a failure, and would tell them so.
        trainer.loggers = []
        self._run.leave_if_yielded()


def _as_numbers(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if name != "checkpoint"}
