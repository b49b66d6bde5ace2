"""How many empty tasks run in a minute, against LocalExecutor at the same parallelism.

One Airflow (SQLite), whose scheduler is ended and started again with the other executor, in turn: what else
the machine does, and how full the database is, meets both alike. Each pair of neighbours gives a ratio.
Tasks without a GPU request are compared; tasks that each hold one simulated GPU stand beside them. A rate
counts from the first task's hand-over to the last one's end, after a few tasks that nobody counts.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from datetime import datetime
from pathlib import Path

from bench.figures import Aim, Breakdown, Figure, Kind, Outcome
from harness import Airflow, AirflowSettings
from harness.airflow import SCHEDULER

DAGS = Path(__file__).parent / "dags"
PARALLELISM = 8
OURS, STOCK = "airflow_provider_eaco.EacoExecutor", "LocalExecutor"
_AIM = Aim(0.9, at_least=True)
_DEADLINE_S = 900.0


def run(*, quick: bool) -> Outcome:
    """Measure pairs of blocks, LocalExecutor first in odd pairs and second in even ones."""
    pairs, tasks = (2, 24) if quick else (4, 48)
    rates: dict[str, list[float]] = {STOCK: [], OURS: []}
    granted = []
    with (
        tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder,
        Airflow(_settings(Path(folder), tasks)) as airflow,
    ):
        for pair in range(pairs):
            for executor in (STOCK, OURS) if pair % 2 == 0 else (OURS, STOCK):
                _switch(airflow, executor)
                rates[executor].append(_rate(airflow, "bench_plain", tasks))
                if executor == OURS:
                    granted.append(_rate(airflow, "bench_granted", tasks))
    ratios = [ours / stock for ours, stock in zip(rates[OURS], rates[STOCK], strict=True)]
    figures = [
        _figure("empty tasks, EacoExecutor / LocalExecutor", ratios, "", Kind.RATIO, _AIM),
        _figure("empty tasks, EacoExecutor", rates[OURS], "/min", Kind.RATE),
        _figure("empty tasks, LocalExecutor", rates[STOCK], "/min", Kind.RATE),
        _figure(f"empty tasks with a GPU each ({PARALLELISM} GPUs)", granted, "/min", Kind.RATE),
    ]
    details = {"rates_per_min": rates, "granted_per_min": granted, "ratios": ratios, "tasks_per_block": tasks}
    return Outcome(figures, [_breakdown(rates, granted, ratios)], details)


def _figure(what: str, values: list[float], unit: str, kind: Kind, aim: Aim | None = None) -> Figure:
    median = statistics.median(values)
    return Figure(what, "median", median, unit, kind, len(values), aim, min(values), max(values))


def _settings(folder: Path, tasks: int) -> AirflowSettings:
    return AirflowSettings(
        folder / "home",
        DAGS,
        executor=OURS,
        options={
            "core.parallelism": str(PARALLELISM),
            "eaco.simulated_nodes": json.dumps([{"name": "bench-1", "gpus": PARALLELISM}]),
        },
        environment={"EACO_BENCH_TASKS": str(tasks), "EACO_BENCH_TURNS": str(folder / "turns.jsonl")},
    )


def _switch(airflow: Airflow, executor: str) -> None:
    """Start the scheduler anew with this executor, and let it warm up with tasks that nobody counts."""
    airflow.kill_scheduler()
    airflow.start_scheduler(environment={"AIRFLOW__CORE__EXECUTOR": executor})
    _finish(airflow, "bench_warm_up")


def _finish(airflow: Airflow, dag_id: str) -> str:
    run_id = airflow.trigger(dag_id)
    state = airflow.wait_run(dag_id, run_id, deadline_s=_DEADLINE_S)
    if state != "success":
        raise RuntimeError(f"{dag_id} ended as {state}\n{airflow.component(SCHEDULER).last_lines()}")
    return run_id


def _rate(airflow: Airflow, dag_id: str, tasks: int) -> float:
    run_id = _finish(airflow, dag_id)
    instances = airflow.api.task_instances(dag_id, run_id)
    begin = min(datetime.fromisoformat(each["queued_when"]) for each in instances)
    end = max(datetime.fromisoformat(each["end_date"]) for each in instances)
    return tasks * 60 / (end - begin).total_seconds()


def _breakdown(rates: dict[str, list[float]], granted: list[float], ratios: list[float]) -> Breakdown:
    rows = [
        [str(number + 1), *(f"{value:.1f}" for value in values[:3]), f"{values[3]:.2f}"]
        for number, values in enumerate(zip(rates[STOCK], rates[OURS], granted, ratios, strict=True))
    ]
    head = ["pair", "LocalExecutor /min", "EacoExecutor /min", "with GPU /min", "ratio"]
    return Breakdown("Empty tasks, pair by pair", head, rows)
