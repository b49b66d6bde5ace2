"""What Airflow's own tables say of tasks, where ours do not: run ids, and the tries of a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_provider_eaco.provider.compat import own_session

# Below the number of variables that every supported database takes in one statement.
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class TaskTries:
    """The tries of one task instance: their job ids, the newest first, and Airflow's present state of it."""

    job_ids: tuple[str, ...]
    state: str | None


def runs_of(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the run id of every job whose task instance, present or past, Airflow still has."""
    wanted = [uuid for job_id in job_ids if (uuid := _uuid(job_id)) is not None]
    found: dict[str, str] = {}
    with own_session() as session:
        for start in range(0, len(wanted), _CHUNK):
            found |= _runs_of(session, wanted[start : start + _CHUNK])
    return found


def _runs_of(session: Session, ids: Sequence[UUID]) -> dict[str, str]:
    past, present = TaskInstanceHistory, TaskInstance
    rows = [
        *session.execute(select(past.task_instance_id, past.run_id).where(past.task_instance_id.in_(ids))),
        *session.execute(select(present.id, present.run_id).where(present.id.in_(ids))),
    ]
    return {str(job_id): run_id for job_id, run_id in rows}


def tries_of(dag_id: str, run_id: str, task_id: str, map_index: int | None) -> list[TaskTries]:
    """Return the tries of the task in this run, one entry per mapped task where no index is given."""
    with own_session() as session:
        present = session.execute(
            select(TaskInstance.id, TaskInstance.map_index, TaskInstance.state)
            .where(
                TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id
            )
            .order_by(TaskInstance.map_index)
        ).all()
        past = session.execute(
            select(TaskInstanceHistory.task_instance_id, TaskInstanceHistory.map_index)
            .where(
                TaskInstanceHistory.dag_id == dag_id,
                TaskInstanceHistory.run_id == run_id,
                TaskInstanceHistory.task_id == task_id,
            )
            .order_by(TaskInstanceHistory.try_number.desc())
        ).all()
    return [
        TaskTries(
            (str(row.id), *(str(old.task_instance_id) for old in past if old.map_index == row.map_index)),
            None if row.state is None else str(row.state),
        )
        for row in present
        if map_index is None or row.map_index == map_index
    ]


def job_ids_of_run(
    dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = None
) -> list[str]:
    """Return the job ids of all tries of a DAG run's tasks, or of this task alone."""
    found: list[str] = []
    with own_session() as session:
        for table, job_id in (
            (TaskInstance, TaskInstance.id),
            (TaskInstanceHistory, TaskInstanceHistory.task_instance_id),
        ):
            query = select(job_id).where(table.dag_id == dag_id, table.run_id == run_id)
            if task_id is not None:
                query = query.where(table.task_id == task_id)
            if map_index is not None:
                query = query.where(table.map_index == map_index)
            found += [str(each) for each in session.scalars(query)]
    return found


def last_told(dag_id: str, run_id: str | None, task_id: str, map_index: int | None) -> str | None:
    """Return what the audit log has last from us about the task in a run, or in any; of a mapped one without
    an index about any of its tasks.

    It is all there is about a task that is held while our configuration cannot be used, or whose request
    nobody can read: then nothing of ours is stored.
    """
    query = select(Log.event, Log.extra).where(
        Log.dag_id == dag_id, Log.task_id == task_id, Log.event.like("eaco %")
    )
    if run_id is not None:
        query = query.where(Log.run_id == run_id)
    if map_index is not None:
        query = query.where(Log.map_index == map_index)
    with own_session() as session:
        row = session.execute(query.order_by(Log.id.desc()).limit(1)).first()
    return None if row is None else f"{row.event}: {row.extra}"


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
