"""``training_run``: what it reports, when it gives way, what it goes on from, and what it survives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_eaco import training_run
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.engine.progress import TaskInstruction, parse_report
from airflow_provider_eaco.provider import unit_channel
from airflow_provider_eaco.provider.progress_record import INSTRUCTION_KEY, MAX_RECENT, PROGRESS_KEY
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, simulated_node
from airflow_provider_eaco.telemetry.truth import TruthTable


@dataclass
class Store:
    """Airflow's task state store of one task instance, as the task sees it: JSON by key."""

    values: dict[str, str] = field(default_factory=dict)
    failing: bool = False
    reads: int = 0
    writes: int = 0

    def get(self, key: str) -> Any:
        self.reads += 1
        if self.failing:
            raise ConnectionError("the API server is away")
        return json.loads(self.values[key]) if key in self.values else None

    def set(self, key: str, value: Any) -> None:
        self.writes += 1
        if self.failing:
            raise ConnectionError("the API server is away")
        self.values[key] = json.dumps(value)

    @property
    def progress(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.values[PROGRESS_KEY])
        return found

    def instruct(self, set_version: int, yield_asked: bool = False, token: int = 7) -> None:
        """Write what the executor would."""
        said = TaskInstruction("job", token, set_version, yield_asked).as_json()
        self.values[INSTRUCTION_KEY] = json.dumps(said)


class Meter:
    """A device on which every unit takes 5 s; ``during`` is called while a unit runs."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.during: Callable[[], None] = lambda: None

    def begin_unit(self) -> None:
        self.log.append("begin")

    def wait_unit(self) -> float | None:
        self.log.append("wait")
        self.during()
        return 5.0


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    device = Meter()
    monkeypatch.setattr(unit_channel, "_meter_of", lambda _environ: device)
    monkeypatch.setenv("EACO_LEASE_TOKEN", "7")
    return device


@contextmanager
def in_task(store: Store, *, try_number: int = 1, retries: int = 2, max_tries: int = 2) -> Iterator[None]:
    """Be the process in which Airflow runs a task; ``max_tries`` grows when a task is cleared."""
    ti = SimpleNamespace(id=uuid4(), try_number=try_number, max_tries=max_tries)
    context: Any = {"ti": ti, "task": SimpleNamespace(retries=retries), "task_state_store": store}
    with set_current_context(context):
        yield


def train(
    epochs: int, *, saves: Callable[[int], bool] = lambda epoch: True, stop_after: int | None = None
) -> list[int]:
    """Train; return the epochs that were done.

    ``saves`` says after which epochs a checkpoint is saved, ``stop_after`` where the task crashes.
    """
    done = []
    with training_run(epochs=epochs) as run:
        for epoch in run.epochs():
            done.append(epoch)
            run.report(loss=0.5, checkpoint=f"/ckpt/{epoch + 1}" if saves(epoch) else None)
            if epoch == stop_after:
                raise ZeroDivisionError
    return done


def never(epoch: int) -> bool:
    """Save no checkpoint."""
    return False


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


def test_a_lost_store_never_stops_the_training(
    store: Store, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the store every unit is done, and the log says so once."""
    store.failing = True
    with in_task(store):
        assert train(4) == [0, 1, 2, 3]
    assert caplog.text.count("goes on without the task state store") == 1


def test_a_checkpoint_that_could_not_be_read_is_not_overwritten_at_once(store: Store, meter: Meter) -> None:
    """After a failed read nothing is written until there is something new to say."""
    store.values[PROGRESS_KEY] = before = json.dumps({"v": 1, "checkpoint": "/precious"})
    store.failing = True
    with in_task(store), training_run(epochs=2):
        store.failing = False
        assert store.values[PROGRESS_KEY] == before


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


@pytest.mark.parametrize("epochs", [0, -1, True, 1.5, "90"])
def test_a_wrong_number_of_epochs_is_refused(epochs: Any) -> None:
    """The argument is named, with what is allowed."""
    with pytest.raises(ValueError, match=r"^epochs: "):
        training_run(epochs=epochs)


@pytest.mark.parametrize("unit", ["", " ", 3])
def test_a_unit_needs_a_name(unit: Any) -> None:
    """The argument is named, with what is allowed."""
    with pytest.raises(ValueError, match=r"^unit: "):
        training_run(epochs=1, unit=unit)
