"""``training_run``: what it reports, how it is used, and what it survives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco import training_run
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.engine.progress import parse_report
from airflow_provider_eaco.provider.progress_record import INSTRUCTION_KEY, MAX_RECENT
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, simulated_node
from airflow_provider_eaco.telemetry.truth import TruthTable
from tests.unit.provider.training_rig import Meter, Store, granted, in_task, never, train


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return granted(monkeypatch)


def test_outside_airflow_it_is_a_plain_loop() -> None:
    """Every epoch runs, nothing is kept, and a second run starts from nothing."""
    for _ in range(2):
        with training_run(epochs=3) as run:
            assert run.checkpoint is None
            for epoch in run.epochs():
                run.report(loss=1.0 / (epoch + 1), accuracy=0.5, checkpoint=Path("/x"))
            assert run.units_done == 3
            assert run.metrics == {"loss": 1.0 / 3, "accuracy": 0.5}


def test_a_task_reports_every_unit_as_the_decision_record_says(store: Store, meter: Meter) -> None:
    """The record has exactly the fields of decision 3, and the engine reads it."""
    store.instruct(set_version=4)
    with in_task(store):
        train(3)
    assert store.progress == {
        "v": 1,
        "try_number": 1,
        "token": 7,
        "unit": "epoch",
        "units_done": 3,
        "units_total": 3,
        "checkpoint": "/ckpt/3",
        "checkpoint_units": 3,
        "can_yield": True,
        "ended": False,
        "out_of_memory": 0,
        "recent": [[0, 5.0, 4, 4], [1, 5.0, 4, 4], [2, 5.0, 4, 4]],
    }
    assert parse_report("job", store.progress).units_done == 3
    assert meter.log == ["begin", "wait"] * 3


def test_total_and_unit_are_known_before_the_first_unit_ends(store: Store, meter: Meter) -> None:
    """The first record is written at the start, so that a total can be used in the first decision."""
    with in_task(store), training_run(epochs=9, unit="tree") as run:
        assert (store.progress["unit"], store.progress["units_total"]) == ("tree", 9)
        assert (store.progress["units_done"], store.progress["can_yield"]) == (0, False)
        assert run.units_done == 0


def test_a_training_that_stops_early_says_so(store: Store, meter: Meter) -> None:
    """Ended early by itself is told from cut short: only the former is a complete run (C62)."""
    with in_task(store), training_run(epochs=9) as run:
        for epoch in run.epochs():
            run.report()
            assert not parse_report("job", store.progress).is_complete
            if epoch == 3:
                break
    assert parse_report("job", store.progress).is_complete


def test_one_unit_costs_two_calls(store: Store, meter: Meter) -> None:
    """A unit is one read of the instruction and one write of the progress; the end adds none."""
    with in_task(store), training_run(epochs=5) as run:
        before = store.reads, store.writes
        for _ in run.epochs():
            run.report()
        assert (store.reads - before[0], store.writes - before[1]) == (5, 5)
    assert store.writes - before[1] == 5


def test_a_unit_names_the_set_versions_under_which_it_began_and_ended(store: Store, meter: Meter) -> None:
    """A set that changes during a unit leaves different versions in that unit only."""
    store.instruct(set_version=1)
    with in_task(store), training_run(epochs=3) as run:
        for epoch in run.epochs():
            if epoch == 1:
                store.instruct(set_version=2)
            run.report()
    assert [unit[2:] for unit in store.progress["recent"]] == [[1, 1], [1, 2], [2, 2]]


@pytest.mark.parametrize(
    "written",
    [None, "text", {"v": 1}, {"v": 1, "token": 6, "set_version": 3, "yield": True}],
    ids=["none", "broken", "empty", "for an older lease"],
)
def test_an_instruction_for_somebody_else_says_nothing(store: Store, meter: Meter, written: Any) -> None:
    """Without an instruction for this lease the version is unknown, and nobody is asked to yield."""
    if written is not None:
        store.values[INSTRUCTION_KEY] = json.dumps(written)
    with in_task(store):
        assert train(2) == [0, 1]
    assert store.progress["recent"] == [[0, 5.0, None, None], [1, 5.0, None, None]]


def test_only_the_latest_units_are_listed(store: Store, meter: Meter) -> None:
    """The record stays small, however long the training is."""
    with in_task(store):
        train(MAX_RECENT + 8)
    assert [unit[0] for unit in store.progress["recent"]] == list(range(8, MAX_RECENT + 8))


def test_a_lost_store_never_stops_the_training(
    store: Store, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the store every unit is done, and the log says so once."""
    store.failing = True
    with in_task(store):
        assert train(4) == [0, 1, 2, 3]
    assert caplog.text.count("goes on without the task state store") == 1


