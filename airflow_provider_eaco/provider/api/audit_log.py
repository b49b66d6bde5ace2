"""Changes by users, in Airflow's audit log: one line before each, so that none goes without."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance

from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.compat import own_session


def note_change(user: Any, event: str, what: str, record: JobRecord | None = None) -> None:
    """Write who is about to change what, beside the task instance if it is about one; committed at once."""
    of_task: dict[str, Any] = {}
    if record is not None:
        order = record.job.order
        of_task = {"dag_id": order.dag_id, "task_id": order.task_id, "map_index": order.map_index}
    with own_session() as session:
        instance = session.get(TaskInstance, _uuid(record.job.job_id)) if record is not None else None
        if instance is not None:
            of_task |= {"run_id": instance.run_id, "try_number": instance.try_number}
        name = user.get_name()
        session.add(Log(event, owner=name, owner_display_name=name, extra=what, **of_task))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
