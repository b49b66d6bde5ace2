"""The benchmarks by name, and how the two that print by themselves become figures as well."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.cycle import run_cycle as run_admission_cycle
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy
from airflow_provider_eaco.store import schema
from bench import (
    bench_cycle,
    bench_dispatch,
    bench_handover,
    bench_heartbeat,
    bench_horizon,
    bench_page,
    bench_scale,
    bench_store,
    bench_telemetry,
    bench_throughput,
)
from bench.figures import Aim, Figure, Kind, Outcome, figures_of
from tests.databases import postgres_server, sqlite_engine


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: what it measures in a sentence, and ``run`` with the keyword ``quick``."""

    name: str
    about: str
    run: Callable[..., Outcome]


def run_cycle(*, quick: bool) -> Outcome:
    """Measure one admission cycle in both sizes of benchmark B4, as the live loop runs it and from cold.

    On the mixed state of :mod:`bench.bench_cycle`, which has the aims, and on an empty cluster.
    """
    figures: list[Figure] = []
    sizes = [
        (1_000, 512, 30 if quick else 200, Aim(50.0), Aim(100.0)),
        (10_000, 4_096, 5 if quick else 20, Aim(500.0), None),
    ]
    for waiting, gpus, rounds, median_aim, p99_aim in sizes:
        for empty, warm in product((False, True), (True, False)):
            make = partial(bench_cycle.make_state, waiting, gpus, empty=empty)
            state = f"{', empty' if empty else ''}, {'warm' if warm else 'cold'}"
            figures += figures_of(
                f"cycle, {waiting:,} waiting x {gpus:,} GPUs{state}",
                bench_cycle.measure(make, rounds, warm=warm).times_ms,
                "ms",
                Kind.CPU_TIME,
                median_aim=None if empty else median_aim,
                high_aim=None if empty else p99_aim,
            )
    return Outcome(figures)


def run_horizon(*, quick: bool) -> Outcome:
    """Measure one admission cycle with the ordering ``horizon``, each on a state of its own."""
    figures: list[Figure] = []
    for gpus, waiting, states, aim in ((64, 30, 20, Aim(15.0)), (512, 1_000, 2 if quick else 5, Aim(500.0))):
        times_ms = []
        for seed in range(states):
            state = bench_horizon.make_state(gpus, waiting, seed)
            policy, ordering = make_policy(state.pool.settings), make_ordering("horizon")
            begin = time.process_time()
            run_admission_cycle(policy, ordering, state)
            times_ms.append((time.process_time() - begin) * 1000)
        what = f"horizon, {waiting:,} waiting x {gpus:,} GPUs"
        figures += figures_of(
            what, times_ms, "ms", Kind.CPU_TIME, median_aim=aim, high=("max", 1.0), high_aim=None
        )
    return Outcome(figures)


def run_store(*, quick: bool) -> Outcome:
    """Measure the store's calls with 1,000 waiting jobs and 512 GPUs on both databases."""
    rounds = 10 if quick else 30
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        figures += _store_figures("SQLite", sqlite_engine(Path(folder) / "store.db"), rounds)
    with postgres_server() as url:
        figures += _store_figures("PostgreSQL", sa.create_engine(url), rounds)
    return Outcome(figures)


def _store_figures(name: str, engine: Engine, rounds: int) -> list[Figure]:
    schema.metadata.create_all(engine)
    taken = bench_store.measure(engine, 1_000, 512, rounds)
    engine.dispose()
    figures: list[Figure] = []
    for call, pairs in taken.items():
        wall_ms = [wall * 1000 for wall, _ in pairs]
        figures += figures_of(f"store, {call}, {name}", wall_ms, "ms", Kind.TIME)
    return figures


BENCHMARKS = {
    each.name: each
    for each in (
        Benchmark("cycle", "one admission cycle, computing alone", run_cycle),
        Benchmark("horizon", "one admission cycle with the ordering horizon", run_horizon),
        Benchmark("scale", "the simulator on growing parts of the Philly trace", bench_scale.run),
        Benchmark("store", "the store's calls with 1,000 waiting jobs and 512 GPUs", run_store),
        Benchmark(
            "page",
            "the page and every route of the API, with 1,000 waiting jobs and 512 GPUs",
            bench_page.run,
        ),
        Benchmark("telemetry", "one look at eight real GPUs with 32 processes", bench_telemetry.run),
        Benchmark("heartbeat", "a heartbeat of the live executor with 1,000 held tasks", bench_heartbeat.run),
        Benchmark(
            "handover", "from a free GPU to the next task's code, in a real Airflow", bench_handover.run
        ),
        Benchmark(
            "dispatch", "from a lease on another machine to running code, over Celery", bench_dispatch.run
        ),
        Benchmark("throughput", "empty tasks a minute against LocalExecutor", bench_throughput.run),
    )
}
