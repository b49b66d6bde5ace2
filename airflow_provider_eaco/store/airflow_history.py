"""What Airflow remembers of its tasks: when they were queued, ran and ended. Only read, never written.

Airflow's own tables are named here by the few columns that are asked for, so that nothing of Airflow is
imported. Our own table of jobs, where it exists, knows the GPUs and the family of what our provider ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    column,
    create_engine,
    func,
    inspect,
    literal,
    select,
    table,
    type_coerce,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.types import Text

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.store.columns import Instant
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.session import named_errors

# States in which a try has held its GPUs from start to end.
ENDED = ("success", "failed", "up_for_retry", "restarting")
_CURRENT, _EARLIER = "task_instance", "task_instance_history"
_COLUMNS = (
    "dag_id",
    "task_id",
    "pool",
    "pool_slots",
    "queue",
    "priority_weight",
    "state",
    "queued_dttm",
    "start_date",
    "end_date",
)
_IDS = {_CURRENT: "id", _EARLIER: "task_instance_id"}


@dataclass(frozen=True, slots=True)
class HistoricTask:
    """One try of a task that has ended; instants are seconds since the Unix epoch.

    ``gpus`` and ``family`` are ``None`` where our provider did not run it, ``queued_s`` where Airflow does
    not know. Where our provider ran it that is when it was first queued.
    """

    job_id: str
    dag_id: str
    task_id: str
    pool: str
    pool_slots: int
    queue: str
    priority: int
    queued_s: float | None
    started_s: float
    ended_s: float
    gpus: int | None
    family: str | None


def read_history(url: str) -> Sequence[HistoricTask]:
    """Return every try that has run to an end, earlier tries included, by its start.

    :param url: of Airflow's database, as SQLAlchemy writes it.
    :raises StoreUnavailableError: if the URL is none, the database is out of reach, or has no Airflow tables.
    """
    try:
        engine = create_engine(_synchronous(url))
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise StoreUnavailableError(f"the URL of the Airflow database cannot be used: {error}") from error
    try:
        with named_errors(), engine.connect() as connection:
            return _tasks(connection)
    finally:
        engine.dispose()


def _synchronous(url: str) -> str:
    """Return the URL with a driver that waits, also where Airflow's own setting names one that does not.

    :raises StoreUnavailableError: for a SQLite file that is not there, which connecting would make.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise StoreUnavailableError(f"there is no database file {parsed.database!r}")
    name = parsed.drivername.replace("+asyncpg", "").replace("+aiosqlite", "")
    return parsed.set(drivername=name).render_as_string(hide_password=False)


def _tasks(connection: Connection) -> list[HistoricTask]:
    names = set(inspect(connection).get_table_names())
    if _CURRENT not in names:
        raise StoreUnavailableError(f"the database has no table {_CURRENT!r}; is it Airflow's?")
    parts = [_tries(name) for name in (_CURRENT, _EARLIER) if name in names]
    tries = union_all(*parts).subquery("tries")
    known = job_table.name in names
    query: Select[Any] = select(
        tries,
        (job_table.c.gpus if known else literal(None)).label("gpus"),
        (job_table.c.family if known else literal(None)).label("family"),
        (job_table.c.queued_at if known else literal(None)).label("first_queued"),
    )
    if known:
        query = query.select_from(
            tries.outerjoin(job_table, func.replace(job_table.c.job_id, "-", "") == _dashless(tries.c.job_id))
        )
    rows = connection.execute(query.order_by(tries.c.start_date, tries.c.job_id))
    return [
        HistoricTask(
            job_id=_plain_id(row.job_id),
            dag_id=row.dag_id,
            task_id=row.task_id,
            pool=row.pool,
            pool_slots=row.pool_slots,
            queue=row.queue or "",
            priority=row.priority_weight or 0,
            # Of a task that the executor holds Airflow's own instant is renewed again and again.
            queued_s=row.queued_dttm if row.first_queued is None else row.first_queued,
            started_s=row.start_date,
            ended_s=row.end_date,
            gpus=row.gpus,
            family=row.family,
        )
        for row in rows
    ]


def _tries(name: str) -> Select[Any]:
    source = table(name, column(_IDS[name]), *(column(wanted) for wanted in _COLUMNS))
    return select(
        sql_cast(source.c[_IDS[name]], Text).label("job_id"),
        *(_typed(source.c[wanted]) for wanted in _COLUMNS if wanted != "state"),
    ).where(
        source.c.state.in_(ENDED),
        source.c.start_date.is_not(None),
        source.c.end_date.is_not(None),
    )


def _typed(wanted: ColumnElement[Any]) -> ColumnElement[Any]:
    if wanted.key in {"queued_dttm", "start_date", "end_date"}:
        return type_coerce(wanted, Instant()).label(wanted.key)
    return wanted


def _dashless(job_id: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.replace(job_id, "-", "")


def _plain_id(text: str) -> str:
    """Return a task instance's id with its dashes, which SQLite stores without."""
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" if len(text) == 32 else text
