"""Puts the web application together: routers, pages, errors. Airflow's API server mounts it."""

from __future__ import annotations

from fastapi import FastAPI

from airflow_provider_eaco import __version__
from airflow_provider_eaco.provider.api import (
    bookings,
    cluster,
    decisions,
    energy,
    nodes,
    pages,
    profiles,
    queue,
    report,
    stories,
    timeline,
)
from airflow_provider_eaco.provider.api.access import CanSee
from airflow_provider_eaco.provider.api.errors import RESPONSES, install_handlers

API = "/api/v1"


def create_app() -> FastAPI:
    """Return the application. It reads nothing before its first request."""
    app = FastAPI(
        title="EaCO",
        version=__version__,
        summary="GPUs, queue, decisions, profiles and energy of the EaCO provider.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    install_handlers(app)
    for part in (cluster, queue, stories, timeline, energy, report, profiles, decisions, nodes, bookings):
        app.include_router(part.router, prefix=API, responses=RESPONSES)
    app.include_router(pages.router)

    @app.get(f"{API}/openapi.json", include_in_schema=False, dependencies=[CanSee])
    def openapi() -> dict[str, object]:
        return app.openapi()

    return app
