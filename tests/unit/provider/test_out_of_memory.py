"""C38: a task that runs out of a shared GPU's memory leaves in time, comes back, and runs alone."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from airflow_provider_eaco import training_run
from airflow_provider_eaco.engine.progress import TaskInstruction
from airflow_provider_eaco.provider import training
from airflow_provider_eaco.provider.decorators import EacoDecoratedOperator
from airflow_provider_eaco.provider.out_of_memory import MAX_RELAUNCHES, is_out_of_memory
from airflow_provider_eaco.provider.progress_record import INSTRUCTION_KEY, PROGRESS_KEY
from airflow_provider_eaco.provider.report_socket import SOCKET_VARIABLE, SocketChannel
from tests.unit.provider.training_rig import Meter, Store, granted, in_task


class OutOfMemoryError(RuntimeError):
    """As PyTorch names its own."""


CUDA = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ...")


def caused(by: Exception) -> Exception:
    error = ValueError("the epoch failed")
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "says_so"),
    [
        (CUDA, True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17 bytes"), True),
        (caused(CUDA), True),
        (OutOfMemoryError("of patience"), False),
        (MemoryError("out of memory"), False),
        (RuntimeError("the reader ran out of memory cards"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_c38_it_is_recognised_by_what_frameworks_say(error: Exception, says_so: bool) -> None:
    """By text or by class and text, also as the cause of another error; the machine's memory is another."""
    assert is_out_of_memory(error) is says_so


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return granted(monkeypatch)


def store_of(residents: int, **progress: Any) -> Store:
    """Return what the task finds: how many hold its GPUs, and what it left the last time."""
    told = TaskInstruction("job", 7, 3, False, residents).as_json()
    values = {INSTRUCTION_KEY: json.dumps(told)}
    if progress:
        values[PROGRESS_KEY] = json.dumps(
            {"v": 1, "try_number": 1, "unit": "epoch", "units_done": 0, **progress}
        )
    return Store(values)


def train(store: Store, error: Exception, *, try_number: int = 1, max_tries: int = 2) -> None:
    with (
        in_task(store, try_number=try_number, max_tries=max_tries),
        training_run(epochs=4) as run,
    ):
        for epoch in run.epochs():
            run.report(checkpoint=f"/ckpt/{epoch}")
            raise error


def test_c38_beside_others_the_task_leaves_by_reschedule(device: Meter) -> None:
    """Its checkpoint stays, its retries are untouched, and the store says why it left."""
    store = store_of(residents=2)
    with pytest.raises(AirflowRescheduleException):
        train(store, CUDA)
    assert (store.progress["out_of_memory"], store.progress["checkpoint"]) == (1, "/ckpt/0")


@pytest.mark.parametrize(
    ("store", "error"),
    [
        (store_of(residents=1), CUDA),
        (store_of(residents=2), ZeroDivisionError()),
        (store_of(residents=2, out_of_memory=MAX_RELAUNCHES), CUDA),
        (Store(), CUDA),
    ],
    ids=["alone", "another error", "often enough", "nothing is told"],
)
def test_c38_otherwise_it_fails_as_it_would(store: Store, error: Exception, device: Meter) -> None:
    """Alone it would fail again, and a task that keeps failing fails at last."""
    with pytest.raises(type(error)):
        train(store, error)


def test_c38_a_retry_counts_anew(device: Meter) -> None:
    """The bound is one try's."""
    store = store_of(residents=2, out_of_memory=MAX_RELAUNCHES)
    with pytest.raises(AirflowRescheduleException):
        train(store, CUDA, try_number=2)
    assert store.progress["out_of_memory"] == 1


def test_c38_what_cannot_be_noted_is_not_undone(device: Meter) -> None:
    """Without the store nobody would know that it has to run alone."""
    store = store_of(residents=2)

    def away(key: str, value: Any) -> None:
        raise ConnectionError("away")

    def fail() -> None:
        with in_task(store), training_run(epochs=1) as run:
            for _ in run.epochs():
                store.set = away  # type: ignore[method-assign] # the API server goes away now
                raise CUDA

    with pytest.raises(OutOfMemoryError):
        fail()


def test_c38_a_task_without_a_training_run_leaves_too(device: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """``@task.eaco`` meets the error of a plain function; every other error passes."""
    monkeypatch.setattr(training, "_begun_in", set())

    def run_out() -> None:
        raise CUDA

    def divide() -> None:
        raise ZeroDivisionError

    store = store_of(residents=2)
    with in_task(store), pytest.raises(AirflowRescheduleException):
        EacoDecoratedOperator(task_id="t", python_callable=run_out).execute({})
    assert store.progress["out_of_memory"] == 1
    with in_task(store_of(residents=2)), pytest.raises(ZeroDivisionError):
        EacoDecoratedOperator(task_id="t", python_callable=divide).execute({})


def test_c38_a_child_process_that_runs_out_speaks_for_its_task(
    device: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank tells the process that holds the task, which then meets only its launcher's error."""
    store = store_of(residents=2)

    def fail() -> None:
        with in_task(store), training_run(epochs=1):
            child = SocketChannel.connect(os.environ[SOCKET_VARIABLE])
            assert child is not None
            child.leave_if_out_of_memory(CUDA)
            child.close()
            raise ChildProcessError("rank 0 exited with code 1")

    with pytest.raises(AirflowRescheduleException):
        fail()
    assert store.progress["out_of_memory"] == 1
