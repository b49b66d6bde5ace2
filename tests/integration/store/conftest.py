"""Databases for the store's tests.

``engine`` has the provider's tables and no rows, ``no_tables`` has nothing, and ``own_engine`` is an empty
database that a test may do anything to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.session import Database
from tests.databases import database_on, empty, postgres_server, sqlite_engine, sqlite_store

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL that runs for this session; its first database stays empty."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_tables(postgres_url: str) -> Iterator[Engine]:
    """An engine, with room for 50 threads, on the session's database with tables."""
    with _database(postgres_url) as engine:
        schema.metadata.create_all(engine)
        yield engine


@pytest.fixture
def postgres_engine(postgres_tables: Engine) -> Engine:
    """The session's database with tables, without rows."""
    empty(postgres_tables)
    return postgres_tables


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a database that has the provider's tables and no rows."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_engine")
        return
    engine = sqlite_store(tmp_path / "store.db")
    yield engine
    engine.dispose()


@pytest.fixture(params=BOTH)
def no_tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a database without any table, to be left as it is."""
    url = f"sqlite:///{tmp_path / 'none.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture(params=BOTH)
def own_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on an empty database of the test's own."""
    if request.param == "postgres":
        with _database(request.getfixturevalue("postgres_url")) as engine:
            yield engine
        return
    engine = sqlite_engine(tmp_path / "store.db")
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_own(postgres_url: str) -> Iterator[Engine]:
    """An engine on an empty PostgreSQL database of the test's own."""
    with _database(postgres_url) as engine:
        yield engine


@pytest.fixture
def database(engine: Engine) -> Database:
    """The store's database, on the database's own clock."""
    return database_on(engine)


@contextmanager
def _database(url: str) -> Iterator[Engine]:
    name = f"store_{next(_NUMBERS)}"
    server = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine = sa.create_engine(sa.make_url(url).set(database=name), pool_size=55)
    yield engine
    engine.dispose()
    with server.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()
