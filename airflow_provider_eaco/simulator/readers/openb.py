"""Alibaba openb (2023): the pods of a Kubernetes cluster whose GPUs are shared.

Run time is deletion - scheduling, the wait scheduling - creation. A pod that asked for a part of one GPU
(``gpu_milli`` below 1000) becomes a job of one GPU: how much it used is not in the log. The class of service
becomes the pool.
"""

from __future__ import annotations

from collections import Counter

from airflow_provider_eaco.simulator.readers.table import Ids, Row, rows_of
from airflow_provider_eaco.simulator.trace import UNKNOWN_FAMILY, Trace, TraceError, TraceJob, in_order

TELLING = ("name", "num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time")


def read(source: str, text: str) -> Trace:
    """Return the pods with a GPU that were placed and deleted, by creation."""
    ids, skipped = Ids(), Counter[str]()
    numbered: list[tuple[str, TraceJob]] = []
    for row in rows_of(source, text, TELLING):
        name = ids.take(source, row.name("name"), row.place, "name")
        gpus = row.whole("num_gpu", 0)
        if gpus == 0:
            skipped["no GPU"] += 1
        elif not row.text("scheduled_time"):
            skipped["never placed"] += 1
        elif not row.text("deletion_time"):
            skipped["not deleted"] += 1
        elif (job := _job(row, name, gpus)).work_s == 0:
            skipped["did not run"] += 1
        else:
            numbered.append((row.place, job))
    return in_order(source, numbered, skipped, columns=("creation_time", "deletion_time"))


def _job(row: Row, name: str, gpus: int) -> TraceJob:
    created_s = row.number("creation_time", 0, "seconds")
    placed_s = row.number("scheduled_time", 0, "seconds")
    deleted_s = row.number("deletion_time", 0, "seconds")
    for column, earlier_s, later_s, earlier in (
        ("scheduled_time", created_s, placed_s, "creation_time"),
        ("deletion_time", placed_s, deleted_s, "scheduled_time"),
    ):
        if later_s < earlier_s:
            problem = f"{later_s:g} is before {earlier} {earlier_s:g}; expected a duration of at least 0"
            raise TraceError(row.source, problem, row.place, column)
    return TraceJob(
        job_id=name,
        family=UNKNOWN_FAMILY,
        gpus=gpus,
        submit_s=created_s,
        work_s=deleted_s - placed_s,
        pool=row.text("qos"),
        wait_s=placed_s - created_s,
    )
