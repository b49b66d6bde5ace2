"""The API for nodes over a real store, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import schema
from tests.databases import empty, postgres_server, sqlite_store
from tests.integration.node_api.gate import Gate
from tests.integration.node_api.sampled import Sampled

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="package")
def postgres_tables() -> Iterator[Engine]:
    """A PostgreSQL with the provider's tables."""
    with postgres_server() as url:
        engine = sa.create_engine(url)
        schema.metadata.create_all(engine)
        yield engine
        engine.dispose()


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a database that has the provider's tables and no rows."""
    if request.param == "postgres":
        tables: Engine = request.getfixturevalue("postgres_tables")
        empty(tables)
        yield tables
        return
    engine = sqlite_store(tmp_path / "store.db")
    yield engine
    engine.dispose()


@pytest.fixture
def gate(engine: Engine) -> Iterator[Gate]:
    """The API with two nodes that have a credential, and a lease on one of them that was sent there."""
    with Gate(engine) as made:
        yield made


@pytest.fixture
def sampled(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampled:
    """A machine with two GPUs and a sampler, and the API that it tells."""
    return Sampled(engine, tmp_path, monkeypatch)
