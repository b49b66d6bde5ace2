"""A sweep over learning rates by dynamic task mapping, and the best of it.

Every mapped training carries the same request and belongs to the same family, so the first one that ends is
the profile for the others. They are ordered by map index and share nodes like any other training.
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task

RATES = [0.005, 0.01, 0.02, 0.05]


@dag(schedule=None, tags=["eaco", "example"], params={"epochs": Param(8, type="integer", minimum=1)})
def mapped_sweep() -> None:
    @task.eaco(gpus=8, gpu_memory="3GiB", profile="J1", max_stretch=1.10, retries=1)
    def train(rate: float, ti=None, params=None) -> dict[str, float]:
        from digits_training import SIZES, DigitClassifier, checkpoint_folder

        from airflow_provider_eaco import training_run

        with training_run(epochs=params["epochs"]) as run:
            model = DigitClassifier.restore(run.checkpoint, SIZES["small"], rate=rate)
            for epoch in run.epochs():
                loss = model.train_epoch(epoch)
                saved = model.save(checkpoint_folder(ti), epoch)
                run.report(loss=loss, accuracy=model.accuracy(), checkpoint=saved)
        return {"rate": rate, "accuracy": model.accuracy()}

    @task
    def best(trainings: list[dict[str, float]]) -> dict[str, float]:
        return max(trainings, key=lambda each: each["accuracy"])

    best(train.expand(rate=RATES))


mapped_sweep()
