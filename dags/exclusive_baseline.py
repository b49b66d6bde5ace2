"""Four trainings, each alone on a whole node: what sharing is compared with.

``share="never"`` keeps a task's GPUs to itself, whatever the pool's policy thinks. Each task asks for the
eight GPUs of one node; with two nodes, two trainings run and two wait, and say why
(``airflow eaco why exclusive_baseline.j3``).
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task

TRAININGS = {"J1": "small", "J2": "medium", "J3": "large", "J4": "huge"}


@dag(schedule=None, tags=["eaco", "example"], params={"epochs": Param(8, type="integer", minimum=1)})
def exclusive_baseline() -> None:
    @task.eaco(gpus=8, gpu_memory="3GiB", share="never", retries=1)
    def train(size: str, ti=None, params=None) -> float:
        from digits_training import SIZES, DigitClassifier, checkpoint_folder

        from airflow_provider_eaco import training_run

        with training_run(epochs=params["epochs"]) as run:
            model = DigitClassifier.restore(run.checkpoint, SIZES[size])
            for epoch in run.epochs():
                loss = model.train_epoch(epoch)
                saved = model.save(checkpoint_folder(ti), epoch)
                run.report(loss=loss, accuracy=model.accuracy(), checkpoint=saved)
        return model.accuracy()

    for profile, size in TRAININGS.items():
        train.override(task_id=profile.lower(), profile=profile)(size)


exclusive_baseline()
