"""A task's process as ``training_run`` sees it: Airflow's task state store, a device, and the context."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_eaco import training_run
from airflow_provider_eaco.engine.progress import TaskInstruction
from airflow_provider_eaco.provider import unit_channel
from airflow_provider_eaco.provider.progress_record import INSTRUCTION_KEY, PROGRESS_KEY


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


def granted(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """Be a task that holds lease 7 on a device; return the device."""
    device = Meter()
    monkeypatch.setattr(unit_channel, "_meter_of", lambda _environ: device)
    monkeypatch.setenv("EACO_LEASE_TOKEN", "7")
    return device
