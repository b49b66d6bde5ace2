"""Microsoft Philly (github msr-fiddle/philly-traces): the job log, and a CSV that carriers made of it.

The job log is a list of jobs with their attempts. Work is the time of all attempts together, GPUs those of
the widest attempt. The CSV has ``submit_s,duration_s,num_gpus,vc`` and no ids: a job is named by its line.
The virtual cluster becomes the pool.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.simulator.readers.json_text import json_of
from airflow_provider_eaco.simulator.readers.table import Ids, clock_s, rows_of
from airflow_provider_eaco.simulator.trace import UNKNOWN_FAMILY, Trace, TraceError, TraceJob, in_order

TELLING = ("submit_s", "duration_s", "num_gpus", "vc")
_ABSENT = (None, "", "None")


def read_csv(source: str, text: str) -> Trace:
    """Return the jobs of the CSV by submission; those of no duration are left out and counted."""
    skipped = Counter[str]()
    numbered: list[tuple[str, TraceJob]] = []
    for row in rows_of(source, text, TELLING):
        work_s, gpus = row.number("duration_s", 0, "seconds"), row.whole("num_gpus", 0)
        if work_s == 0 or gpus == 0:
            skipped["no GPU" if gpus == 0 else "did not run"] += 1
            continue
        submit_s = row.number("submit_s", 0, "seconds")
        job = TraceJob(f"philly-{row.line}", UNKNOWN_FAMILY, gpus, submit_s, work_s, pool=row.text("vc"))
        numbered.append((row.place, job))
    return in_order(source, numbered, skipped, columns=("submit_s", "duration_s"))


def read_job_log(source: str, text: str) -> Trace:
    """Return the jobs of the log by submission; those that never ran, or ran on, are left out and counted."""
    document = json_of(source, text, "a list of jobs")
    if not isinstance(document, list):
        raise TraceError(source, f"a JSON {type(document).__name__}; expected a list of jobs", "line 1")
    ids, skipped = Ids(), Counter[str]()
    numbered: list[tuple[str, TraceJob]] = []
    for number, entry in enumerate(document, start=1):
        record = _Record(source, f"job {number}", entry)
        job_id = ids.take(source, record.text("jobid"), record.place, "jobid")
        job = _job(record, job_id)
        if isinstance(job, str):
            skipped[job] += 1
        else:
            numbered.append((record.place, job))
    if not document:
        raise TraceError(source, "no job; expected a list of at least one")
    return in_order(source, numbered, skipped, columns=("submitted_time", "attempts"))


def _job(record: _Record, job_id: str) -> TraceJob | str:
    """Return the job, or why it is left out."""
    submit_s = record.clock("submitted_time")
    if submit_s is None:
        raise record.error("submitted_time", "a date and time such as 2017-10-07 01:13:58")
    attempts = [_attempt(_Record(record.source, record.place, entry)) for entry in record.list("attempts")]
    started = [attempt for attempt in attempts if attempt.start_s is not None]
    if not started:
        return "did not run"
    if any(attempt.work_s is None for attempt in started):
        return "not ended when the log was made"
    gpus = max(attempt.gpus for attempt in started)
    work_s = math.fsum(attempt.work_s or 0.0 for attempt in started)
    if gpus == 0 or work_s == 0:
        return "no GPU" if gpus == 0 else "did not run"
    first_s = min(attempt.start_s for attempt in started if attempt.start_s is not None)
    return TraceJob(
        job_id,
        UNKNOWN_FAMILY,
        gpus,
        submit_s,
        work_s,
        pool=record.text("vc"),
        wait_s=max(0.0, first_s - submit_s),
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    start_s: float | None
    work_s: float | None
    gpus: int


def _attempt(record: _Record) -> _Attempt:
    start_s, end_s = record.clock("start_time"), record.clock("end_time")
    if start_s is not None and end_s is not None and end_s < start_s:
        raise record.error("end_time", "an instant after start_time (a duration of at least 0)")
    work_s = None if start_s is None or end_s is None else end_s - start_s
    details = [_Record(record.source, record.place, entry) for entry in record.list("detail")]
    return _Attempt(start_s, work_s, sum(len(detail.list("gpus")) for detail in details))


@dataclass(frozen=True, slots=True)
class _Record:
    """One object of the log, with its place for complaints."""

    source: str
    place: str
    entry: Any

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.error(field, "a text in printable characters")
        return value

    def list(self, field: str) -> Sequence[Any]:
        value = self._get(field)
        if not isinstance(value, list):
            raise self.error(field, "a list")
        return value

    def clock(self, field: str) -> float | None:
        value = self._get(field)
        if value in _ABSENT:
            return None
        seconds = clock_s(value) if isinstance(value, str) else None
        if seconds is None:
            raise self.error(field, "a date and time such as 2017-10-07 01:13:58")
        return seconds

    def error(self, field: str, expected: str) -> TraceError:
        found = (
            json.dumps(self.entry.get(field)) if isinstance(self.entry, Mapping) else json.dumps(self.entry)
        )
        return TraceError(self.source, f"{found[:60]}; expected {expected}", self.place, field)

    def _get(self, field: str) -> Any:
        if not isinstance(self.entry, Mapping):
            raise self.error(field, "an object with this field")
        return self.entry.get(field)
