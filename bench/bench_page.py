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

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from bench.bench_store import GPUS_PER_NODE, QUEUED_S, fill, make_job
from bench.figures import Aim, Figure, Kind, Outcome, figures_of
from harness import Airflow, AirflowSettings
from tests.databases import database_on

WAITING = 1_000
GPUS = 512
PAST_LEASES = 500
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
    "profiles?limit=100",
    "profiles/export?format=csv",
    "decisions?limit=50",
    "jobs/job-000000",
    "task-jobs?dag_id=dag0&run_id=none",
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
            _fill(sa.create_engine(airflow.database_url))
            with requests.Session() as session:
                session.trust_env = False
                return _measure(session, airflow.api.base_url, rounds)
        finally:
            airflow.stop()


def _fill(engine: sa.engine.Engine) -> None:
    ledger = fill(engine, WAITING, GPUS)
    _decide(engine, ledger)
    versions = dict(ledger.view().gpu_versions)
    energy = SqlEnergyLog(database_on(engine))
    free = Placement("node0001", tuple(f"GPU-0001-{index}" for index in range(GPUS_PER_NODE)))
    for number in range(PAST_LEASES):
        job = make_job(1_000_000 + number)
        ledger.add_waiting(job, "executor")
        lease = ledger.grant(Launch(job, free, ()), LeaseState.EXCLUSIVE, versions, "executor")
        energy.add(EnergyPart(job.job_id, lease.token, free.gpu_uuids[0], 1e6, 600.0, EnergyMethod.COUNTER))
        ledger.release(lease.token, JobPhase.FAILED)
        for uuid in free.gpu_uuids:
            versions[uuid] += 2
    engine.dispose()


def _decide(engine: sa.engine.Engine, ledger: SqlLedger) -> None:
    """Give every kind of waiting job an answer with two reasons."""
    waiting = [record.job for record in ledger.view().jobs if record.phase is JobPhase.WAITING]
    by_kind: dict[object, list[Job]] = {}
    for job in waiting:
        by_kind.setdefault(job.kind, []).append(job)
    answer = hold(
        Finding(Reason.WAITING_FOR_GPU, {"wanted": 4, "free": 2, "sharing": "it takes GPUs of its own"}),
        Finding(Reason.PROFILE_MISSING, {"family": "any", "gpu_model": "V100", "consequence": "alone only"}),
    )
    items = tuple(
        KindDecision(jobs[0].kind, tuple(job.job_id for job in jobs), answer) for jobs in by_kind.values()
    )
    order = tuple(job.job_id for job in waiting)
    SqlDecisionLog(database_on(engine)).record(Plan("eaco", QUEUED_S, decisions=items, order=order))


def _measure(session: requests.Session, root: str, rounds: int) -> Outcome:
    loads = [_load(session, root) for _ in range(rounds + 1)][1:]
    what = f"page, {WAITING:,} waiting x {GPUS:,} GPUs"
    figures: list[Figure] = figures_of(
        f"{what}, load", [seconds for seconds, _ in loads], "s", Kind.TIME, median_aim=_LOAD_AIM_S
    )
    sent = float(loads[-1][1])
    figures.append(Figure(f"{what}, sent", "sum", sent, "B", Kind.SIZE, 1, _BYTES_AIM))
    for route in ROUTES:
        times_ms = [_taken_ms(session, f"{root}/eaco/api/v1/{route}") for _ in range(rounds + 1)][1:]
        figures += figures_of(f"GET {route}", times_ms, "ms", Kind.TIME, median_aim=_ROUTE_AIM_MS)
    return Outcome(figures)


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
