"""The benchmark ``order``: one day, no sharing, and order as the only change. Its pool, references, figures.

It runs in the simulator proper, with the policy ``exclusive``. All jobs are run to their end; the figures are
those of the first 24 hours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import DemandCurve
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.base import Ordering
from airflow_provider_eaco.core.policy.ordering import fifo_key
from airflow_provider_eaco.core.policy.registry import make_ordering
from airflow_provider_eaco.simulator.order_workload import (
    DAY_S,
    HOUR_S,
    DayChoices,
    DemandKept,
    OrderDay,
    bound_gpu_s,
)
from airflow_provider_eaco.simulator.recording import RunInterval


class GreedyFill:
    """A reference order, not offered to users: fifo, and whoever fits may start, so that gangs can starve."""

    keeping = Keeping.NOTHING

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        return tuple(sorted(jobs, key=fifo_key))


class LargestFirst:
    """A reference order, not offered to users: most GPUs first, and whoever fits may start."""

    keeping = Keeping.NOTHING

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        return tuple(sorted(jobs, key=lambda job: (-job.request.gpus, fifo_key(job))))


REFERENCES: Mapping[str, Callable[[], Ordering]] = {"greedy": GreedyFill, "largest": LargestFirst}


def order_by_name(name: str) -> Ordering:
    """Return the ordering of that name, one of the references among them.

    :raises InvalidSettingError: if nobody offers it.
    """
    reference = REFERENCES.get(name)
    return make_ordering(name) if reference is None else reference()


def kept_for_demand(day: OrderDay, kept: DemandKept, node: str) -> tuple[DemandCurve, ...]:
    """Return what the pool keeps for inference on ``node``: nothing where there is none."""
    if not any(day.demand):
        return ()
    curve = day.demand if kept is DemandKept.CURVE else (max(day.demand),) * 24
    return (DemandCurve(node, curve),)


def order_figures(
    day: OrderDay, choices: DayChoices, runs: Sequence[RunInterval], first_node: str, queued: int
) -> dict[str, Any]:
    """Return the figures of the day for ``summary.json``; shares are of the GPUs' time in 24 hours.

    ``used``: jobs and demand really served. ``bound``: what no schedule of the day can use more. ``value``:
    the GPU time of the jobs that were done after 24 hours, weighted by 1 + priority, as a share of that of
    all jobs. Jobs that were left out of the queue count as asked for.

    :param day: with all its jobs.
    :param first_node: the node that also serves inference.
    :param queued: how many of its jobs came to the queue.
    """
    whole_s = day.gpus * DAY_S
    batch_s = math.fsum(len(run.gpus) * _before_end(run.start_s, run.end_s) for run in runs)
    served_s = day.demand_gpu_s - _unserved_gpu_s(day, runs, first_node)
    ends_s = {run.job_id: run.end_s for run in sorted(runs, key=lambda run: run.end_s)}
    asked = math.fsum(_worth(job.priority, job.gpus, job.work_s) for job in day.jobs)
    done = math.fsum(
        _worth(job.priority, job.gpus, job.work_s)
        for job in day.jobs
        if ends_s.get(job.job_id, math.inf) <= DAY_S
    )
    left_out = len(day.jobs) - queued
    return {
        "scenario": choices.kind.value,
        "source": day.source,
        "demand": choices.demand.value,
        "oversized": choices.oversized.value,
        "asked": (math.fsum(job.gpus * job.work_s for job in day.jobs) + day.demand_gpu_s) / whole_s,
        "used": (batch_s + served_s) / whole_s,
        "batch": batch_s / whole_s,
        "served": served_s / whole_s,
        "bound": bound_gpu_s(day) / whole_s,
        "value": done / asked if asked else 1.0,
        "left_out": left_out,
        "never_started": sum(job.job_id not in ends_s for job in day.jobs) - left_out,
    }


def _worth(priority: int, gpus: int, work_s: float) -> float:
    return (1 + priority) * gpus * work_s


def _before_end(start_s: float, end_s: float) -> float:
    return max(0.0, min(end_s, DAY_S) - start_s)


def _unserved_gpu_s(day: OrderDay, runs: Iterable[RunInterval], first_node: str) -> float:
    """Return the demand on GPUs that a job held longer than it was believed."""
    lost_s = 0.0
    for run in runs:
        if run.node != first_node:
            continue
        for index in run.gpus:
            for hour, needed in enumerate(day.demand):
                if needed > index:
                    overlap_s = min(run.end_s, (hour + 1) * HOUR_S) - max(run.start_s, hour * HOUR_S)
                    lost_s += max(0.0, overlap_s)
    return lost_s
