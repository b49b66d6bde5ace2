"""Giving way and going on: when a training leaves its GPUs, and where the next start begins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_eaco import training_run
from airflow_provider_eaco.provider.progress_record import PROGRESS_KEY
from tests.unit.provider.training_rig import Meter, Store, granted, in_task, never, train


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return granted(monkeypatch)


def test_asked_to_yield_it_leaves_at_the_unit_s_end_and_comes_back_where_it_was(
    store: Store, meter: Meter
) -> None:
    """The task leaves by reschedule after its checkpoint was stored; the same try goes on from there."""
    store.instruct(1)

    def ask() -> None:
        if len(meter.log) == 4:
            store.instruct(1, yield_asked=True)

    meter.during = ask
    with in_task(store), pytest.raises(AirflowRescheduleException):
        train(5)
    assert (store.progress["units_done"], store.progress["checkpoint"]) == (2, "/ckpt/2")
    store.instruct(3, token=8)
    with in_task(store), training_run(epochs=5) as run:
        assert (run.units_done, run.checkpoint) == (2, "/ckpt/2")
        assert list(run.epochs()) == [2, 3, 4]


def test_without_a_checkpoint_nothing_is_given_up(store: Store, meter: Meter) -> None:
    """A unit that saved no checkpoint never ends in a yield."""
    store.instruct(1, yield_asked=True)
    with in_task(store):
        assert train(3, saves=never) == [0, 1, 2]
    assert store.progress["can_yield"] is False


def test_after_the_last_unit_nothing_is_given_up(store: Store, meter: Meter) -> None:
    """Asked at its very end, a training ends instead of coming back for nothing."""
    store.instruct(1, yield_asked=True)
    with in_task(store):
        assert train(1) == [0]


def test_what_could_not_be_stored_is_not_given_up(
    store: Store, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    """If the progress cannot be written, leaving would lose work: the training goes on."""
    store.instruct(1, yield_asked=True)

    def refuse(key: str, value: Any) -> None:
        raise ConnectionError("read only")

    with in_task(store), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "set", refuse)
        assert train(3) == [0, 1, 2]


def test_the_unit_after_a_yield_asked_without_a_checkpoint_leaves(store: Store, meter: Meter) -> None:
    """A training that saves every second unit leaves at the next one that is saved."""
    store.instruct(1, yield_asked=True)
    with in_task(store), pytest.raises(AirflowRescheduleException):
        train(6, saves=lambda epoch: epoch % 2 == 1)
    assert store.progress["units_done"] == 2


def test_a_retry_goes_on_from_the_last_checkpoint(store: Store, meter: Meter) -> None:
    """After a failure the next try starts at the unit whose state was saved last."""
    with in_task(store), pytest.raises(ZeroDivisionError):
        train(5, stop_after=2)
    with in_task(store, try_number=2):
        assert train(5) == [3, 4]
    assert store.progress["try_number"] == 2


def test_units_after_the_last_checkpoint_are_done_again(store: Store, meter: Meter) -> None:
    """What no checkpoint holds is lost, and never skipped."""
    with in_task(store), pytest.raises(ZeroDivisionError):
        train(6, saves=lambda epoch: epoch == 1, stop_after=3)
    assert (store.progress["units_done"], store.progress["checkpoint_units"]) == (4, 2)
    with in_task(store, try_number=2), training_run(epochs=6) as run:
        assert (run.checkpoint, list(run.epochs())) == ("/ckpt/2", [2, 3, 4, 5])


def test_a_retry_without_a_checkpoint_starts_from_nothing(store: Store, meter: Meter) -> None:
    """Units that nobody saved are no start."""
    with in_task(store), pytest.raises(ZeroDivisionError):
        train(5, saves=never, stop_after=2)
    with in_task(store, try_number=2):
        assert train(5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop_after", [None, 3], ids=["finished", "failed"])
def test_a_cleared_task_starts_from_nothing(store: Store, meter: Meter, stop_after: int | None) -> None:
    """Clearing, which raises Airflow's ``max_tries``, forgets the progress of every earlier try."""
    with in_task(store, retries=0, max_tries=0):
        if stop_after is None:
            train(5)
        else:
            with pytest.raises(ZeroDivisionError):
                train(5, stop_after=stop_after)
    with in_task(store, try_number=2, retries=0, max_tries=1), training_run(epochs=5) as run:
        assert run.checkpoint is None
        assert list(run.epochs()) == [0, 1, 2, 3, 4]


def test_a_cleared_task_that_fails_is_continued_by_its_retry(store: Store, meter: Meter) -> None:
    """A retry after a clear goes on from what was done since the clear."""
    with in_task(store, retries=1, max_tries=1):
        train(2)
    with in_task(store, try_number=2, retries=1, max_tries=2), pytest.raises(ZeroDivisionError):
        train(4, stop_after=1)
    with in_task(store, try_number=3, retries=1, max_tries=2):
        assert train(4) == [2, 3]


@pytest.mark.parametrize(
    "broken",
    [[], "text", {"v": 2, "try_number": 1, "checkpoint": "/c", "units_done": 3}, {"v": 1}]
    + [{"v": 1, "try_number": n, "checkpoint": "/c", "units_done": 3, "unit": "epoch"} for n in ("1", 9)]
    + [{"v": 1, "try_number": 1, "checkpoint": "/c", "units_done": d, "unit": "epoch"} for d in ("3", -1, 0)]
    + [{"v": 1, "try_number": 1, "checkpoint": "/c", "units_done": 3, "unit": "step"}],
    ids=str,
)
def test_a_stored_value_that_cannot_be_used_is_no_start(store: Store, meter: Meter, broken: Any) -> None:
    """Whatever stands in the store, the training starts."""
    store.values[PROGRESS_KEY] = json.dumps(broken)
    with in_task(store):
        assert train(2) == [0, 1]


def test_a_checkpoint_that_could_not_be_read_is_not_overwritten_at_once(store: Store, meter: Meter) -> None:
    """After a failed read nothing is written until there is something new to say."""
    store.values[PROGRESS_KEY] = before = json.dumps({"v": 1, "checkpoint": "/precious"})
    store.failing = True
    with in_task(store), training_run(epochs=2):
        store.failing = False
        assert store.values[PROGRESS_KEY] == before


def test_a_task_without_a_lease_keeps_its_progress_for_a_retry(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switched off, the same task still goes on from its checkpoint; its time is that of the clock."""
    monkeypatch.delenv("EACO_LEASE_TOKEN", raising=False)
    with in_task(store), pytest.raises(ZeroDivisionError):
        train(3, stop_after=0)
    assert store.progress["token"] is None
    assert store.progress["recent"][0][1] < 60
    with in_task(store, try_number=2):
        assert train(3) == [1, 2]
