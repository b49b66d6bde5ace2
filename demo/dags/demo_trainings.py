"""Twelve real trainings in three DAGs that differ in nothing but the pool, and so in the policy."""

from __future__ import annotations

import os

from airflow.sdk import dag, task

# Three of each of the paper's four jobs, with a network of matching size.
SIZES = {"J1": "small", "J2": "medium", "J3": "large", "J4": "huge"}
TRAININGS = [(number, profile) for number in range(1, 4) for profile in SIZES]
EPOCHS = int(os.environ.get("EACO_DEMO_EPOCHS", "6"))


def declare(dag_id: str, pool: str) -> None:
    @dag(dag_id=dag_id, schedule=None, tags=["eaco", "demo"], max_active_tasks=64)
    def trainings() -> None:
        @task.eaco(gpus=8, gpu_memory="3GiB", max_stretch=1.10, pool=pool)
        def train(size: str, seed: int, ti=None) -> dict[str, float]:
            from digits_training import SIZES as HIDDEN
            from digits_training import DigitClassifier, checkpoint_folder

            from airflow_provider_eaco import training_run

            with training_run(epochs=EPOCHS) as run:
                model = DigitClassifier.restore(run.checkpoint, HIDDEN[size], seed=seed)
                for epoch in run.epochs():
                    loss = model.train_epoch(epoch)
                    saved = model.save(checkpoint_folder(ti), epoch)
                    run.report(loss=loss, accuracy=model.accuracy(), checkpoint=saved)
                return {"accuracy": model.accuracy(), "epochs": run.units_done}

        for number, profile in TRAININGS:
            train.override(task_id=f"train_{number}_{profile.lower()}", profile=profile)(
                SIZES[profile], number
            )

    trainings()


declare("demo_exclusive", "exclusive")
declare("demo_eaco", "eaco")
declare("demo_frontier", "frontier")
