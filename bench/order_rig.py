"""The Airflow of :mod:`bench.bench_order`, and what its tasks have noted."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Airflow, AirflowSettings
from harness.airflow import SCHEDULER
from tests.databases import postgres_server

DAGS = Path(__file__).parent / "order_dags"
DEADLINE_S = 7200.0


@dataclass(frozen=True, slots=True)
class Note:
    """One start of a task's code, in seconds since the epoch; ``ended_s`` is ``None`` while it runs."""

    dag: str
    run: str
    task: str
    index: int
    begun_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class OrderRig:
    """An Airflow whose tasks note when they begin and end in the file ``notes``."""

    airflow: Airflow
    notes: Path

    def starts(self, *dags: str, task: str | None = None) -> list[Note]:
        """Return the starts of these DAGs' tasks, or of this task alone, the first to begin first."""
        lines = self.notes.read_text(encoding="utf-8").splitlines() if self.notes.exists() else []
        found: dict[tuple[str, str, str, int], dict[str, float]] = {}
        for line in map(json.loads, lines):
            key = (line["dag"], line["run"], line["task"], line["index"])
            found.setdefault(key, {})[line["event"]] = line["at_s"]
        notes = [
            Note(*key, begun_s=at["begun"], ended_s=at.get("ended"))
            for key, at in found.items()
            if key[0] in dags and task in {None, key[2]}
        ]
        return sorted(notes, key=lambda note: note.begun_s)

    def queued_s(self, dag: str) -> dict[tuple[str, str, int], float]:
        """Return when each job of a DAG was handed over, by run, task and index (0 for one not mapped)."""
        query = (
            "SELECT task.run_id, task.task_id, task.map_index, EXTRACT(EPOCH FROM job.queued_at) AS queued_s "
            "FROM eaco_job AS job "
            "JOIN task_instance AS task ON CAST(task.id AS text) = job.job_id "
            "WHERE task.dag_id = :dag"
        )
        return {
            (row["run_id"], row["task_id"], max(row["map_index"], 0)): float(row["queued_s"])
            for row in self.airflow.query(query, dag=dag)
        }

    def scheduler_log(self) -> str:
        """Return what the schedulers have said."""
        return self.airflow.component(SCHEDULER).log_file.read_text(errors="replace")


@contextmanager
def order_rig(
    sizes: Mapping[str, Any], gpus: Mapping[str, int], options: Mapping[str, str]
) -> Iterator[OrderRig]:
    """Give an Airflow with EacoExecutor alone; each GPU pool has a node of its own with so many GPUs."""
    pools = {name: {"mode": "exclusive", "nodes": [name]} for name in gpus}
    nodes = [{"name": name, "gpus": count} for name, count in gpus.items()]
    with tempfile.TemporaryDirectory(prefix="eaco-order-") as folder, postgres_server() as database_url:
        notes = Path(folder) / "notes.jsonl"
        settings = AirflowSettings(
            Path(folder) / "home",
            DAGS,
            executor="airflow_provider_eaco.EacoExecutor",
            database_url=database_url,
            options={
                "core.parallelism": "32",
                "scheduler.scheduler_idle_sleep_time": "1",
                "eaco.pools": json.dumps(pools),
                "eaco.simulated_nodes": json.dumps(nodes),
                **options,
            },
            environment={"EACO_ORDER": json.dumps(sizes), "EACO_ORDER_NOTES": str(notes)},
        )
        with Airflow(settings) as airflow:
            query = "SELECT pool FROM slot_pool"
            airflow.wait_for(
                lambda: gpus.keys() <= {row["pool"] for row in airflow.query(query)}, "the GPU pools"
            )
            yield OrderRig(airflow, notes)
