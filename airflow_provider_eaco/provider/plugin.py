"""What Airflow's plugin manager asks for: the web applications and the places where their pages show.

Every component of Airflow imports this module, and only the API server asks for the applications, so they are
built when they are asked for. An application that cannot be built is logged and left out: Airflow's own
server starts all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)

PAGE_PREFIX = "/eaco"
# Nodes with a worker speak here, by credentials of their own.
NODES_PREFIX = "/eaco/nodes"


def _page_app() -> Any:
    from airflow_provider_eaco.provider.api.app import create_app

    return create_app()


def _node_app() -> Any:
    from airflow_provider_eaco.provider.node_api.app import create_app
    from airflow_provider_eaco.provider.wiring import open_node_door

    return create_app(open_node_door())


# The server takes the first prefix that a path begins with: a longer one stands before a shorter one.
APPS: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    (NODES_PREFIX, "EaCO nodes", _node_app),
    (PAGE_PREFIX, "EaCO", _page_app),
)


class EacoPlugin(AirflowPlugin):
    """Registers the web applications and the views of the provider."""

    name = "eaco"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # Airflow only reads it
        """The applications that could be built, each with the prefix that it is mounted under."""
        built = []
        for prefix, name, create in APPS:
            try:
                built.append({"app": create(), "url_prefix": prefix, "name": name})
            except Exception:
                log.exception("the application under %s cannot be built and is left out", prefix)
        return built

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]  # Airflow only reads it
        """The page in the navigation, and a tab of every task instance and DAG run."""
        root = f"{_base_path()}{PAGE_PREFIX}"
        of_run = "dag_id={DAG_ID}&run_id={RUN_ID}"
        of_task = f"{of_run}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}"
        icons = {"icon": f"{root}/ui/icon.svg", "icon_dark_mode": f"{root}/ui/icon-dark.svg"}
        page = {"name": "GPUs", "href": f"{root}/", "destination": "nav", "url_route": "eaco"}
        run = {"name": "GPUs", "href": f"{root}/run?{of_run}", "destination": "dag_run"}
        task = {"name": "GPUs", "href": f"{root}/task?{of_task}", "destination": "task_instance"}
        return [
            {**page, **icons, "nav_top_level": True},
            {**run, **icons, "url_route": "eaco-run"},
            {**task, **icons, "url_route": "eaco-task"},
        ]


def _base_path() -> str:
    """Return the path of ``[api] base_url``, which browsers see before every path of the server."""
    from airflow.configuration import conf

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
