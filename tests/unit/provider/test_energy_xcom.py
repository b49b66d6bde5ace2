"""What a training has used so far, as its task pushes it to XCom."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.execution_time.context import set_current_context

from airflow_provider_eaco import training_run
from airflow_provider_eaco.provider import unit_channel
from airflow_provider_eaco.provider.progress_record import ENERGY_KEY
from tests.unit.provider.training_rig import Meter, Store, granted

RECORD = {"energy_j": 5000.0, "method": "counter", "mean_w": 100.0}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Meter:
    return granted(monkeypatch)


def train(store: Store, epochs: int = 2, *, fails: bool = False) -> list[tuple[str, Any]]:
    """Run a training in a task; return what it pushed."""
    pushed: list[tuple[str, Any]] = []

    def push(key: str, value: Any) -> None:
        if fails:
            raise ConnectionError("the API server is away")
        pushed.append((key, value))

    ti = SimpleNamespace(id=uuid4(), try_number=1, max_tries=0, xcom_push=push)
    context: Any = {"ti": ti, "task": SimpleNamespace(retries=0), "task_state_store": store}
    with set_current_context(context), training_run(epochs=epochs) as run:
        for _ in run.epochs():
            run.report()
    return pushed


def told(token: int) -> Store:
    return Store({ENERGY_KEY: json.dumps({"token": token, "record": RECORD})})


def test_the_end_of_a_training_pushes_its_energy(device: Meter) -> None:
    """Under the key ``eaco_energy``, as the executor said it last, marked as not final."""
    assert train(told(7)) == [("eaco_energy", {**RECORD, "final": False})]


def test_reports_push_it_now_and_then(device: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every report, since each push is a call of Airflow's API."""
    monkeypatch.setattr(unit_channel, "ENERGY_INTERVAL_S", 0.0)
    assert len(train(told(7), epochs=3)) == 4


@pytest.mark.parametrize("store", [Store(), told(6), Store({ENERGY_KEY: '"broken"'})])
def test_what_is_not_known_is_not_pushed(device: Meter, store: Store) -> None:
    """Nothing said yet, what was said to another lease, and what cannot be read push nothing."""
    assert train(store) == []


def test_a_push_that_fails_costs_no_training(device: Meter) -> None:
    """The training ends as it would."""
    assert train(told(7), fails=True) == []
