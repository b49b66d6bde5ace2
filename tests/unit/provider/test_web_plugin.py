"""The plugin that Airflow loads: its applications and the places where its pages show."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_eaco.provider import plugin
from airflow_provider_eaco.provider.plugin import APPS, EacoPlugin


def test_an_application_that_cannot_be_built_hurts_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails is logged and left out, the others are there: Airflow's server starts all the same."""

    def broken() -> object:
        raise RuntimeError("no configuration")

    monkeypatch.setattr(plugin, "APPS", (("/eaco/broken", "broken", broken), ("/eaco", "fine", object)))
    found = EacoPlugin().fastapi_apps
    assert [each["url_prefix"] for each in found] == ["/eaco"]
    assert "/eaco/broken" in caplog.text


def test_no_prefix_hides_another() -> None:
    """The server takes the first prefix that fits, so a longer one stands before one that it begins with."""
    prefixes = [prefix for prefix, _, _ in APPS]
    for place, prefix in enumerate(prefixes):
        assert not any(later.startswith(f"{prefix}/") for later in prefixes[place:])


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        pytest.param("", "", id="none"),
        pytest.param("http://airflow.example", "", id="without a path"),
        pytest.param("https://example.org/team/airflow/", "/team/airflow", id="behind a path"),
    ],
)
def test_views_lead_to_our_own_server(base_url: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every view lies below the server's own path, and those of a task or run hand its names on."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    views = {view["destination"]: view for view in EacoPlugin().external_views}
    assert set(views) == {"nav", "dag_run", "task_instance"}
    assert views["nav"]["href"] == f"{root}/eaco/"
    assert len({view["url_route"] for view in views.values()}) == 3
    for destination, names in (
        ("dag_run", {"dag_id", "run_id"}),
        ("task_instance", {"dag_id", "run_id", "task_id", "map_index"}),
    ):
        parts = urlsplit(views[destination]["href"])
        assert parts.path.startswith(f"{root}/eaco/")
        assert set(parse_qs(parts.query)) == names
