"""Two ways in which a stretch limit stands up for a training: before it shares, and after.

``strict`` allows itself 1 %. Every measured set with J4 costs more (J1 and J4 together 3 %), so it is never
co-allocated: it waits for free GPUs with the reason ``interference_too_high``.

``tried_j2`` and ``tried_j3`` allow themselves 10 %. J2 and J3 were never measured together; the estimate
lets them try. They say ``share="always"`` because the policy by itself tries a set only with trainings that
are known to save checkpoints, since one of them may have to leave, and before their first run nobody knows
that; the limit holds all the same. The first epoch together is a trial: if it shows more than the limit, the
one that came last is asked to yield, saves its checkpoint, leaves by reschedule and goes on alone, with the
same try number.
To see that on simulated nodes, let the pair be slower than anybody would estimate::

    [eaco]
    simulated_truth = [{"families": ["J2", "J3"], "slowdowns": [1.4, 1.4]}]
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task


@dag(schedule=None, tags=["eaco", "example"], params={"epochs": Param(8, type="integer", minimum=1)})
def stretch_limit() -> None:
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

    train.override(task_id="tried_j2", profile="J2", share="always")("medium")
    train.override(task_id="tried_j3", profile="J3", share="always")("large")
    train.override(task_id="strict", profile="J4", max_stretch=1.01)("huge")


stretch_limit()
