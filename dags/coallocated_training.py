"""Four trainings that may share a node as long as none becomes more than 10 % slower.

``profile`` names the family whose measured behaviour the admission looks up; ``max_stretch`` is the limit of
run time / exclusive run time. J1, J2 and J3 together stay below 1.10 (1.083 measured), all four do not
(1.245), so the fourth goes to another node or waits.
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task

TRAININGS = {"J1": "small", "J2": "medium", "J3": "large", "J4": "huge"}


@dag(schedule=None, tags=["eaco", "example"], params={"epochs": Param(8, type="integer", minimum=1)})
def coallocated_training() -> None:
    @task.eaco(gpus=8, gpu_memory="3GiB", max_stretch=1.10, retries=1)
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


coallocated_training()
