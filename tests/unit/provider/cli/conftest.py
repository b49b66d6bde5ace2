"""Airflow's command line in this process, on a database of its own that has Airflow's tables and ours."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.provider.wiring import open_store, present_pools
from airflow_provider_eaco.store import schema
from tests.databases import sqlite_engine
from tests.unit.provider.cli.rig import OWNER, Cli, Cluster, Outcome, QueueRoute, set_pool


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with all tables, made once; a test gets a copy."""
    from airflow.models import import_all_models
    from airflow.models.base import Base

    path = tmp_path_factory.mktemp("cli") / "template.db"
    engine = sqlite_engine(path)
    import_all_models()
    Base.metadata.create_all(engine)
    schema.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def engine(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Airflow's settings on a fresh copy of the template."""
    from airflow import settings

    path = tmp_path / "airflow.db"
    shutil.copy(template, path)
    made = sqlite_engine(path)
    sessions = sessionmaker(made, class_=Session, expire_on_commit=False)
    monkeypatch.setattr(settings, "engine", made)
    monkeypatch.setattr(settings, "NonScopedSession", sessions)
    monkeypatch.setattr(settings, "Session", scoped_session(sessions))
    load_settings.cache_clear()
    yield made
    made.dispose()
    load_settings.cache_clear()


@pytest.fixture
def cli(engine: Engine, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs ``airflow eaco WORDS`` through Airflow's own parser."""
    from airflow.cli.cli_parser import get_parser

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code, message = 0, ""
        args = get_parser().parse_args(["eaco", *words])
        try:
            args.func(args)
        except SystemExit as stop:
            # What the interpreter makes of it: text goes to standard error, with exit code 1.
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            message = "" if isinstance(stop.code, int | None) else f"{stop.code}\n"
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err + message)

    return run


@pytest.fixture
def cluster(engine: Engine) -> Cluster:
    """An Airflow with the pool ``eaco`` of 100 slots and no GPU worker yet."""
    set_pool("eaco", 100)
    store = open_store()
    loop = AdmissionLoop(
        store.ledger, store.profiles, store.decisions, store.planner, pools=present_pools, owner=OWNER
    )
    return Cluster(store, loop)


@pytest.fixture
def queue_route(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> QueueRoute:
    """The API's queue over the cluster's tables, as a user sees it who may see everything."""
    with warnings.catch_warnings():
        # They would like another HTTP client than the one that Airflow brings.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.core_api.security import get_user
        from fastapi import FastAPI
        from fastapi.testclient import TestClient

        from airflow_provider_eaco.provider.api import jobs_shown, queue

    monkeypatch.setattr(queue, "the_store", lambda: cluster.store)
    monkeypatch.setattr(jobs_shown, "permitted_dags", lambda user, dag_ids, method: set(dag_ids))
    app = FastAPI()
    app.include_router(queue.router)
    app.dependency_overrides[get_user] = lambda: None
    for each in queue.router.dependencies:
        app.dependency_overrides[each.dependency] = lambda: None
    client = TestClient(app)

    def items() -> list[dict[str, Any]]:
        answer = client.get("/queue")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    return items
