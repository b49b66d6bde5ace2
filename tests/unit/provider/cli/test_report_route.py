"""``/report`` of the API says what ``airflow eaco report`` says, and names no DAG that may not be read."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_eaco.provider.settings import load_settings
from tests.unit.provider.cli.rig import Cli, Cluster
from tests.unit.provider.cli.test_report import used


@pytest.fixture
def readable() -> set[str]:
    """The DAGs that the user may read."""
    return {"d.x"}


@pytest.fixture
def client(cluster: Cluster, readable: set[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The route over the cluster's tables, for a user who may see the cluster."""
    with warnings.catch_warnings():
        # They would like another HTTP client than the one that Airflow brings.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.core_api.security import get_user
        from fastapi import FastAPI
        from fastapi.testclient import TestClient

        from airflow_provider_eaco.provider.api import energy, jobs_shown, report
        from airflow_provider_eaco.provider.api.errors import install_handlers

    for part in (energy, report):
        monkeypatch.setattr(part, "the_store", lambda: cluster.store)
    monkeypatch.setattr(jobs_shown, "permitted_dags", lambda user, dag_ids, method: readable & set(dag_ids))
    app = FastAPI()
    install_handlers(app)
    app.include_router(energy.router)
    app.include_router(report.router)
    app.dependency_overrides[get_user] = lambda: None
    for each in (*energy.router.dependencies, *report.router.dependencies):
        app.dependency_overrides[each.dependency] = lambda: None
    yield TestClient(app)
    load_settings.cache_clear()


def test_the_answer_has_numbers_and_null(cluster: Cluster, client: Any) -> None:
    """Joules and seconds are numbers; cost without a price is null; the present month is told if none is
    named.
    """
    month = used(cluster)
    told = client.get("/report").json()
    assert (told["month"], told["months"][0]["devices_j"], told["months"][0]["cost"]) == (month, 5.4e6, None)
    (dag,) = (line for line in told["lines"] if line["group"] == "dag")
    assert (dag["name"], dag["energy_j"], dag["gpu_h"], dag["partial"]) == ("d.x", 3.6e6, 1.0, False)
    assert client.get("/report", params={"month": month}).json()["lines"] == told["lines"]
    assert client.get("/report?month=all").json()["lines"] == told["lines"]
    empty = client.get("/report?month=1999-01").json()
    assert (empty["months"], empty["lines"]) == ([], [])


def test_cost_follows_the_site_s_price(
    cluster: Cluster, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With price and factor the answer has cost and CO2e, and says by which."""
    used(cluster)
    monkeypatch.setenv("AIRFLOW__EACO__PRICE_PER_KWH", "0.5")
    monkeypatch.setenv("AIRFLOW__EACO__CARBON_G_PER_KWH", "100")
    load_settings.cache_clear()
    told = client.get("/report").json()
    assert (told["price_per_kwh"], told["carbon_g_per_kwh"]) == (0.5, 100.0)
    assert (told["months"][0]["cost"], told["months"][0]["co2e_g"]) == (0.75, 150.0)


@pytest.mark.parametrize("form", ["csv", "html"])
def test_a_file_is_what_the_command_writes(form: str, cluster: Cluster, cli: Cli, client: Any) -> None:
    """The same text under a file name that has the month."""
    month = used(cluster)
    answer = client.get("/report/export", params={"format": form})
    assert answer.text == cli("report", "-o", form).out
    assert answer.headers["content-type"] == f"text/{form}; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="energy-{month}.{form}"'
    whole = client.get("/report/export", params={"format": form, "month": "all"})
    assert whole.headers["content-disposition"] == f'attachment; filename="energy-all.{form}"'


@pytest.mark.parametrize("path", ["/report", "/report/export"])
@pytest.mark.parametrize("month", ["December", "2026-13", "2026-1", "", '2026-12"\n'])
def test_a_bad_month_is_refused_by_its_name(path: str, month: str, client: Any) -> None:
    """400 in the API's form, which names the month and what is allowed."""
    answer = client.get(path, params={"month": month})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "code": "invalid_request",
            "message": f"month: {month!r} must be a month such as 2026-12, or all",
        }
    }


def test_names_of_dags_that_are_not_to_be_read_are_in_no_form(
    cluster: Cluster, client: Any, readable: set[str]
) -> None:
    """Of a DAG that the user may not read the energy is there, and neither DAG, pool, team nor family."""
    used(cluster)
    named = client.get("/report").json()
    readable.clear()
    hidden = client.get("/report").json()
    assert hidden["months"] == named["months"]
    assert {line["name"] for line in hidden["lines"]} == {"a task of a DAG that you may not read"}
    texts = [client.get("/report/export", params={"format": form}).text for form in ("csv", "html")]
    assert all("d.x" not in text for text in (*texts, json.dumps(hidden)))
    rows = list(csv.DictReader(io.StringIO(texts[0])))
    assert {float(row["energy_j"]) for row in rows if row["group"] == "dag"} == {3.6e6}


@pytest.mark.parametrize(
    ("pool", "team"),
    [
        ({}, None),
        ({"fair_share": {"by": "dag"}}, None),
        ({"rules": ["fair_share"]}, "eaco"),
        ({"rules": ["fair_share"], "fair_share": {"by": "dag"}}, "d.x"),
        ({"rules": ["fair_share"], "fair_share": {"by": "bundle"}}, "(no bundle)"),
    ],
)
def test_the_page_and_the_report_name_the_same_team(
    pool: dict[str, object],
    team: str | None,
    cluster: Cluster,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What fair_share goes by where the pool has it, else the bundle, which nobody knows here."""
    used(cluster)
    monkeypatch.setenv("AIRFLOW__EACO__POOLS", json.dumps({"eaco": pool}))
    load_settings.cache_clear()
    (of_page,) = client.get("/energy").json()["by_team"]
    (of_report,) = (line for line in client.get("/report").json()["lines"] if line["group"] == "team")
    assert (of_page["name"], of_report["name"]) == (team, team or "unknown")


def test_what_has_not_changed_is_not_sent_again(cluster: Cluster, client: Any) -> None:
    """A browser that has the report already gets an empty 304."""
    used(cluster)
    tag = client.get("/report").headers["ETag"]
    assert client.get("/report", headers={"If-None-Match": tag}).status_code == 304
