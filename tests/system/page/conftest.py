"""One Airflow with four users of different roles and simulated nodes, for all tests of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from harness import Airflow, AirflowSettings
from tests.system.page.browser import TIMEOUT_MS, Watch, chromium_path
from tests.system.rig import QUIET_LOOP, Rig

USERS = {"viewer": "viewer", "user": "user", "op": "op", "admin": "admin"}
POOLS = {
    "eaco": {"mode": "exclusive", "nodes": ["small"]},
    "sharing": {"mode": "share", "nodes": ["shared-*"]},
}
NODES = [{"name": "shared-1", "gpus": 8}, {"name": "shared-2", "gpus": 8}, {"name": "small", "gpus": 4}]


@pytest.fixture(scope="package")
def airflow_page(
    tmp_path_factory: pytest.TempPathFactory, system_dags: Path, migrated: Path
) -> Iterator[Airflow]:
    """An Airflow with EacoExecutor alone, in which nobody is an administrator by default."""
    settings = AirflowSettings(
        tmp_path_factory.mktemp("page"),
        system_dags,
        executor="airflow_provider_eaco.EacoExecutor",
        migrated=migrated,
        options={
            **QUIET_LOOP,
            "scheduler.job_heartbeat_sec": "2",
            "eaco.pools": json.dumps(POOLS),
            "eaco.simulated_nodes": json.dumps(NODES),
            "eaco.simulated_time_scale": "3600",
            "eaco.kill_grace": "1",
        },
        users=USERS,
    )
    with Airflow(settings) as airflow:
        yield airflow


@pytest.fixture(scope="package")
def rig(airflow_page: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig of that Airflow, once its pools are made."""
    rig = Rig(airflow_page, tmp_path_factory.mktemp("told"))
    rig.wait_for(
        lambda: {*POOLS} <= {row["pool"] for row in airflow_page.query("SELECT pool FROM slot_pool")},
        "the GPU pools",
    )
    yield rig
    rig.end_runs()
    rig.close()


@dataclass(frozen=True, slots=True)
class Client:
    """Speaks to the application under ``root`` as one user, or as nobody."""

    root: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> requests.Response:
        """Return the answer to a GET."""
        return self.call("GET", path)

    def call(
        self, method: str, path: str, json: Any = None, headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        """Return the answer, whatever its status."""
        sent = {**self.headers, **(headers or {})}
        return requests.request(method, f"{self.root}{path}", json=json, headers=sent, timeout=60)


def token_of(airflow: Airflow, name: str) -> str:
    """Return a token of the user, whose password is its name."""
    answer = requests.post(
        f"{airflow.api.base_url}/auth/token", json={"username": name, "password": name}, timeout=60
    )
    answer.raise_for_status()
    return str(answer.json()["access_token"])


@pytest.fixture(scope="package")
def clients(airflow_page: Airflow) -> dict[str, Client]:
    """One client for each user, and ``anonymous``."""
    root = f"{airflow_page.api.base_url}/eaco"
    tokens = {name: {"Authorization": f"Bearer {token_of(airflow_page, name)}"} for name in USERS}
    return {"anonymous": Client(root), **{name: Client(root, headers) for name, headers in tokens.items()}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a module."""
    playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is in the group test")
    path = chromium_path()
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, rig: Rig) -> Iterator[Callable[..., tuple[Any, Watch]]]:
    """Opens a path as a user in a theme; every page is closed afterwards."""
    contexts = []

    def opened(path: str, user: str = "admin", theme: str = "light", script: str = "") -> tuple[Any, Watch]:
        root = rig.airflow.api.base_url
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_cookies([{"name": "_token", "value": token_of(rig.airflow, user), "url": root}])
        context.add_init_script(f"localStorage.getItem('theme') || localStorage.setItem('theme', '{theme}')")
        context.add_init_script(script)
        page, watch = context.new_page(), Watch()
        watch.follow(page)
        page.goto(root + path)
        return page, watch

    yield opened
    for context in contexts:
        context.close()
