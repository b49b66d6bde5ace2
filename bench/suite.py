"""The benchmarks by name, and how the two that print by themselves become figures as well."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import schema
from bench import bench_cycle, bench_handover, bench_heartbeat, bench_store, bench_throughput
from bench.figures import Aim, Figure, Kind, Outcome, figures_of
from tests.databases import postgres_server, sqlite_engine


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: what it measures in a sentence, and ``run`` with the keyword ``quick``."""

    name: str
    about: str
    run: Callable[..., Outcome]


def run_cycle(*, quick: bool) -> Outcome:
    """Measure one admission cycle on a mixed and on an empty cluster, in both sizes of benchmark B4."""
    figures: list[Figure] = []
    sizes = [
        (1_000, 512, 30 if quick else 200, Aim(50.0), Aim(100.0)),
        (10_000, 4_096, 5 if quick else 20, Aim(500.0), None),
    ]
    for waiting, gpus, rounds, median_aim, p99_aim in sizes:
        for state, empty in (("", False), (", empty", True)):
            times_ms, _, _ = bench_cycle.measure(
                partial(bench_cycle.make_state, waiting, gpus, empty=empty), rounds
            )
            figures += figures_of(
                f"cycle, {waiting:,} waiting x {gpus:,} GPUs{state}",
                times_ms,
                "ms",
                Kind.CPU_TIME,
                median_aim=None if empty else median_aim,
                high_aim=None if empty else p99_aim,
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
        Benchmark("store", "the store's calls with 1,000 waiting jobs and 512 GPUs", run_store),
        Benchmark("heartbeat", "a heartbeat of the live executor with 1,000 held tasks", bench_heartbeat.run),
        Benchmark(
            "handover", "from a free GPU to the next task's code, in a real Airflow", bench_handover.run
        ),
        Benchmark("throughput", "empty tasks a minute against LocalExecutor", bench_throughput.run),
    )
}
