# ruff: noqa: INP001 - Airflow loads a DAG file by its path
"""The DAGs whose order :mod:`bench.bench_order` measures; sizes and times are in ``EACO_ORDER``, as JSON."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

SIZES = json.loads(os.environ["EACO_ORDER"])
CHAIN = ("one", "two", "three")


def work(seconds: float, index: int = 0, ti: Any = None) -> None:
    """Hold the GPU, and leave when this code began and ended, as one line each."""
    for event in ("begun", "ended"):
        if event == "ended":
            time.sleep(seconds)
        line = {"event": event, "at_s": time.time(), "dag": ti.dag_id, "run": ti.run_id, "task": ti.task_id}
        with Path(os.environ["EACO_ORDER_NOTES"]).open("a", encoding="utf-8") as notes:
            notes.write(json.dumps({**line, "index": index}) + "\n")


def part_of_chain(ti: Any = None) -> None:
    """Work for a time that differs by up to a second, so that ends meet every moment of a loop."""
    work(SIZES["chain_s"] + random.random(), ti=ti)  # noqa: S311 - no secret


def part_of_flood(index: int, ti: Any = None) -> None:
    """Work as one of many."""
    work(SIZES["flood_s"], index, ti)


def day_of_calendar(ti: Any = None) -> None:
    """Work for one date."""
    work(SIZES["calendar_s"], ti=ti)


def chain(dag_id: str, pool: str) -> DAG:
    """Return three tasks in a row, each of more weight than the one before."""
    with DAG(dag_id, schedule=None, max_active_runs=64) as dag:
        before = None
        for task_id in CHAIN:
            decorated = task.eaco(gpus=1, pool=pool, share="never", weight_rule="upstream", task_id=task_id)
            following = decorated(part_of_chain)()
            if before is not None:
                before >> following
            before = following
    return dag


for number in range(SIZES["chains"]):
    for name in ("a", "b"):
        globals()[f"{name}{number}"] = chain(f"{name}{number}", f"turns{number}")

with DAG("weights", schedule=None, max_active_tasks=10_000) as weights:
    for name, weight in (("busy", 2), ("idle", 1)):
        decorated = task.eaco(gpus=1, pool=name, share="never", priority_weight=weight)(part_of_flood)
        decorated.override(task_id=name).expand(index=list(range(SIZES[name])))

with DAG(
    "calendar", schedule="* * * * *", catchup=False, max_active_runs=64, is_paused_upon_creation=True
) as calendar:
    task.eaco(gpus=1, pool="calendar", share="never", task_id="work")(day_of_calendar)()
