"""SenseTime Helios (github S-Lab-System-Group/HeliosData): ``cluster_log.csv`` of one cluster.

Times are a clock without a zone; ``duration`` and ``queue`` are seconds. The virtual cluster becomes the
pool.
"""

from __future__ import annotations

from collections import Counter

from airflow_provider_eaco.simulator.readers.table import Ids, Row, rows_of
from airflow_provider_eaco.simulator.trace import UNKNOWN_FAMILY, Trace, TraceJob, in_order

TELLING = ("job_id", "vc", "gpu_num", "state", "submit_time", "duration")


def read(source: str, text: str) -> Trace:
    """Return the jobs that ran on GPUs, by submission, whatever their state at the end."""
    ids, skipped = Ids(), Counter[str]()
    numbered: list[tuple[str, TraceJob]] = []
    for row in rows_of(source, text, TELLING):
        job_id = ids.take(source, row.name("job_id"), row.place)
        gpus, work_s = row.whole("gpu_num", 0), row.number("duration", 0, "seconds")
        if gpus == 0:
            skipped["no GPU"] += 1
        elif work_s == 0:
            skipped["did not run"] += 1
        else:
            numbered.append((row.place, _job(row, job_id, gpus, work_s)))
    return in_order(source, numbered, skipped, columns=("submit_time", "duration"))


def _job(row: Row, job_id: str, gpus: int, work_s: float) -> TraceJob:
    return TraceJob(
        job_id=job_id,
        family=UNKNOWN_FAMILY,
        gpus=gpus,
        submit_s=row.clock("submit_time"),
        work_s=work_s,
        pool=row.text("vc"),
        wait_s=row.number("queue", 0, "seconds") if row.text("queue") else None,
    )
