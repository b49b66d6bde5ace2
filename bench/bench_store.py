"""How long the store takes on SQLite and PostgreSQL: a view, a page, an idle plan, a grant with its release.

Run by ``make bench``. Wall time, and CPU time of our own process, which other work does not blur.
PostgreSQL is the one of the tests, its disk synchronisation off: the figures show queries, not a disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.read_model import ReadModel
from tests.databases import database_on, postgres_server, sqlite_engine

GPUS_PER_NODE = 8
KINDS = 24
QUEUED_S = 1_790_000_000.0


def make_job(number: int) -> Job:
    """Return one of ``KINDS`` kinds of waiting job."""
    request = GpuRequest(1 + number % 8, f"family{number % KINDS:02}", gpu_memory_mib=4096)
    name = f"job-{number:06}"
    return Job(
        name, request, "eaco", QUEUED_S + number, OrderKey(QUEUED_S, f"dag{number % 50}", name, -1, name)
    )


def fill(engine: Engine, waiting: int, gpus: int) -> SqlLedger:
    """Store nodes, waiting jobs, and one resident on every second node; return the ledger."""
    ledger = SqlLedger(database_on(engine))
    nodes = [
        Node(
            f"node{number:04}",
            tuple(
                Gpu(f"GPU-{number:04}-{i}", f"node{number:04}", i, "V100", 16384)
                for i in range(GPUS_PER_NODE)
            ),
        )
        for number in range(gpus // GPUS_PER_NODE)
    ]
    ledger.save_nodes(nodes)
    for number in range(waiting + len(nodes) // 2):
        ledger.add_waiting(make_job(number), "executor")
    versions = ledger.view().gpu_versions
    for number in range(len(nodes) // 2):
        placement = Placement(nodes[2 * number].name, tuple(gpu.uuid for gpu in nodes[2 * number].gpus))
        ledger.grant(Launch(make_job(number), placement, ()), LeaseState.EXCLUSIVE, versions, "executor")
    return ledger


def measure(engine: Engine, waiting: int, gpus: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU seconds of every call by name."""
    ledger, log = fill(engine, waiting, gpus), SqlDecisionLog(database_on(engine))
    view = ledger.view()
    held = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 0, "sharing": "no"}))
    queued = [record.job for record in view.jobs if record.phase is JobPhase.WAITING]
    by_kind: dict[object, list[Job]] = {}
    for job in queued:
        by_kind.setdefault(job.kind, []).append(job)
    items = tuple(
        KindDecision(jobs[0].kind, tuple(job.job_id for job in jobs), held) for jobs in by_kind.values()
    )
    plan = Plan("eaco", QUEUED_S, decisions=items, order=tuple(job.job_id for job in queued))
    log.record(plan)
    free = Placement("node0001", tuple(f"GPU-0001-{index}" for index in range(GPUS_PER_NODE)))

    def grant_and_release() -> None:
        lease = ledger.grant(Launch(queued[0], free, ()), LeaseState.EXCLUSIVE, versions, "executor")
        ledger.release(lease.token, JobPhase.WAITING)
        for uuid in free.gpu_uuids:
            versions[uuid] += 2

    versions = dict(view.gpu_versions)
    calls: dict[str, Callable[[], object]] = {
        "view": ledger.view,
        "page of everything": ReadModel(database_on(engine)).overview,
        "plan without news": lambda: log.record(plan),
        "report of all nodes": lambda: ledger.save_nodes(view.nodes),
        "grant and release": grant_and_release,
    }
    return {name: [_taken(call) for _ in range(rounds)] for name, call in calls.items()}


def _taken(call: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(name: str, waiting: int, gpus: int, taken: dict[str, list[tuple[float, float]]]) -> None:
    """Print one line a call."""
    print(f"store on {name}: {waiting} waiting jobs, {gpus} GPUs")  # noqa: T201 # what it is for
    for call, pairs in taken.items():
        wall_ms, cpu_ms = ([value * 1000 for value in values] for values in zip(*pairs, strict=True))
        p99_ms = statistics.quantiles(wall_ms, n=100)[98]
        figures = f"median {statistics.median(wall_ms):6.1f} ms, p99 {p99_ms:6.1f} ms"
        print(f"  {call:20} {figures}, CPU {statistics.median(cpu_ms):6.1f} ms")  # noqa: T201 # what it is for


def main() -> None:
    """Measure both databases and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--waiting", type=int, default=1000)
    arguments.add_argument("--gpus", type=int, default=512)
    arguments.add_argument("--rounds", type=int, default=30)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        engine = sqlite_engine(Path(directory) / "store.db")
        schema.metadata.create_all(engine)
        report("SQLite", given.waiting, given.gpus, measure(engine, given.waiting, given.gpus, given.rounds))
        engine.dispose()
    with postgres_server() as url:
        engine = sa.create_engine(url)
        schema.metadata.create_all(engine)
        report(
            "PostgreSQL", given.waiting, given.gpus, measure(engine, given.waiting, given.gpus, given.rounds)
        )
        engine.dispose()


if __name__ == "__main__":
    main()
