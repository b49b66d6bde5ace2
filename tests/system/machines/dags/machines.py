"""Trainings for many machines, of one GPU each and in numpy; each notes when its code began and ended."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task


def descend(weights, data, wanted, steps=50):
    """Fit the weights a bit better; return them and their mean squared error."""
    for _ in range(steps):
        weights = weights - 0.1 * data.T @ (data @ weights - wanted) / len(data)
    return weights, float(((data @ weights - wanted) ** 2).mean())


def train(index, params=None, ti=None):
    import numpy as np

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
    data = np.random.default_rng(index).normal(size=(512, 8))
    wanted = data @ np.arange(8.0)
    losses = [descend(np.zeros(8), data, wanted, steps=0)[1]]
    with training_run(epochs=params["epochs"]) as run:
        weights = np.load(run.checkpoint) if run.checkpoint else np.zeros(8)
        for epoch in run.epochs():
            # The first ones go on for as long as a test wants somebody to be there.
            while ti.map_index < params["held"] and not (folder / "end").exists():
                time.sleep(0.2)
            weights, loss = descend(weights, data, wanted)
            losses.append(loss)
            saved = folder / f"{ti.map_index}-{epoch + 1}.npy"
            np.save(saved, weights)
            run.report(loss=loss, checkpoint=saved)
    note(ended_s=time.time(), losses=losses)


def trains(dag_id: str, count: int) -> DAG:
    with DAG(
        dag_id,
        schedule=None,
        params={"folder": "", "epochs": 1, "held": 0},
        max_active_runs=16,
        max_active_tasks=64,
    ) as dag:
        # Two share a GPU however long their short units take beside other processes of a busy machine.
        work = task.eaco(
            gpus=1,
            gpu_memory="4GiB",
            profile="small",
            share="always",
            max_stretch=1000,
            retries=3,
            retry_delay=timedelta(0),
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
