"""Airflow's rows of DAG runs, task instances, pools and schedulers, as few columns as they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from airflow.jobs.job import Job
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

NOW = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)


class AirflowRows:
    """Writes rows of Airflow's and reads them back."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session as :func:`.compat.own_session` does, committed at the end."""
        with Session(self.engine) as session:
            yield session
            session.commit()

    def run(
        self, run_id: str = "r1", state: str = "running", run_type: str = "manual", **columns: Any
    ) -> None:
        """Add a run of DAG ``dag`` that is due one hour before now."""
        row = {
            "dag_id": "dag",
            "run_id": run_id,
            "run_type": run_type,
            "state": state,
            "run_after": NOW - timedelta(hours=1),
            "log_template_id": None,
            **columns,
        }
        self._insert(DagRun.__table__, row)

    def task(self, task_id: str, run_id: str = "r1", **columns: Any) -> str:
        """Add a task instance and return its id."""
        job_id = uuid4()
        row = {
            "id": job_id,
            "dag_id": "dag",
            "task_id": task_id,
            "run_id": run_id,
            "map_index": -1,
            "state": "queued",
            "pool": "eaco",
            "pool_slots": 1,
            "priority_weight": 1,
            "try_number": 1,
            "queued_dttm": NOW - timedelta(minutes=10),
            **columns,
        }
        self._insert(TaskInstance.__table__, row)
        return str(job_id)

    def pool(self, name: str, slots: int) -> None:
        """Add an Airflow pool, as a user does."""
        row = {"pool": name, "slots": slots, "description": "", "include_deferred": False}
        self._insert(Pool.__table__, row)

    def scheduler(self, silent_s: float, state: str = "running", job_type: str = "SchedulerJob") -> str:
        """Add a job of Airflow's that reported ``silent_s`` before now; return its id."""
        row = {"job_type": job_type, "state": state, "latest_heartbeat": NOW - timedelta(seconds=silent_s)}
        with self.engine.begin() as connection:
            return str(connection.execute(sa.insert(Job.__table__).values(row)).inserted_primary_key[0])

    def queued_at(self, task_id: str) -> datetime:
        """Return the queue time of a task."""
        table = TaskInstance.__table__
        with self.engine.connect() as connection:
            value = connection.scalar(sa.select(table.c.queued_dttm).where(table.c.task_id == task_id))
        assert isinstance(value, datetime)
        return value

    def slots(self, name: str) -> int | None:
        """Return the size of an Airflow pool, ``None`` without one."""
        table = Pool.__table__
        with self.engine.connect() as connection:
            return connection.scalar(sa.select(table.c.slots).where(table.c.pool == name))

    def set(self, table: Any, values: dict[str, Any], **where: Any) -> None:
        """Change rows, as Airflow or a user does."""
        conditions = [table.c[name] == value for name, value in where.items()]
        with self.engine.begin() as connection:
            connection.execute(sa.update(table).where(*conditions).values(values))

    @contextmanager
    def writes_to(self, table: str) -> Iterator[list[str]]:
        """Collect the statements that change this table."""
        found: list[str] = []

        def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if statement.split(maxsplit=1)[0] in {"INSERT", "UPDATE", "DELETE"} and table in statement:
                found.append(statement)

        sa.event.listen(self.engine, "before_cursor_execute", note)
        try:
            yield found
        finally:
            sa.event.remove(self.engine, "before_cursor_execute", note)

    def clear(self) -> None:
        with self.engine.begin() as connection:
            for model in (TaskInstance, DagRun, Pool, Job):
                connection.execute(sa.delete(model.__table__))

    def _insert(self, table: Any, row: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.insert(table).values(row))


def config_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return an executor config with this request, of JSON values only."""
    return {"eaco": json.loads(json.dumps(request))}
