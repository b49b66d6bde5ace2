"""``eaco-sim explain``: what was decided about one job of a run, why, and what else there was.

The run is simulated again from what its summary says, up to the last decision about the job: the same seed
gives the same decisions, which are compared with those in the run's files. Nothing of it is kept in a run.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_eaco.core.model.decision import AdmissionDecision
from airflow_provider_eaco.simulator.again import made_again
from airflow_provider_eaco.simulator.decisions import Explained
from airflow_provider_eaco.simulator.run_files import decision_cells
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob


class _Enough(BaseException):
    """All decisions about the job have been seen. No error of a policy, so that nobody takes it for one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("job", metavar="JOB", help="job id, as in the run's jobs.csv")


def execute(options: argparse.Namespace) -> int:
    """Print the story of the job; return the exit code."""
    for line in explained(options.run, options.job):
        print(line)  # noqa: T201 - the answer of the command
    return 0


def explained(folder: Path, job_id: str) -> list[str]:
    """Return the story of one job in plain words.

    :raises TraceError: if the run has no such job, or cannot be made again as it was.
    """
    written = [row for row in _rows(folder / "decisions.csv") if row[1] == job_id]
    scenario = made_again(folder)
    job = next((job for job in scenario.jobs if job.job_id == job_id), None)
    if job is None or not written:
        raise TraceError(str(folder), f"has no job {job_id!r}; jobs.csv lists them")
    told = _decisions_of(Simulation(scenario), job_id, len(written))
    for row, found in zip(written, told, strict=False):
        if list(decision_cells(found.decided)) != row:
            problem = f"the run cannot be made again: at {row[0]} s it was {row[2]} {row[3]}, and now is "
            problem += f"{found.decided.verdict} {found.decided.reason} at {found.decided.time_s:.3f} s"
            raise TraceError(str(folder / "decisions.csv"), problem)
    runs = [row for row in _rows(folder / "schedule.csv") if row[0] == job_id]
    return [_job_line(job), *(line for found in told for line in _lines(found)), _run_line(job, runs)]


def _decisions_of(simulation: Simulation, job_id: str, count: int) -> list[Explained]:
    seen: list[Explained] = []

    def follow(found: Explained) -> None:
        seen.append(found)
        if len(seen) == count:
            raise _Enough

    simulation.decisions.follow(job_id, follow)
    with contextlib.suppress(_Enough):
        simulation.run()
    return seen


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines)
            next(rows, None)
            yield from rows
    except OSError as error:
        raise TraceError(str(path), f"cannot be read: {error}") from error


def _job_line(job: TraceJob) -> str:
    limit = "no stretch limit" if job.stretch_limit is None else f"stretch at most {job.stretch_limit:g}"
    return (
        f"{job.job_id}: family {job.family} on {job.gpus} GPUs, {_hours(job.work_s)} of work alone, {limit}; "
        f"queued at {_hours(job.submit_s)}"
    )


def _lines(found: Explained) -> Iterator[str]:
    decision = found.decision
    yield f"  at {_hours(found.decided.time_s)}: {_verdict(found, decision)}"
    for finding in decision.findings:
        yield f"      {finding.reason.code}: {finding.text}"
    for note in decision.notes:
        yield f"      all the same: {note.text}"
    if found.alternatives:
        yield "      where it could have run:"
    for alternative in found.alternatives:
        yield f"        - {alternative.text}"


def _verdict(found: Explained, decision: AdmissionDecision) -> str:
    if decision.placement is None:
        return {"hold": "it waits", "reject": "it can never run"}.get(found.decided.verdict, "unknown")
    gpus = ", ".join(map(str, found.decided.gpus))
    beside = f" beside {', '.join(decision.co_residents)}" if decision.co_residents else ""
    return f"it starts on {decision.placement.node}, GPUs {gpus}{beside}: {decision.choice}"


def _run_line(job: TraceJob, runs: list[list[str]]) -> str:
    if not runs:
        return "  it never ran"
    begin_s = min(float(row[1]) for row in runs)
    end_s = max(float(row[2]) for row in runs)
    stretch = (end_s - begin_s) / job.work_s
    return f"  it ran from {_hours(begin_s)} to {_hours(end_s)}, stretch {stretch:.4f}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3f} h"
