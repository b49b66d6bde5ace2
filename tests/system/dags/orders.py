"""GPU tasks on one GPU whose order is a test's matter: two chains, a flood, and a DAG with dates."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, task


def wait_as_told(index=0, params=None, ti=None):
    # Not above: its DAGs would be this file's, too.
    from told import wait_for_the_end

    wait_for_the_end(index, params=params, ti=ti)


def chain(dag_id: str) -> DAG:
    """Return three tasks in a row, each of more weight than the one before."""
    with DAG(dag_id, schedule=None, params={"folder": ""}, max_active_runs=64) as dag:
        before = None
        for task_id in ("one", "two", "three"):
            decorated = task.eaco(pool="turns", weight_rule="upstream")(wait_as_told)
            following = decorated.override(task_id=task_id)()
            if before is not None:
                before >> following
            before = following
    return dag


chain_a = chain("chain_a")
chain_b = chain("chain_b")
with DAG("weights", schedule=None, params={"folder": ""}, max_active_tasks=64) as weights:
    for name, its_pool, weight, count in (("busy", "ordered", 2, 40), ("idle", "turns", 1, 2)):
        decorated = task.eaco(pool=its_pool, priority_weight=weight)(wait_as_told)
        decorated.override(task_id=name).expand(index=list(range(count)))

with DAG("one_turn", schedule=None, params={"folder": ""}) as one_turn:
    task.eaco(pool="turns")(wait_as_told).override(task_id="work")()


def work_for_a_date(ti=None):
    """Note the run, and end when the test says so; runs that are scheduled have no configuration."""
    from told import note

    folder = Path(os.environ["AIRFLOW_HOME"]) / "calendar"
    note(folder, ti, run=ti.run_id)
    while not any((folder / name).exists() for name in ("end", f"end-{ti.run_id}")):
        time.sleep(0.1)


with DAG(
    "calendar",
    schedule="@yearly",
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=64,
) as calendar:
    task.eaco(pool="turns")(work_for_a_date).override(task_id="work")()
