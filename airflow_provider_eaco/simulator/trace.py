"""Traces: the jobs that a simulation replays, and our own file of them.

A trace is what was asked of a cluster: when, how many GPUs, for how long alone. Times are seconds from the
first submission. Readers of other projects' logs are in :mod:`.readers`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.simulator.clock import instant
from airflow_provider_eaco.simulator.whole_file import whole_file

# About thirty years: a slip of units or of digits is beyond it, and would be simulated epoch by epoch.
LONGEST_S = 1e9

# Logs of other projects do not say what a job trained.
UNKNOWN_FAMILY = "unknown"


class TraceError(EacoError, ValueError):
    """A file that cannot be read as what it should be: one message with the place and what was expected.

    :param source: the file, as the user named it.
    :param problem: what is there and what was expected.
    :param place: where in the file, for example ``line 3`` or ``job 7``.
    :param column: the column or field.
    """

    def __init__(self, source: str, problem: str, place: str = "", column: str = "") -> None:
        where = ", ".join(part for part in (source, place, f"column {column}" if column else "") if part)
        super().__init__(f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job. ``work_s`` is its run time alone on ``gpus`` GPUs.

    ``stretch_limit`` bounds run time / ``work_s`` (``None``: no limit). Where the log tells, ``pool``,
    ``queue`` and ``dag_id`` say whose job it was (else empty) and ``wait_s`` how long it really waited
    (``None``: not known).
    """

    job_id: str
    family: str
    gpus: int
    submit_s: float
    work_s: float
    stretch_limit: float | None = None
    priority: int = 0
    pool: str = ""
    queue: str = ""
    dag_id: str = ""
    wait_s: float | None = None


# What the file ``jobs.csv`` of a run has, and what a trace may have besides.
COLUMNS = ("job_id", "family", "gpus", "submit_s", "work_s", "stretch_limit", "priority")
FURTHER_COLUMNS = ("pool", "queue", "dag_id", "wait_s")


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a file, by submission; jobs of one instant keep the order of the file.

    ``places[i]`` says where job i stands in ``source``; ``skipped`` counts what was left out, by reason.
    """

    source: str
    jobs: tuple[TraceJob, ...]
    places: tuple[str, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def from_zero(self) -> Trace:
        """Return the trace with its first submission at 0, and all on the millisecond grid of instants."""
        if not self.jobs:
            return self
        first_s = self.jobs[0].submit_s
        jobs = (replace(job, submit_s=instant(job.submit_s - first_s)) for job in self.jobs)
        return replace(self, jobs=tuple(jobs))

    def check_fits(self, gpus: int, cluster: str = "the cluster") -> None:
        """Check that no job needs more GPUs than ``gpus``, the most that one job can get on ``cluster``.

        :raises TraceError: naming the first job that can never start.
        """
        for job, place in zip(self.jobs, self.places, strict=True):
            if job.gpus > gpus:
                raise TraceError(
                    self.source,
                    f"job {job.job_id!r} needs {job.gpus} GPUs; expected at most {gpus}, "
                    f"the most that one job can get on {cluster}",
                    place,
                    "gpus",
                )


def write_trace(path: Path, jobs: Sequence[TraceJob], further: bool = True) -> None:
    """Write ``jobs`` as our own CSV; the file is there whole or not at all.

    Times have millisecond precision. With ``further`` the columns of :data:`FURTHER_COLUMNS` that hold
    anything are written too.
    """
    with whole_file(path) as partial:
        partial.write_text(trace_text(jobs, further), encoding="utf-8", newline="")


def trace_text(jobs: Sequence[TraceJob], further: bool = True) -> str:
    """Return ``jobs`` as the text of our own CSV."""
    names = list(COLUMNS)
    if further:
        names += [
            name for name in FURTHER_COLUMNS if any(getattr(job, name) not in {"", None} for job in jobs)
        ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(getattr(job, name)) for name in names] for job in jobs)
    return out.getvalue()


def in_order(
    source: str,
    numbered: Iterable[tuple[str, TraceJob]],
    skipped: Mapping[str, int] | None = None,
    *,
    columns: tuple[str, str] = ("submit_s", "work_s"),
) -> Trace:
    """Return the trace of the jobs with their places, sorted by submission, first submission at 0.

    :param columns: where the source has submission and run time, for messages.
    :raises TraceError: for a job that runs for more than :data:`LONGEST_S`, and for one that comes more than
        that after the first.
    """
    ordered = sorted(numbered, key=lambda item: item[1].submit_s)
    for place, job in ordered:
        after_s = job.submit_s - ordered[0][1].submit_s
        if job.work_s > LONGEST_S:
            problem = f"{job.work_s:g} s of run time; expected at most {LONGEST_S:g} s (thirty years)"
            raise TraceError(source, problem, place, columns[1])
        if after_s > LONGEST_S:
            problem = f"{after_s:g} s after the first; expected at most {LONGEST_S:g} s (thirty years)"
            raise TraceError(source, problem, place, columns[0])
    trace = Trace(
        source,
        tuple(job for _, job in ordered),
        tuple(place for place, _ in ordered),
        dict(skipped or {}),
    )
    return trace.from_zero()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)
