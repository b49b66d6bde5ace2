"""A training DAG that has never heard of GPUs; a rule in the configuration gives it some.

::

    [eaco]
    rules = [{"match": {"dag_id": "unannotated"}, "request": {"gpus": 8, "gpu_memory": "3GiB"}}]

Without the rule, or without the provider, it runs as it always did. With the rule its first run is alone on
its GPUs. It reports no epochs and saves no checkpoint, so it is never asked to yield.
"""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None, tags=["example"])
def unannotated() -> None:
    @task
    def train() -> float:
        from digits_training import DigitClassifier

        model = DigitClassifier()
        for epoch in range(8):
            loss = model.train_epoch(epoch)
            print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {model.accuracy():.3f}")
        return model.accuracy()

    train()


unannotated()
