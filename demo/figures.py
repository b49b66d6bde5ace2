"""The figures of the demo: from the history of the simulated nodes and what Airflow says of the tasks.

All times are simulated seconds, all energies joules of the nodes. Nothing here depends on how fast the
machine was: see ADR 0002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_eaco.telemetry.history import History, ResidentSegment


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What Airflow says of one task when its run is over. ``job_id`` is the task instance's id."""

    job_id: str
    task_id: str
    state: str
    try_number: int
    epochs: int | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of the table. Epoch times are device seconds, ``None`` where it never ran so.

    ``residents`` are the other tasks that it shared its GPUs with at any time. ``stretch``: its time on
    GPUs / its work, which ``max_stretch`` bounds; ``paused_s``: how long it waited between two starts.
    """

    task_id: str
    policy: str
    node: str
    gpus: list[str]
    residents: list[str]
    epochs: int | None
    accuracy: float | None
    energy_j: float
    try_number: int
    state: str
    epoch_alone_s: float
    epoch_shared_s: float | None
    starts: int
    stretch: float
    paused_s: float


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy over the window from its first start to its last end.

    ``mean_stretch``: sum over tasks of (last end - first start) / sum of their work, pauses included.
    ``allocated_utilisation``: GPU time with at least one resident / all GPU time; a shared GPU counts once.
    """

    energy_j: float
    makespan_s: float
    mean_stretch: float
    allocated_utilisation: float
    tasks: int
    coallocated: int
    undone: int
    failed: int


def task_rows(
    policy: str, outcomes: Sequence[TaskOutcome], history: History, unit_s_of: Mapping[str, float]
) -> list[TaskRow]:
    """Return one row per task that ever held GPUs, by task name.

    :param unit_s_of: true seconds of one epoch alone, by family.
    """
    name_of = {outcome.job_id: outcome.task_id for outcome in outcomes}
    rows = []
    for outcome in sorted(outcomes, key=lambda each: each.task_id):
        segments = segments_of(history, outcome.job_id)
        if segments:
            rows.append(_row(policy, outcome, segments, name_of, unit_s_of[segments[0].family]))
    return rows


def policy_figures(
    rows: Sequence[TaskRow], outcomes: Sequence[TaskOutcome], history: History, gpus: int
) -> PolicyFigures:
    """Return the figures of one policy.

    :param gpus: GPUs of the whole cluster.
    :raises ValueError: if no task ever ran.
    """
    spans = [segments for each in outcomes if (segments := segments_of(history, each.job_id))]
    if not spans:
        raise ValueError("no task of this policy ever held GPUs")
    start_s = min(segments[0].start_s for segments in spans)
    end_s = max(segments[-1].end_s for segments in spans)
    run_s = sum(segments[-1].end_s - segments[0].start_s for segments in spans)
    work_s = sum(segment.work_s for segments in spans for segment in segments)
    return PolicyFigures(
        energy_j=history.energy_j(start_s=start_s, end_s=end_s),
        makespan_s=end_s - start_s,
        mean_stretch=run_s / work_s,
        allocated_utilisation=history.allocated_gpu_s(start_s, end_s) / (gpus * (end_s - start_s)),
        tasks=len(outcomes),
        coallocated=sum(bool(row.residents) for row in rows),
        undone=sum(row.starts - 1 for row in rows),
        failed=sum(outcome.state != "success" for outcome in outcomes),
    )


def summary(
    figures: Mapping[str, PolicyFigures], rows: Sequence[TaskRow], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what ``build/demo/summary.json`` holds."""
    return {
        **facts,
        "policies": {name: asdict(each) for name, each in figures.items()},
        "tasks": [asdict(row) for row in rows],
    }


def segments_of(history: History, job_id: str) -> list[ResidentSegment]:
    """Return the job's segments in their order in time."""
    mine = (segment for segment in history.residents if segment.job_id == job_id)
    return sorted(mine, key=lambda segment: segment.start_s)


def _row(
    policy: str,
    outcome: TaskOutcome,
    segments: Sequence[ResidentSegment],
    name_of: Mapping[str, str],
    unit_s: float,
) -> TaskRow:
    others = {job_id for segment in segments for job_id in segment.co_residents}
    shared = [segment for segment in segments if segment.co_residents]
    shared_s = sum(segment.end_s - segment.start_s for segment in shared)
    run_s = sum(segment.end_s - segment.start_s for segment in segments)
    shared_work_s = sum(segment.work_s for segment in shared)
    return TaskRow(
        task_id=outcome.task_id,
        policy=policy,
        node=segments[-1].node,
        gpus=list(segments[-1].gpu_uuids),
        residents=sorted(name_of.get(job_id, job_id) for job_id in others),
        epochs=outcome.epochs,
        accuracy=outcome.accuracy,
        energy_j=sum(segment.energy_j for segment in segments),
        try_number=outcome.try_number,
        state=outcome.state,
        epoch_alone_s=unit_s,
        epoch_shared_s=unit_s * shared_s / shared_work_s if shared_work_s > 0 else None,
        starts=len({segment.token for segment in segments}),
        stretch=run_s / sum(segment.work_s for segment in segments),
        paused_s=max(segments[-1].end_s - segments[0].start_s - run_s, 0.0),
    )
