"""Databases for the store's tests: without tables (``bare_engine``) and with them (``engine``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.session import Database
from tests.databases import database_on, postgres_server, sqlite_engine

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL that runs for this session."""
    with postgres_server() as url:
        yield url


@pytest.fixture(params=BOTH)
def bare_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on an empty database of its own."""
    if request.param == "sqlite":
        engine = sqlite_engine(tmp_path / "store.db")
    else:
        engine = fresh_postgres(request.getfixturevalue("postgres_url"))
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_engine(postgres_url: str) -> Iterator[Engine]:
    """An engine on a PostgreSQL database of its own that has the provider's tables."""
    engine = fresh_postgres(postgres_url)
    schema.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(bare_engine: Engine) -> Engine:
    """An engine on a database of its own that has the provider's tables."""
    schema.metadata.create_all(bare_engine)
    return bare_engine


@pytest.fixture
def database(engine: Engine) -> Database:
    """The store's database, on the database's own clock."""
    return database_on(engine)


def fresh_postgres(url: str) -> Engine:
    """Return an engine with room for 50 threads on a new, empty database of this server."""
    name = f"store_{next(_NUMBERS)}"
    server = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    server.dispose()
    return sa.create_engine(sa.make_url(url).set(database=name), pool_size=55)
