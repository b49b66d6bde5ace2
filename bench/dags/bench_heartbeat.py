# ruff: noqa: INP001 - Airflow loads a DAG file by its path
"""The tasks of the heartbeat benchmark: residents that fill the node, and one waiting task of each kind.

Nobody runs them as Airflow tasks; the benchmark makes task instances of them by itself.
"""

from __future__ import annotations

from airflow.sdk import DAG, task

KINDS = 24
GPUS = (1, 1, 1, 2, 2, 4, 8)
MEMORIES = ("4GiB", "8GiB", "12GiB")
LIMITS = (1.05, 1.15, None)


def nothing() -> None:
    """Stand for a training."""


with DAG("bench_heartbeat", schedule=None):
    task.eaco(gpus=1, gpu_memory="12GiB", profile="resident", task_id="resident")(nothing)()
    for number in range(KINDS):
        task.eaco(
            gpus=GPUS[number % len(GPUS)],
            gpu_memory=MEMORIES[number % len(MEMORIES)],
            profile=f"family{number:02}",
            max_stretch=LIMITS[number % len(LIMITS)],
            task_id=f"waits{number:02}",
        )(nothing)()
