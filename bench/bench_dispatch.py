"""From a lease on another machine to the first line of the task's code, over Celery.

The site of the system tests (two schedulers, PostgreSQL, Redis, two machines with a worker and GPUs of NVML's
test library, all on this one) trains one task at a time, and then 24 at once on places for eight. The parts
come from instants that are stored anyway.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from bench.figures import Aim, Breakdown, Figure, Kind, Outcome, figures_of, quantile
from tests.servers import Postgres, Redis
from tests.system.machines.site import Site
from tests.system.rig import Run

_AIM = Aim(3.0)
# Each part is the time since the instant before it; the first since the grant.
PARTS = {
    "ordered": "the scheduler is about to send the message",
    "running": "its node may begin it, and its supervisor has begun (Airflow's start date)",
    "begun": "its code runs",
}


def run(*, quick: bool) -> Outcome:
    """Measure tasks one after the other, and many at once."""
    rounds = 5 if quick else 20
    with (
        tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder,
        Redis(Path(folder)) as redis,
        Postgres() as postgres,
        Site.make(Path(folder) / "site", redis, postgres) as site,
    ):
        # The first task meets a cold system.
        alone = [start for _ in range(rounds + 1) for start in _starts(site, "machine_one")][1:]
        crowd = _starts(site, "machines")
    return Outcome(
        [
            *_figures("lease to code over Celery, one task at a time", alone, _AIM),
            *_figures("lease to code over Celery, 24 tasks on 8 places", crowd, None),
        ],
        [_breakdown(alone)],
        {"one_at_a_time": alone, "crowd": crowd},
    )


def _figures(what: str, starts: Sequence[dict[str, float]], aim: Aim | None) -> list[Figure]:
    waits_s = [start["begun"] - start["granted"] for start in starts]
    return figures_of(what, waits_s, "s", Kind.TIME, median_aim=aim, high=("p90", 0.9))


def _starts(site: Site, dag_id: str) -> list[dict[str, float]]:
    """Run the DAG once; return the instants of each start, by the names of ``PARTS`` and ``granted``."""
    run = site.rig.run(dag_id)
    site.wait_end(run)
    begun_s = {str(note["token"]): float(note["began_s"]) for note in run.started if "began_s" in note}
    if not begun_s:
        raise RuntimeError(f"{dag_id} has started nothing\n{site.airflow.last_lines()}")
    started_s = _start_dates(run)
    query = (
        "SELECT lease.token, lease.job_id, lease.granted_at, run.ordered_at FROM eaco_lease AS lease "
        "JOIN eaco_node_run AS run ON run.token = lease.token"
    )
    return [
        {
            "granted": row["granted_at"].timestamp(),
            "ordered": row["ordered_at"].timestamp(),
            "running": started_s[row["job_id"]],
            "begun": begun_s[str(row["token"])],
        }
        for row in site.airflow.query(query)
        if str(row["token"]) in begun_s
    ]


def _start_dates(run: Run) -> dict[str, float]:
    instances = run.rig.airflow.api.task_instances(run.dag_id, run.run_id)
    return {each["id"]: datetime.fromisoformat(each["start_date"]).timestamp() for each in instances}


def _breakdown(starts: Sequence[dict[str, float]]) -> Breakdown:
    rows = []
    for earlier, name in pairwise(["granted", *PARTS]):
        spans = [start[name] - start[earlier] for start in starts]
        rows.append([PARTS[name], f"{statistics.median(spans):.3f}", f"{quantile(spans, 0.9):.3f}"])
    return Breakdown("From a lease to running code over Celery", ["until", "median s", "p90 s"], rows)
