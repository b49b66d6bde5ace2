"""Hugging Face Transformers: a callback that reports epochs or steps, has checkpoints saved and gives way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_eaco.integrations.libraries import library
from airflow_provider_eaco.integrations.starting_point import check_positive, check_starting_point
from airflow_provider_eaco.provider.training import TrainingRun

_TrainerCallback: Any = library("transformers", extra="transformers").TrainerCallback


class TransformersCallback(_TrainerCallback):  # type: ignore[misc]  # as in integrations.lightning
    """Reports each epoch of ``Trainer.train``, or every so many steps, with a checkpoint it saves.

    Pass the run's checkpoint on: ``trainer.train(resume_from_checkpoint=run.checkpoint)``. Asked to yield,
    the Trainer stops and winds up as at its end, but then ``train`` does not return: the task leaves.

    The Trainer saves into its ``output_dir``, which has to be of this training alone, and readable wherever
    it may run next. ``save_total_limit`` may not be 1, nor ``save_strategy`` ``best``, nor may
    ``save_only_model`` be set: the Trainer would keep or write no checkpoint to go on from.

    :param run: open for as long as ``train`` runs.
    :param steps_per_unit: how many optimizer steps make one unit of the run; ``None``: a unit is an epoch.
    """

    def __init__(self, run: TrainingRun, *, steps_per_unit: int | None = None) -> None:
        self._run = run
        self._steps = None if steps_per_unit is None else check_positive("steps_per_unit", steps_per_unit)
        self._is_unit_over = False
        self._was_stopping = False
        self._yielded = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _check_arguments(args)
        remedy = "resume_from_checkpoint=run.checkpoint to Trainer.train"
        if self._steps is None:
            check_starting_point(self._run, round(state.epoch or 0), what="epochs", remedy=remedy)
        else:
            check_starting_point(
                self._run, state.global_step, per_unit=self._steps, what="steps", remedy=remedy
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._steps is None:
            self._run.begin_unit()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._steps is not None:
            self._run.begin_unit()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._steps is not None and state.global_step % self._steps == 0:
            self._is_unit_over = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._steps is None:
            self._is_unit_over = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the unit that is over: now its checkpoint is on disk. Others' saves are none of ours."""
        if not self._is_unit_over:
            return
        self._is_unit_over = False
        path = Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}"
        latest = state.log_history[-1] if state.log_history else {}
        metrics = {
            name: float(latest[name]) for name in ("loss", "eval_loss", "learning_rate") if name in latest
        }
        # What stops early by itself has nothing to come back for: without a checkpoint nobody asks.
        is_over = control.should_training_stop and state.global_step < state.max_steps
        self._yielded = self._run.finish_unit(checkpoint=None if is_over else path, **metrics)
        if self._yielded:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave, if asked to."""
        if self._yielded:
            self._run.leave_if_yielded()


def _check_arguments(args: Any) -> None:
    if args.save_total_limit == 1:
        raise ValueError("save_total_limit: 1 leaves no checkpoint to go on from; use at least 2, or None")
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
        raise ValueError(
            "save_strategy: with 'best' most epochs have no checkpoint; use 'epoch', 'steps' or 'no'"
        )
    if args.save_only_model:
        raise ValueError("save_only_model: such checkpoints cannot be gone on from; it must be False")
