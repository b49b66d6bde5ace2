"""How long the page takes to load, and each route of its API to answer, on a large cluster with a long queue.

A real API server of Airflow on SQLite; nobody schedules, so that what was stored stays as it is.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import requests
import sqlalchemy as sa

from bench.figures import Aim, Figure, Kind, Outcome, figures_of
from bench.page_rig import DAG_ID, IN_RUN, LONG_JOBS, LONG_RUN, WAITING_RUN, fill_page
from harness import Airflow, AirflowSettings

WAITING = 1_000
GPUS = 512
DAGS = Path(__file__).parent / "dags"
PAGE = "/eaco/"
FIRST = "/eaco/api/v1/overview"
# Every route that reads, with what the page asks of it.
ROUTES = (
    "overview",
    "summary",
    "queue?limit=100",
    "queue?limit=500",
    "timeline?hours=24",
    "energy?days=30",
    "report",
    "report/export?format=html",
    "profiles?limit=100",
    "profiles/export?format=csv",
    "decisions?limit=50",
    "jobs/job-000000",
    "bookings",
    "task-jobs?dag_id=dag0&run_id=none",
    f"task-jobs?dag_id={DAG_ID}&run_id={WAITING_RUN}",
    f"task-jobs?dag_id={DAG_ID}&run_id={LONG_RUN}",
)
_LOAD_AIM_S = Aim(2.0)
_BYTES_AIM = Aim(1_000_000.0)
_ROUTE_AIM_MS = Aim(300.0)


def run(*, quick: bool) -> Outcome:
    """Measure loading and every route."""
    rounds = 5 if quick else 30
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        airflow = Airflow(AirflowSettings(Path(folder) / "home", DAGS))
        try:
            airflow.start(only_api=True)
            fill_page(sa.create_engine(airflow.database_url), WAITING, GPUS)
            with requests.Session() as session:
                session.trust_env = False
                return _measure(session, airflow.api.base_url, rounds)
        finally:
            airflow.stop()


def _measure(session: requests.Session, root: str, rounds: int) -> Outcome:
    loads = [_load(session, root) for _ in range(rounds + 1)][1:]
    what = f"page, {WAITING:,} waiting x {GPUS:,} GPUs"
    figures: list[Figure] = figures_of(
        f"{what}, load", [seconds for seconds, _ in loads], "s", Kind.TIME, median_aim=_LOAD_AIM_S
    )
    sent = float(loads[-1][1])
    figures.append(Figure(f"{what}, sent", "sum", sent, "B", Kind.SIZE, 1, _BYTES_AIM))
    _check_routes(session, root)
    for route in ROUTES:
        times_ms = [_taken_ms(session, f"{root}/eaco/api/v1/{route}") for _ in range(rounds + 1)][1:]
        figures += figures_of(f"GET {route}", times_ms, "ms", Kind.TIME, median_aim=_ROUTE_AIM_MS)
    return Outcome(figures)


def _check_routes(session: requests.Session, root: str) -> None:
    """See that no route that reads is left out, and that the two DAG runs have their jobs.

    :raises RuntimeError: if the figures would be of something else than they say.
    """
    paths = _get(session, f"{root}{PAGE}api/v1/openapi.json").json()["paths"]
    reads = {path.removeprefix("/api/v1/") for path, operations in paths.items() if "get" in operations}
    asked = [route.partition("?")[0] for route in ROUTES]
    patterns = {path: re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)) for path in reads}
    left_out = [path for path, pattern in patterns.items() if not any(map(pattern.fullmatch, asked))]
    if left_out:
        raise RuntimeError(f"ROUTES: nobody asks for {', '.join(sorted(left_out))}")
    for run_id, jobs in ((WAITING_RUN, IN_RUN), (LONG_RUN, LONG_JOBS)):
        url = f"{root}{PAGE}api/v1/task-jobs?dag_id={DAG_ID}&run_id={run_id}"
        found = len(_get(session, url).json()["items"])
        if found != jobs:
            raise RuntimeError(f"the run {run_id!r} has {found} stories, must have {jobs}")


def _load(session: requests.Session, root: str) -> tuple[float, int]:
    """Return seconds and bytes of what a browser asks for when the page is opened."""
    begin = time.perf_counter()
    sent = 0
    page = _get(session, f"{root}{PAGE}")
    waiting, known = _named(page.text, ""), set[str]()
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        answer = _get(session, f"{root}{PAGE}{name}")
        sent += _sent(answer)
        waiting += _named(answer.text, name)
    sent += _sent(page) + _sent(_get(session, f"{root}{FIRST}"))
    return time.perf_counter() - begin, sent


def _named(text: str, name: str) -> list[str]:
    """Return the files of the page that a page or module names."""
    if not name:
        return re.findall(r'"(ui/[^"]+)"', text)
    folder = Path(name).parent
    found = re.findall(r'from "(\.[^"]+)"', text) if name.endswith(".js") else []
    return [str((Path("/") / folder / each).resolve()).lstrip("/") for each in found]


def _get(session: requests.Session, url: str) -> requests.Response:
    answer = session.get(url, timeout=60)
    # Of a DAG that nobody has there are no jobs, but the route has to find that out.
    answer.raise_for_status()
    return answer


def _sent(answer: requests.Response) -> int:
    return int(answer.headers.get("Content-Length", len(answer.content)))


def _taken_ms(session: requests.Session, url: str) -> float:
    begin = time.perf_counter()
    _get(session, url)
    return (time.perf_counter() - begin) * 1000
