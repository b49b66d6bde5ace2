"""How long a freed GPU stays without work: from one task's last line of code to the next one's first.

A real Airflow with one simulated GPU, SQLite, and a queue of tasks that wait for it. Measured with the pauses
of Airflow's own defaults and with those of the test harness, since a scheduler with nothing to do sleeps
``[scheduler] scheduler_idle_sleep_time`` before it looks again. The parts come from instants that are stored
anyway; only the end of the supervisor's process is watched from outside.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.dispatch.process_group import ProcessReference
from airflow_provider_eaco.store import schema
from bench.figures import Aim, Breakdown, Figure, Kind, Outcome, figures_of, quantile
from harness import Airflow, AirflowSettings
from harness.airflow import SCHEDULER

DAGS = Path(__file__).parent / "dags"
DAG_ID = "bench_turns"
_AIM = Aim(1.5)
_DEADLINE_S = 600.0
_IDLE_SLEEP = "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"
# Each part is the time since the instant before it; the first since the end of the code.
PARTS = {
    "told": "Airflow's API has its end",
    "gone": "its processes are gone",
    "released": "the executor has seen that; its lease is released",
    "granted": "the next task is granted the GPU",
    "launched": "its process is started and recorded",
    "running": "its supervisor has begun (Airflow's start date)",
    "begun": "its code runs",
}


def run(*, quick: bool) -> Outcome:
    """Measure under both pauses, in one Airflow."""
    samples = 5 if quick else 15
    figures: list[Figure] = []
    breakdowns, details = [], {}
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        turns = Path(folder) / "turns.jsonl"
        # The first task meets a cold system, and the last one has no successor.
        settings = _settings(Path(folder) / "home", samples + 2, turns)
        with Airflow(settings) as airflow:
            for pause in ("0.2", "1"):
                airflow.kill_scheduler()
                airflow.start_scheduler(environment={_IDLE_SLEEP: pause})
                found = _handovers(airflow, turns)[1:]
                what = f"GPU free to next code, idle sleep {pause} s"
                waits = [each["begun"] - each["ended"] for each in found]
                figures += figures_of(
                    what, waits, "s", Kind.TIME, median_aim=_AIM, high=("p90", 0.9), high_aim=_AIM
                )
                breakdowns.append(_breakdown(pause, found))
                details[f"idle_sleep_{pause}_s"] = found
    return Outcome(figures, breakdowns, details)


def _settings(home: Path, tasks: int, turns: Path) -> AirflowSettings:
    return AirflowSettings(
        home,
        DAGS,
        executor="airflow_provider_eaco.EacoExecutor",
        options={"eaco.simulated_nodes": json.dumps([{"name": "bench-1", "gpus": 1}])},
        environment={"EACO_BENCH_TASKS": str(tasks), "EACO_BENCH_TURNS": str(turns)},
    )


def _handovers(airflow: Airflow, turns: Path) -> list[dict[str, float]]:
    """Run the queue once; return the instants of each handover, by the names of ``PARTS`` and ``ended``."""
    turns.unlink(missing_ok=True)
    with EndWatch(airflow) as watch:
        run_id = airflow.trigger(DAG_ID)
        state = airflow.wait_run(DAG_ID, run_id, deadline_s=_DEADLINE_S)
    if state != "success":
        raise RuntimeError(f"{DAG_ID} ended as {state}\n{airflow.component(SCHEDULER).last_lines()}")
    lines = [json.loads(line) for line in turns.read_text(encoding="utf-8").splitlines()]
    order = sorted(lines, key=lambda line: float(line["begun_s"]))
    instances = {each["map_index"]: each for each in airflow.api.task_instances(DAG_ID, run_id)}
    rows = _rows(airflow.database_url)
    return [_handover(before, after, instances, rows, watch.ended_s) for before, after in pairwise(order)]


def _handover(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    instances: Mapping[int, Mapping[str, Any]],
    rows: Mapping[str, Mapping[str, float]],
    ended_s: Mapping[str, float],
) -> dict[str, float]:
    leaver, newcomer = instances[before["map_index"]], instances[after["map_index"]]
    left, came = rows[leaver["id"]], rows[newcomer["id"]]
    return {
        "ended": before["ended_s"],
        "told": datetime.fromisoformat(leaver["end_date"]).timestamp(),
        "gone": ended_s[leaver["id"]],
        "released": left["released"],
        "granted": came["granted"],
        "launched": came["launched"],
        "running": datetime.fromisoformat(newcomer["start_date"]).timestamp(),
        "begun": after["begun_s"],
    }


def _rows(url: str) -> dict[str, dict[str, float]]:
    """Return when each job was granted its GPU, recorded as started and released, by job id."""
    engine = sa.create_engine(url)
    query = sa.select(
        schema.lease.c.job_id, schema.lease.c.granted_at, schema.job.c.started_at, schema.lease.c.released_at
    ).join(schema.job, schema.job.c.job_id == schema.lease.c.job_id)
    with engine.connect() as connection:
        found = {
            job_id: {"granted": granted, "launched": launched, "released": released}
            for job_id, granted, launched, released in connection.execute(query)
        }
    engine.dispose()
    return found


@dataclass
class EndWatch:
    """Notes when the keeper of each running job ends, as the kernel tells it; asks nobody else."""

    airflow: Airflow
    ended_s: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        query = "SELECT job_id, process FROM eaco_job WHERE phase = :phase"
        while not self._over.is_set():
            for row in self.airflow.query(query, phase=JobPhase.RUNNING.value):
                if row["job_id"] not in self.ended_s and row["process"]:
                    self._await(row["job_id"], ProcessReference.parse(row["process"]).pid)
            self._over.wait(0.2)

    def _await(self, job_id: str, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:  # ended between two looks; a handover without this part is not shown
            return
        try:
            while not self._over.is_set():
                if select.select([descriptor], [], [], 1.0)[0]:
                    self.ended_s[job_id] = time.time()
                    return
        finally:
            os.close(descriptor)


def _breakdown(pause: str, found: Sequence[Mapping[str, float]]) -> Breakdown:
    rows = []
    for earlier, name in pairwise(["ended", *PARTS]):
        spans = [each[name] - each[earlier] for each in found]
        rows.append([PARTS[name], f"{statistics.median(spans):.3f}", f"{quantile(spans, 0.9):.3f}"])
    title = f"From one task's end to the next one's start, idle sleep {pause} s"
    return Breakdown(title, ["until", "median s", "p90 s"], rows)
