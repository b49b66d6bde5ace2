"""Trainings that report epochs on a simulated node; their work is the device model's alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

PARAMS = {"folder": "", "epochs": 6}


def train(params=None, ti=None):
    from told import note

    from airflow_provider_eaco import training_run

    folder = Path(params["folder"])
    with training_run(epochs=params["epochs"]) as run:
        note(folder, ti, start=run.units_done, checkpoint=run.checkpoint)
        for epoch in run.epochs():
            saved = folder / f"{ti.task_id}-{ti.map_index}-{epoch + 1}"
            saved.touch()
            run.report(checkpoint=saved)


def trains(task_id: str, family: str, share: str = "auto"):
    request = {"share": share, "pool": "sharing", "gpus": 8, "gpu_memory": "3GiB", "max_stretch": 1.10}
    return task.eaco(profile=family, retries=1, retry_delay=timedelta(0), **request)(train).override(
        task_id=task_id
    )


with DAG("confirmed", schedule=None, params=PARAMS) as confirmed:
    trains("alexnet", "J1")()
    trains("vgg", "J4")()

with DAG("undone", schedule=None, params=PARAMS) as undone:
    # Nobody knows yet that they save checkpoints, so that the pair would not be tried by itself.
    trains("first", "J2", share="always")()
    trains("second", "J3", share="always")()
