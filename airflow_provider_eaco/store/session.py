"""Transactions of the store: one short session each, on the database's clock, with failures by their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from sqlalchemy import Double, Select, extract, func, inspect, literal, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.sql.schema import Table

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.ports import Clock

SessionFactory = Callable[[], Session]
SUPPORTED = ("sqlite", "postgresql")
"""The databases that the store can use, by their SQLAlchemy names."""

# Classes of PostgreSQL's SQLSTATE that mean our tables are not there, or not in the shape of this version.
_NO_TABLE = frozenset({"42P01", "42703", "3F000"})
# Serialisation failure and deadlock: somebody else changed the same rows at the same time.
_RACE = frozenset({"40001", "40P01"})
_HINT = "; run `airflow db migrate`, which creates and upgrades the provider's tables"


class ConcurrentChangeError(StoreUnavailableError):
    """Another transaction changed the same rows at the same time; nothing has changed, try again."""


class Database:
    """Opens the store's transactions.

    :param sessions: makes a new, unscoped session: Airflow's ``settings.NonScopedSession``, never its
        thread-local ``settings.Session``, whose transaction belongs to the scheduler.
    :param clock: judges instead of the database's own clock; for recorded days and tests.
    """

    def __init__(self, sessions: SessionFactory, clock: Clock | None = None) -> None:
        self._sessions = sessions
        self._clock = clock
        self._seen: set[str] = set()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection whose queries all see one state of the database.

        :raises StoreUnavailableError: if the database or the tables are out of reach.
        """
        with named_errors(), self._sessions() as session:
            if _dialect_of(session) == "sqlite":
                connection = session.connection()
                _begin_sqlite(connection, "BEGIN")
            else:
                connection = session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield connection
            session.rollback()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection that is committed at the end and rolled back on any exception.

        :raises StoreUnavailableError: if the database or the tables are out of reach.
        """
        with named_errors(), self._sessions() as session:
            _dialect_of(session)
            connection = session.connection()
            _begin_sqlite(connection, "BEGIN IMMEDIATE")
            yield connection
            session.commit()

    def now_s(self, connection: Connection) -> float:
        """Return the present instant: the handed-in clock's, else the database's."""
        return database_now_s(connection) if self._clock is None else self._clock.now_s()

    def has(self, connection: Connection, table: Table) -> bool:
        """Tell whether the table is there; one that was there once is not looked for again."""
        if table.name not in self._seen and inspect(connection).has_table(table.name):
            self._seen.add(table.name)
        return table.name in self._seen


class DatabaseClock:
    """The clock of the database, which is one for all machines. Seconds since the epoch."""

    def __init__(self, sessions: SessionFactory) -> None:
        self._database = Database(sessions)

    def now_s(self) -> float:
        """Return the database's present instant.

        :raises StoreUnavailableError: if the database is out of reach.
        """
        with self._database.reading() as connection:
            return database_now_s(connection)


def database_now_s(connection: Connection) -> float:
    """Return the instant at which the database runs this query, not the one its transaction began at."""
    return cast("float", connection.execute(_now_query(connection.dialect)).scalar_one())


def _now_query(dialect: Dialect) -> Select[tuple[float]]:
    if dialect.name == "sqlite":
        # Whole seconds and milliseconds apart: julianday() carries only about 0.04 ms, %s no fraction.
        whole, fraction = func.strftime("%s", "now"), func.substr(func.strftime("%f", "now"), 3)
        return select(sql_cast(whole, Double) + sql_cast(literal("0") + fraction, Double))
    return select(sql_cast(extract("epoch", func.clock_timestamp()), Double))


def upsert(connection: Connection, table: Table) -> postgresql.Insert:
    """Return an INSERT of the database's own dialect, which knows ``ON CONFLICT``; both write it alike."""
    return upsert_in(connection.dialect.name, table)


def upsert_in(dialect_name: str, table: Table) -> postgresql.Insert:
    """Return the INSERT of :func:`upsert` for statements that are made once, before there is a connection."""
    if dialect_name == "sqlite":
        return cast("postgresql.Insert", sqlite.insert(table))
    return postgresql.insert(table)


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn what the driver says when the database is out of reach into :class:`StoreUnavailableError`.

    A serialisation failure or deadlock is a :class:`ConcurrentChangeError`. Broken statements stay what they
    are: those are our bugs.
    """
    try:
        yield
    except PoolTimeoutError as error:
        raise StoreUnavailableError(f"no database connection is free: {error}") from error
    except DBAPIError as error:
        named = _named(error)
        if named is None:
            raise
        raise named from error


def _named(error: DBAPIError) -> Exception | None:
    cause = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    state = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)
    if state in _RACE:
        return ConcurrentChangeError(f"another transaction changed the same rows: {cause}")
    if state in _NO_TABLE or cause.startswith(("no such table", "no such column", "table eaco_")):
        return StoreUnavailableError(f"the provider's tables are missing or old: {cause}{_HINT}")
    if isinstance(error, DataError | IntegrityError | NotSupportedError | ProgrammingError):
        return None
    return StoreUnavailableError(f"the database cannot be used now: {cause}")


@contextmanager
def handed_in(session: Session) -> Iterator[Connection]:
    """Give the connection of somebody else's session: nothing is committed, flushed or begun for them.

    A failure inside leaves their transaction usable. On SQLite a failed statement does not hurt it anyway,
    and a savepoint there would commit when it is released, if nothing had been written before.
    """
    with named_errors():
        dialect = _dialect_of(session)
        connection = session.connection()
        if dialect == "sqlite":
            yield connection
        else:
            with connection.begin_nested():
                yield connection


def _dialect_of(session: Session) -> str:
    name = session.get_bind().dialect.name
    if name not in SUPPORTED:
        raise StoreUnavailableError(
            f"the provider keeps its tables in {' or '.join(SUPPORTED)}, not in {name}"
        )
    return name


def _begin_sqlite(connection: Connection, statement: str) -> None:
    # Python's driver begins by itself only before a write, and then with a lock that cannot always be raised:
    # a reader would see two states, and a check before a write could be overtaken.
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.dbapi_connection
    if not getattr(driver, "in_transaction", False):
        connection.exec_driver_sql(statement)
