"""What the executor reads of the task state store, in which a task can write anything."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
from sqlalchemy.orm import Session

from airflow_provider_eaco.provider.instructions import read_progress


class WorkloadKey(NamedTuple):
    """What the executor calls a task by."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="broken"),
        pytest.param("[1]", id="list"),
        pytest.param("[" * 100_000, id="nested-too-deep"),
        pytest.param('{"units_done": ' + "9" * 5000 + "}", id="number-too-long"),
        pytest.param(None, id="absent"),
    ],
)
def test_c23_what_cannot_be_read_counts_as_not_reported(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """One task's nonsense is as good as nothing, and the others' progress is read."""
    stored = {"bad": text, "good": '{"units_done": 1}'}
    backend = SimpleNamespace(get=lambda scope, name, session: stored[scope.task_id])
    monkeypatch.setattr("airflow.state.get_state_backend", lambda: backend)
    keys = [WorkloadKey(dag_id="d", run_id="r", task_id=task, map_index=-1) for task in stored]
    assert read_progress(Session(), keys) == {keys[1]: {"units_done": 1}}