def test_a_lost_device_never_stops_the_training(
    store: Store, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    """Units whose time nobody could measure are counted without a time."""

    def fail() -> None:
        raise OSError("state file is gone")

    meter.during = fail
    with in_task(store):
        assert train(2) == [0, 1]
    assert (store.progress["units_done"], store.progress["recent"]) == (2, [])
    assert caplog.text.count("goes on without the device's meter") == 1


def test_a_unit_that_the_body_does_not_report_is_reported(store: Store, meter: Meter) -> None:
    """A loop without ``report`` is measured all the same; it can never be asked to yield."""
    store.instruct(1, yield_asked=True)
    with in_task(store), training_run(epochs=3) as run:
        assert list(run.epochs()) == [0, 1, 2]
    assert (store.progress["units_done"], store.progress["can_yield"]) == (3, False)


def test_reports_without_the_iterator_count_too(store: Store, meter: Meter) -> None:
    """A framework with its own loop calls ``report`` only."""
    with in_task(store), training_run(epochs=2) as run:
        run.report()
        run.report()
    assert store.progress["units_done"] == 2
    assert meter.log == ["begin", "wait"] * 2


def test_an_unknown_total_goes_on_until_the_loop_is_left(store: Store, meter: Meter) -> None:
    """Without ``epochs`` the total is unknown, and a break ends the training."""
    with in_task(store), training_run(unit="minute") as run:
        for minute in run.units():
            run.report(checkpoint="/c")
            if minute == 2:
                break
    assert (store.progress["units_total"], store.progress["units_done"]) == (None, 3)


def test_a_task_has_one_training(store: Store, meter: Meter) -> None:
    """A second run in the same task would go on where the first ended: it is refused, with what to do."""
    with in_task(store):
        train(1)
        with pytest.raises(RuntimeError, match="into its own task"):
            train(1)


def test_a_run_inside_a_run_is_refused(store: Store, meter: Meter) -> None:
    """Two open runs in one process would count each other's units."""
    with in_task(store), training_run(epochs=1):
        with pytest.raises(RuntimeError, match="open in this process already"):
            train(1)
        assert "EACO_REPORT_SOCKET" in os.environ
    assert "EACO_REPORT_SOCKET" not in os.environ


def test_a_failed_training_fails_with_its_own_error(store: Store, meter: Meter) -> None:
    """The error of the training is what Airflow sees, also when the run was asked to yield meanwhile."""
    store.instruct(1, yield_asked=True)
    with in_task(store), pytest.raises(ZeroDivisionError):
        train(3, saves=never, stop_after=1)


def test_on_a_simulated_node_a_unit_takes_what_the_device_model_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each report returns when the device has done the epoch's work; its time is simulated seconds."""
    state = tmp_path / "state.json"
    node = simulated_node("sim")
    cluster = SimulatedCluster(state, [node], TruthTable(built_in_book()), time_scale=1e5)
    placement = Placement("sim", node.gpu_uuids)
    cluster.occupy([Occupant("job", 7, "J1", placement, 3072)])
    monkeypatch.setenv("EACO_SIMULATED_STATE", str(state))
    monkeypatch.setenv("EACO_JOB_ID", "job")
    monkeypatch.setenv("EACO_LEASE_TOKEN", "7")
    with in_task(store):
        train(2)
    times = [unit[1] for unit in store.progress["recent"]]
    assert times == pytest.approx([0.39 * 3600] * 2, rel=0.01)
    account = cluster.account("job", 7)
    assert account is not None
    assert account.units_done == 2


@pytest.mark.parametrize(
    "epochs", [0, -1, True, 1.5, "90", 2**53 + 1, 10**19, pytest.param(10**5000, id="vast")]
)
def test_a_wrong_number_of_epochs_is_refused(epochs: Any) -> None:
    """The argument is named, with what is allowed."""
    with pytest.raises(ValueError, match=r"^epochs: "):
        training_run(epochs=epochs)


def test_as_many_epochs_as_json_can_count_are_a_training() -> None:
    """The largest number that is told apart from its neighbours everywhere is allowed."""
    with training_run(epochs=2**53) as run:
        assert run.units_done == 0


def test_a_checkpoint_named_in_bytes_is_the_same_file(store: Store, meter: Meter) -> None:
    """Paths in bytes reach the record as text that names the same file, also where they are no UTF-8."""
    with in_task(store), training_run(epochs=2) as run:
        for path in (b"/ckpt/1", b"/ckpt/\xff"):
            run.report(checkpoint=path)  # type: ignore[arg-type]  # what os.walk(b"...") gives
            assert os.fsencode(store.progress["checkpoint"]) == path
            assert run.checkpoint == os.fsdecode(path)


def test_a_checkpoint_that_is_no_path_is_refused(store: Store, meter: Meter) -> None:
    """The loop is told at once, before a record that nobody could read is written."""
    with pytest.raises(TypeError, match="PathLike"), in_task(store), training_run(epochs=1) as run:
        run.report(checkpoint=1)  # type: ignore[arg-type]  # the wrong type is the case
    assert store.progress["checkpoint"] is None


@pytest.mark.parametrize("unit", ["", " ", 3])
def test_a_unit_needs_a_name(unit: Any) -> None:
    """The argument is named, with what is allowed."""
    with pytest.raises(ValueError, match=r"^unit: "):
        training_run(epochs=1, unit=unit)
