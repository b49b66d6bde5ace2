"""``python -m bench.frontier_misses RUN ...``: which limits a run missed by what its trials burnt.

A set of families is tried from the instant at which, somewhere, each of its members has done an epoch's work
in one. What a job lost in sets that began before that was burnt by trials: a limit that it missed by no more
than that was missed by trials.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

from airflow_provider_eaco.simulator.report.results import Interval, RunResult, read_run
from airflow_provider_eaco.simulator.workload import epoch_s

ROUNDING_S = 0.01

# A set in one place, and the families of one anywhere.
Placed = tuple[str, tuple[str, ...], tuple[str, ...]]
Families = tuple[str, ...]


def misses_of(run: RunResult) -> tuple[int, int]:
    """Return how many limits were missed by what trials burnt, and how many by more."""
    began_s, tried_s = _trials(run)
    by_job: dict[str, list[Interval]] = defaultdict(list)
    for row in run.schedule:
        by_job[row.job_id].append(row)
    by_trials = by_more = 0
    for job_id, rows in by_job.items():
        job = run.jobs[job_id]
        ran_s = max(row.end_s for row in rows) - min(row.start_s for row in rows)
        late_s = ran_s - (math.inf if job.stretch_limit is None else job.stretch_limit) * job.work_s
        if late_s > ROUNDING_S:
            burnt_s = sum(
                (row.end_s - row.start_s) * (1 - row.rate)
                for row in rows
                if len(row.residents) > 1
                and began_s[_placed(row)] < tried_s.get(_families(run, row), math.inf)
            )
            by_trials += late_s <= burnt_s
            by_more += late_s > burnt_s
    return by_trials, by_more


def _trials(run: RunResult) -> tuple[Mapping[Placed, float], Mapping[Families, float]]:
    """Return when each set began where it was, and from when on its families were tried."""
    began_s: dict[Placed, float] = {}
    done_s: dict[Placed, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    tried_s: dict[Families, float] = {}
    for row in sorted(run.schedule, key=attrgetter("end_s")):
        placed, families = _placed(row), _families(run, row)
        began_s[placed] = min(began_s.get(placed, math.inf), row.start_s)
        done_s[placed][row.job_id] += (row.end_s - row.start_s) * row.rate
        members = {job_id: run.jobs[job_id] for job_id in row.residents}
        if all(done_s[placed][job_id] >= epoch_s(job) for job_id, job in members.items()):
            tried_s.setdefault(families, row.end_s)
    return began_s, tried_s


def _placed(row: Interval) -> Placed:
    return row.node, row.gpus, tuple(sorted(row.residents))


def _families(run: RunResult, row: Interval) -> Families:
    return tuple(sorted(run.jobs[job_id].family for job_id in row.residents))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        by_trials, by_more = misses_of(read_run(Path(each)))
        print(f"{each}: {by_trials} by what trials burnt, {by_more} by more")  # noqa: T201 - the answer
