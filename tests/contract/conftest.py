"""One PostgreSQL for all contract tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import schema
from tests.databases import postgres_server


@pytest.fixture(scope="session")
def postgres_tables() -> Iterator[Engine]:
    """An engine on a PostgreSQL of this session that has the provider's tables."""
    with postgres_server() as url:
        engine = sa.create_engine(url, pool_size=60)
        schema.metadata.create_all(engine)
        yield engine
        engine.dispose()
