# ruff: noqa: INP001 - Airflow loads a DAG file by its path
"""The tasks of the benchmarks that run in a real Airflow; how many is in ``EACO_BENCH_TASKS``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

TASKS = range(int(os.environ["EACO_BENCH_TASKS"]))


def nothing(index: int) -> None:
    """Do nothing: what is left is what Airflow and the executor cost."""


def take_turns(index: int) -> None:
    """Hold the GPU for a moment, and leave the instants at which this code began and ended."""
    begun_s = time.time()
    time.sleep(1.0)
    line = json.dumps({"map_index": index, "begun_s": begun_s, "ended_s": time.time()})
    with Path(os.environ["EACO_BENCH_TURNS"]).open("a", encoding="utf-8") as turns:
        turns.write(line + "\n")


def make_dag(
    dag_id: str, decorator: Any, function: Callable[[int], None], indexes: Sequence[int] = TASKS
) -> DAG:
    """Return a DAG with one task that is mapped over all indexes; no limit of Airflow's stands in its way."""
    with DAG(dag_id, schedule=None, max_active_tasks=1000, max_active_runs=4) as dag:
        decorator(function).override(task_id="work").expand(index=list(indexes))
    return dag


warm_up = make_dag("bench_warm_up", task, nothing, range(8))
plain = make_dag("bench_plain", task, nothing)
granted = make_dag("bench_granted", task.eaco(gpus=1, share="never"), nothing)
turns = make_dag("bench_turns", task.eaco(gpus=1, share="never"), take_turns)
