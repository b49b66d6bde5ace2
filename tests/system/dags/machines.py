"""Trainings of one GPU each for many machines; each notes when its code began and when it ended."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task


def train(index, params=None, ti=None):
    from told import note

    from airflow_provider_eaco import training_run

    folder = Path(params["folder"])
    note(folder, ti, began_s=time.time(), token=os.environ["EACO_LEASE_TOKEN"])
    with training_run(epochs=params["epochs"]) as run:
        for epoch in run.epochs():
            saved = folder / f"{ti.map_index}-{epoch + 1}"
            saved.touch()
            run.report(checkpoint=saved)
    note(folder, ti, ended_s=time.time(), token=os.environ["EACO_LEASE_TOKEN"])


def trains(dag_id: str, count: int) -> DAG:
    with DAG(
        dag_id,
        schedule=None,
        params={"folder": "", "epochs": 2},
        max_active_runs=16,
        max_active_tasks=64,
    ) as dag:
        # Shared at once: what such a pair costs is known from the start.
        work = task.eaco(
            gpus=1, gpu_memory="4GiB", profile="small", share="always", retries=3, retry_delay=timedelta(0)
        )(train).override(task_id="work")
        work.expand(index=list(range(count)))
    return dag


one = trains("machine_one", 1)
many = trains("machines", 24)
