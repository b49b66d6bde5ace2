"""The executor's side of the task state store: what residents report, and what they are told (decision 3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_eaco.provider.progress_record import ENERGY_KEY, INSTRUCTION_KEY, PROGRESS_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def read_progress(session: Session, keys: Iterable[Any]) -> dict[Any, Mapping[str, Any]]:
    """Return the last progress of every task (by its key) that has reported any that can be read."""
    from airflow.state import get_state_backend

    backend = get_state_backend()
    found: dict[Any, Mapping[str, Any]] = {}
    for key in keys:
        text = backend.get(_scope(key), PROGRESS_KEY, session=session)
        value = None if text is None else _read(text)
        if value is not None:
            found[key] = value
    return found


def write_instruction(session: Session, key: Any, instruction: Mapping[str, Any]) -> None:
    """Store the instruction where the task will read it at its next unit boundary."""
    _write(session, key, INSTRUCTION_KEY, instruction)


def write_energy_note(session: Session, key: Any, token: int, record: Mapping[str, Any]) -> None:
    """Store what the holder of this lease has used so far, where the task will read it."""
    _write(session, key, ENERGY_KEY, {"token": token, "record": record})


def _write(session: Session, key: Any, name: str, value: Mapping[str, Any]) -> None:
    from airflow.state import get_state_backend

    get_state_backend().set(_scope(key), name, json.dumps(value), session=session)


def _scope(key: Any) -> Any:
    from airflow.state import TaskScope

    return TaskScope(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)


def _read(text: str) -> Mapping[str, Any] | None:
    # A task can write anything there; what cannot be read counts as not reported.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
