"""Our own CSV: ``job_id,family,gpus,submit_s,work_s,stretch_limit,priority`` by submission.

``stretch_limit`` and ``priority`` may be missing or empty (no limit; 0). The columns ``pool``, ``queue``,
``dag_id`` and ``wait_s`` may stand beside them, as ``convert --airflow`` writes them.
"""

from __future__ import annotations

from airflow_provider_eaco.simulator.readers.table import Ids, Row, rows_of
from airflow_provider_eaco.simulator.trace import (
    COLUMNS,
    FURTHER_COLUMNS,
    Trace,
    TraceError,
    TraceJob,
    in_order,
)

REQUIRED = COLUMNS[:5]
ALLOWED = (*COLUMNS[5:], *FURTHER_COLUMNS)


def read(source: str, text: str) -> Trace:
    """Return the trace; its submissions must not go back, and its first is moved to 0."""
    ids = Ids()
    numbered: list[tuple[str, TraceJob]] = []
    for row in rows_of(source, text, REQUIRED, ALLOWED):
        job = _job(row, ids)
        if numbered and job.submit_s < numbered[-1][1].submit_s:
            last_place, last = numbered[-1]
            problem = f"{row.text('submit_s')} is before {last.submit_s:g} of {last_place}"
            raise TraceError(source, f"{problem}; expected jobs by submission", row.place, "submit_s")
        numbered.append((row.place, job))
    return in_order(source, numbered)


def _job(row: Row, ids: Ids) -> TraceJob:
    return TraceJob(
        job_id=ids.take(row.source, row.name("job_id"), row.place),
        family=row.name("family"),
        gpus=row.whole("gpus", 1),
        submit_s=row.number("submit_s", 0, "seconds"),
        work_s=row.number("work_s", 0, "seconds", above=True),
        stretch_limit=_stretch_limit(row),
        priority=_priority(row),
        pool=row.text("pool"),
        queue=row.text("queue"),
        dag_id=row.text("dag_id"),
        wait_s=row.number("wait_s", 0, "seconds") if row.text("wait_s") else None,
    )


def _stretch_limit(row: Row) -> float | None:
    if not row.text("stretch_limit"):
        return None
    return row.number("stretch_limit", 1, "run time / run time alone (empty for none)")


def _priority(row: Row) -> int:
    return row.whole("priority", -(10**9) + 1) if row.text("priority") else 0
