"""The pages and their files, out of a fixed list: no path of a request ever names a file of the disk."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from airflow_provider_eaco.provider.api.access import CanSee

FOLDER = Path(__file__).parents[1] / "ui"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Everything comes from this server and nothing is evaluated: what a name carries cannot become code.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # A browser asks again each time, so that after an upgrade no page runs on old files.
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False, dependencies=[CanSee])


@router.get("/")
@router.get("/run")
@router.get("/task")
def page() -> Response:
    """Return the page; what it shows, its scripts take from its address."""
    return _file("page.html")


@router.get("/ui/{name:path}")
def file(name: str) -> Response:
    """Return one of the page's files."""
    return _file(name)


def _file(name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise HTTPException(404, f"the page has no file {name!r}")
    return Response(found, media_type=TYPES[Path(name).suffix], headers=HEADERS)


@cache
def _files() -> dict[str, bytes]:
    return {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in FOLDER.rglob("*")
        if path.suffix in TYPES
    }
