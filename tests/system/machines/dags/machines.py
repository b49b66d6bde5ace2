"""Trainings of one GPU each for many machines; each notes when its code began and when it ended."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task


def train(index, params=None, ti=None):
    from airflow_provider_eaco import training_run

    folder = Path(params["folder"])

    def note(**more):
        line = {
            "map_index": ti.map_index,
            "pid": os.getpid(),
            "token": os.environ["EACO_LEASE_TOKEN"],
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "node": os.environ["EACO_NODE"],
            **more,
        }
        with (folder / "started.jsonl").open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    note(began_s=time.time())
    with training_run(epochs=params["epochs"]) as run:
        for epoch in run.epochs():
            # The first ones go on for as long as a test wants somebody to be there.
            while ti.map_index < params["held"] and not (folder / "end").exists():
                time.sleep(0.2)
            saved = folder / f"{ti.map_index}-{epoch + 1}"
            saved.touch()
            run.report(checkpoint=saved)
    note(ended_s=time.time())


def trains(dag_id: str, count: int) -> DAG:
    with DAG(
        dag_id,
        schedule=None,
        params={"folder": "", "epochs": 1, "held": 0},
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

with DAG("no_gpu", schedule=None, max_active_runs=16) as no_gpu:

    @task(task_id="work")
    def add(index):
        return index + 1

    add(0)
