"""The jobs of the benchmarks, drawn exactly by their conventions from a seed and a published trace.

The draws of a run come from one generator in a fixed order: the family of every job in submission order, then
its stretch limit, then whatever else a run needs (it goes on with :attr:`Workload.draws`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from airflow_provider_eaco.simulator.readers import read_trace
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob

# An epoch is 1,404 s of exclusive work (0.39 h, the epoch of AlexNet and ResNet-18 in the EaCO paper), and
# every job has at least five of them.
EPOCH_S = 1404.0
EPOCHS_AT_LEAST = 5

EACO_NODES_JOBS = 1000
EACO_NODES_GPUS = 8
EACO_NODES_LIMITS = (1.05, 1.15, 1.15, None)
GAVEL_LIMITS = (1.2, 1.6, 1.6, None)


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs by submission, the first at 0; ``draws`` is the generator after the jobs were drawn."""

    jobs: tuple[TraceJob, ...]
    draws: np.random.Generator


def data_folder() -> Path:
    """Return the folder of the published data sets: ``EACO_DATA``, else ``../shared/data``."""
    return Path(os.environ.get("EACO_DATA") or "../shared/data")


def epoch_s(job: TraceJob) -> float:
    """Return the exclusive work between two points at which the job can give way."""
    return min(EPOCH_S, job.work_s / EPOCHS_AT_LEAST)


def eaco_nodes_jobs(
    families: Sequence[str], nodes: int, load: float, seed: int, count: int = EACO_NODES_JOBS
) -> Workload:
    """Return the first ``count`` jobs of ITP's cluster 01, each on all 8 GPUs of a node.

    :raises TraceError: if the trace is not in :func:`data_folder`.
    """
    trace = read_trace(data_folder() / "itp_traces" / "cluster01.csv", "itp")
    jobs = [replace(job, gpus=EACO_NODES_GPUS) for job in trace.jobs[:count]]
    drawn = _drawn(jobs, families, EACO_NODES_LIMITS, seed)
    return replace(drawn, jobs=stretched_to_load(drawn.jobs, load, nodes * EACO_NODES_GPUS))


def gavel_jobs(families: Sequence[str], gpus: int, load: float, seed: int, count: int) -> Workload:
    """Return the first ``count`` single-GPU jobs of ITP's cluster 08.

    :raises TraceError: if the trace is not in :func:`data_folder`.
    """
    trace = read_trace(data_folder() / "itp_traces" / "cluster08.csv", "itp")
    jobs = [job for job in trace.jobs if job.gpus == 1][:count]
    drawn = _drawn(jobs, families, GAVEL_LIMITS, seed)
    return replace(drawn, jobs=stretched_to_load(drawn.jobs, load, gpus))


def philly_jobs(families: Sequence[str], gpus_per_node: int, seed: int, count: int | None) -> Workload:
    """Return the jobs of Microsoft's Philly trace, all or the first ``count``, as they were submitted.

    A job of more GPUs than a node has comes as several jobs of whole nodes, which start on their own.

    :raises TraceError: if the trace is not in :func:`data_folder`.
    """
    trace = read_trace(data_folder() / "philly_trace" / "jobs.csv", "philly-csv")
    drawn = _drawn(trace.jobs[:count], families, GAVEL_LIMITS, seed)
    return replace(drawn, jobs=tuple(part for job in drawn.jobs for part in _parts(job, gpus_per_node)))


def _parts(job: TraceJob, gpus_per_node: int) -> list[TraceJob]:
    if job.gpus <= gpus_per_node:
        return [job]
    nodes = -(-job.gpus // gpus_per_node)
    return [replace(job, job_id=f"{job.job_id}-{part}", gpus=gpus_per_node) for part in range(1, nodes + 1)]


def stretched_to_load(jobs: Sequence[TraceJob], load: float, gpus: int) -> tuple[TraceJob, ...]:
    """Return the jobs with submissions stretched by one factor, so that the offered load is ``load``.

    Offered load: GPU seconds of exclusive work / (``gpus`` of the cluster x span of the submissions).

    :raises TraceError: if all are submitted at one instant, so that no factor helps.
    """
    first_s = min(job.submit_s for job in jobs)
    span_s = max(job.submit_s for job in jobs) - first_s
    if span_s <= 0:
        raise TraceError("--load", "all jobs are submitted at one instant; leave the load out")
    factor = math.fsum(job.work_s * job.gpus for job in jobs) / (gpus * load * span_s)
    return tuple(replace(job, submit_s=round((job.submit_s - first_s) * factor, 3)) for job in jobs)


def _drawn(
    jobs: Sequence[TraceJob], families: Sequence[str], limits: Sequence[float | None], seed: int
) -> Workload:
    """Return the jobs with families and limits drawn, all of one team: the benchmarks know no others."""
    draws = np.random.default_rng(seed)
    family_of = draws.integers(len(families), size=len(jobs))
    limit_of = draws.integers(len(limits), size=len(jobs))
    return Workload(
        tuple(
            replace(job, family=families[family], stretch_limit=limits[limit], pool="", dag_id="")
            for job, family, limit in zip(jobs, family_of, limit_of, strict=True)
        ),
        draws,
    )
