"""What ``training_run`` offers a framework that has a loop of its own."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_eaco import training_run
from tests.unit.provider.training_rig import Store, granted, in_task


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    granted(monkeypatch)
    return Store()


def fit(done: list[str], *, epochs: int, leaves: bool) -> None:
    """Train as a framework does that stops when it is told to, and write down what was done."""
    with training_run(epochs=epochs) as run:
        for epoch in range(run.units_done, epochs):
            run.begin_unit()
            done.append(f"epoch {epoch}")
            if run.finish_unit(loss=0.5, checkpoint=f"/ckpt/{epoch + 1}"):
                break
        done.append("wound up")
        if leaves:
            run.leave_if_yielded()
            done.append("exported")


@pytest.mark.parametrize("leaves", [True, False], ids=["at once", "at the block's end"])
def test_a_framework_is_told_to_stop_winds_up_and_leaves(store: Store, leaves: bool) -> None:
    """``finish_unit`` says that the task gives way; it leaves where the framework wants, or at the end."""
    store.instruct(1, yield_asked=True)
    done: list[str] = []
    with in_task(store), pytest.raises(AirflowRescheduleException):
        fit(done, epochs=3, leaves=leaves)
    assert done == ["epoch 0", "wound up"]
    assert (store.progress["units_done"], store.progress["checkpoint"]) == (1, "/ckpt/1")


def test_outside_airflow_nobody_is_told_to_stop() -> None:
    """A framework's loop runs to its end."""
    done: list[str] = []
    fit(done, epochs=2, leaves=True)
    assert done == ["epoch 0", "epoch 1", "wound up", "exported"]
