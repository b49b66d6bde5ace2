"""What the callbacks do beside the guide's examples: steps, early stops, loggers, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_eaco import integrations, training_run
from tests.unit.integrations import libraries
from tests.unit.provider.training_rig import Store, granted, in_task

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A task that is asked to yield from the beginning."""
    granted(monkeypatch)
    store = Store()
    store.instruct(1, yield_asked=True)
    return store


def fit_lightning(folder: Path, **options: Any) -> libraries.Lightning:
    training = libraries.Lightning(folder)
    from lightning.pytorch import Trainer

    with training_run(epochs=4) as run:
        mine = integrations.LightningCallback(run, folder)
        others = options.pop("callbacks", [])
        trainer = Trainer(max_epochs=4, callbacks=[mine, *others], **{**training.names["options"], **options})
        trainer.fit(training.model, training.names["batches"], ckpt_path=run.checkpoint)
    return training


def test_lightning_tells_its_loggers_no_failure(asked: Store, tmp_path: Path) -> None:
    """A task that gives way has not failed: each logger is closed once, with success."""
    libraries.needed("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    told: list[str] = []

    class Logger(CSVLogger):
        def finalize(self, status: str) -> None:
            told.append(status)

    with in_task(asked), pytest.raises(AirflowRescheduleException):
        fit_lightning(tmp_path, logger=Logger(tmp_path))
    assert told == ["success"]


def test_lightning_that_stops_early_does_not_give_way(asked: Store, tmp_path: Path) -> None:
    """What has come to its own end has nothing to come back for, and counts as complete."""
    libraries.needed("lightning.pytorch")
    from lightning.pytorch.callbacks import EarlyStopping

    stopping = EarlyStopping("loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
    with in_task(asked):
        fit_lightning(tmp_path, callbacks=[stopping], min_epochs=None)
    assert (asked.progress["units_done"], asked.progress["ended"]) == (1, True)


def train_in_steps(folder: Path) -> libraries.Transformers:
    training = libraries.Transformers(folder)
    from transformers import Trainer, TrainingArguments

    options = training.names["options"]
    with training_run(epochs=3, unit="2 steps") as run:
        arguments = TrainingArguments(output_dir=str(folder), num_train_epochs=2, **options)
        mine = integrations.TransformersCallback(run, steps_per_unit=2)
        trainer = Trainer(
            training.model, arguments, train_dataset=training.names["dataset"], callbacks=[mine]
        )
        trainer.train(resume_from_checkpoint=run.checkpoint)
    return training


def test_transformers_gives_way_within_an_epoch(asked: Store, tmp_path: Path) -> None:
    """Units of two steps in epochs of three: it leaves after the first, and ends as if never asked."""
    expected = train_in_steps(tmp_path / "alone").result()
    with in_task(asked), pytest.raises(AirflowRescheduleException):
        train_in_steps(tmp_path / "shared")
    assert (asked.progress["units_done"], asked.progress["unit"]) == (1, "2 steps")
    asked.instruct(2)
    with in_task(asked):
        resumed = train_in_steps(tmp_path / "shared")
    assert asked.progress["units_done"] == 3
    np.testing.assert_allclose(resumed.result(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"save_total_limit": 1}, {"save_strategy": "best"}, {"save_only_model": True}], ids=str
)
def test_transformers_refuses_what_leaves_no_checkpoint(wrong: dict[str, Any]) -> None:
    """Each argument under which nothing could be gone on from is named, with what is allowed."""
    libraries.needed("transformers")
    usual = {"save_total_limit": None, "save_strategy": "no", "save_only_model": False}
    with training_run(epochs=1) as run, pytest.raises(ValueError, match=next(iter(wrong))):
        integrations.TransformersCallback(run).on_train_begin(
            SimpleNamespace(**{**usual, **wrong}), None, None
        )


def test_pytorch_restores_nothing_from_a_checkpoint_that_lacks_a_part(tmp_path: Path) -> None:
    """A part that was not saved is named, and no other is changed."""
    torch = libraries.needed("torch")
    model = torch.nn.Linear(2, 2)
    saved = integrations.TorchCheckpoints(tmp_path, model=model).save(0)
    before = [each.clone() for each in model.parameters()]
    torch.nn.init.zeros_(model.weight)
    both = integrations.TorchCheckpoints(tmp_path, model=model, scheduler=torch.optim.SGD(model.parameters()))
    with pytest.raises(KeyError, match="scheduler"):
        both.restore(saved)
    assert not torch.equal(model.weight, before[0])


def test_pytorch_of_several_ranks_is_written_by_the_first_and_draws_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank names the same file and restores it, but keeps random numbers of its own."""
    torch = libraries.needed("torch")
    checkpoints = integrations.TorchCheckpoints(tmp_path, model=torch.nn.Linear(2, 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    named = checkpoints.save(0)
    assert not named.exists()
    monkeypatch.setenv("RANK", "0")
    assert checkpoints.save(0) == named
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    checkpoints.restore(named)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("name", ["LightGBMCallback", "XGBoostCallback"])
@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "5"])
def test_a_wrong_number_of_rounds_is_refused(name: str, wrong: Any, tmp_path: Path) -> None:
    """The argument is named, with what is allowed."""
    libraries.needed(name.removesuffix("Callback").lower())
    with training_run(epochs=1) as run, pytest.raises(ValueError, match=r"rounds_per_unit: .*at least 1"):
        getattr(integrations, name)(run, tmp_path, rounds_per_unit=wrong)
