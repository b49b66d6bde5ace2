"""Microsoft ITP clusters (github microsoft/elasticflow-traces): ``job_id,submission_time,duration,num_gpu``.

Seconds since the start of the collection. The files end without a line break.
"""

from __future__ import annotations

from airflow_provider_eaco.simulator.readers.table import Ids, rows_of
from airflow_provider_eaco.simulator.trace import UNKNOWN_FAMILY, Trace, TraceJob, in_order

TELLING = ("submission_time", "duration", "num_gpu")


def read(source: str, text: str) -> Trace:
    """Return the jobs by submission."""
    ids = Ids()
    return in_order(
        source,
        [
            (
                row.place,
                TraceJob(
                    job_id=ids.take(source, row.name("job_id"), row.place),
                    family=UNKNOWN_FAMILY,
                    gpus=row.whole("num_gpu", 1),
                    submit_s=row.number("submission_time", 0, "seconds"),
                    work_s=row.number("duration", 0, "seconds", above=True),
                ),
            )
            for row in rows_of(source, text, ("job_id", *TELLING), ends_with_line_break=False)
        ],
        columns=("submission_time", "duration"),
    )
