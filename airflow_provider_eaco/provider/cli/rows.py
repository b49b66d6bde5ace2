"""What the commands print, as rows of text built from what is stored; nothing here asks anybody.

The fields of a row are the columns of a table and the keys of JSON and YAML. Unknown is the word ``unknown``;
no number is negative and no share is above 100 per cent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Progress, Share
from airflow_provider_eaco.core.model.node_power import NodePowerState
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.units import format_memory_mib
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.provider.explain import Explanation
from airflow_provider_eaco.provider.shown import (
    UNKNOWN,
    shown_count,
    shown_duration,
    shown_energy,
    shown_foreign,
    shown_instant,
    shown_number,
    shown_percent,
)
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart

NO_WORKER = "no GPU workers registered"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. ``gpus_unknown`` are those whose health nobody knows: all of a node that does not report."""

    node: str
    state: str
    gpu_model: str
    gpus: str
    gpus_used: str
    gpus_unhealthy: str
    gpus_unknown: str
    power: str
    last_report: str


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU with its residents. ``power_limit``: what they were told of the limit that is set for them."""

    node: str
    gpu: str
    uuid: str
    model: str
    health: str
    memory: str
    utilisation: str
    power: str
    power_limit: str
    residents: str
    foreign: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One waiting job in planned order."""

    pool: str
    position: str
    task: str
    run: str
    request: str
    reason: str
    sentence: str
    since: str
    waited: str
    expected_start: str
    job: str


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One job that holds GPUs."""

    node: str
    gpus: str
    task: str
    run: str
    state: str
    with_tasks: str
    units: str
    energy: str
    mean_power: str
    since: str
    token: str
    job: str


def columns(row: object) -> dict[str, str]:
    """Return a row as the dictionary that is printed."""
    return {item.name: getattr(row, item.name) for item in fields(row)}  # type: ignore[arg-type] # rows are dataclasses


def node_rows(
    view: LedgerView,
    readings: Mapping[str, GpuReading],
    sleeping: Mapping[str, NodePowerState] | None = None,
) -> list[NodeRow]:
    """Return the nodes by name; a GPU counts as used while a lease names it, once for all residents.

    :param sleeping: the states of those that sleep or wake by our will.
    """
    down, nodes = sleeping or {}, sorted(view.nodes, key=lambda node: node.name)
    return [_node_row(node, view, readings, down.get(node.name)) for node in nodes]


def _node_row(
    node: Node, view: LedgerView, readings: Mapping[str, GpuReading], sleep: NodePowerState | None
) -> NodeRow:
    health = Counter(gpu.health for gpu in node.gpus)
    models = Counter(gpu.model for gpu in node.gpus)
    return NodeRow(
        node=node.name,
        state=node_state(node, sleep),
        gpu_model=", ".join(sorted(models)) or UNKNOWN,
        gpus=str(len(node.gpus)),
        gpus_used=str(len(used_gpus(node, view.leases))),
        gpus_unhealthy=str(health[GpuHealth.UNHEALTHY]),
        gpus_unknown=str(health[GpuHealth.UNKNOWN]),
        power=shown_number(power_w(node.gpus, readings), 0, "W"),
        last_report=_age(node.last_report_s, view.now_s),
    )


def node_state(node: Node, sleep: NodePowerState | None = None) -> str:
    """Return whether new work may start there.

    :param sleep: its state if it sleeps or wakes by our will, which would be ``unavailable`` otherwise.
    """
    if sleep is not None:
        return sleep.power.value
    if not node.available:
        return "unavailable"
    return "draining" if node.draining else "available"


def used_gpus(node: Node, leases: Iterable[Lease]) -> set[str]:
    """Return the UUIDs of the node's GPUs that a lease names."""
    held = {uuid for lease in leases for uuid in lease.placement.gpu_uuids}
    return held & {gpu.uuid for gpu in node.gpus}


def power_w(gpus: Sequence[Gpu], readings: Mapping[str, GpuReading]) -> float | None:
    """Return the draw of all GPUs together, ``None`` unless that of each is known."""
    drawn = [readings[gpu.uuid].power_w if gpu.uuid in readings else None for gpu in gpus]
    known = [value for value in drawn if value is not None]
    return sum(known) if drawn and len(known) == len(drawn) else None


class ToldEvent(Protocol):
    """What a task was told at an instant."""

    @property
    def text(self) -> str: ...

    @property
    def at_s(self) -> float: ...


def told_limits(view: LedgerView, last: Mapping[str, ToldEvent]) -> dict[str, str]:
    """Return by GPU what its holders were told of its power limit under their present leases.

    :param last: by job id what each was told last.
    """
    found: dict[str, ToldEvent] = {}
    for lease in view.leases:
        event = last.get(lease.job_id)
        for uuid in lease.placement.gpu_uuids if event and event.at_s >= lease.granted_s else ():
            if event and (uuid not in found or event.at_s > found[uuid].at_s):
                found[uuid] = event
    return {uuid: event.text for uuid, event in found.items()}


def gpu_rows(
    view: LedgerView, readings: Mapping[str, GpuReading], limits: Mapping[str, str] | None = None
) -> list[GpuRow]:
    """Return every GPU in the order of node and index, with the tasks that hold it.

    :param limits: as :func:`told_limits` returns it.
    """
    told = limits or {}
    task_of = {record.job.job_id: record.job.label for record in view.jobs}
    residents: dict[str, list[str]] = {}
    for lease in view.leases:
        for uuid in lease.placement.gpu_uuids:
            residents.setdefault(uuid, []).append(task_of.get(lease.job_id, lease.job_id))
    gpus = sorted((gpu for node in view.nodes for gpu in node.gpus), key=lambda gpu: (gpu.node, gpu.index))
    return [
        _gpu_row(gpu, readings.get(gpu.uuid), residents.get(gpu.uuid, ()), told.get(gpu.uuid, "none set"))
        for gpu in gpus
    ]


def _gpu_row(gpu: Gpu, reading: GpuReading | None, residents: Sequence[str], limit: str) -> GpuRow:
    return GpuRow(
        node=gpu.node,
        gpu=str(gpu.index),
        uuid=gpu.uuid,
        model=gpu.model,
        health=str(gpu.health.value),
        memory=format_memory_mib(gpu.memory_usable_mib),
        utilisation=shown_percent(None if reading is None else reading.utilisation_pct),
        power=shown_number(None if reading is None else reading.power_w, 0, "W"),
        power_limit=limit,
        residents=", ".join(residents),
        foreign=shown_foreign(reading),
    )


def queue_row(
    explanation: Explanation, request: GpuRequest, run: str, start: ExpectedStart | None = None
) -> QueueRow:
    """Return one line of the queue."""
    place, reason = explanation.place, explanation.reason
    return QueueRow(
        pool=UNKNOWN if place is None else place.pool,
        position=UNKNOWN if place is None else str(place.position),
        task=explanation.task,
        run=run,
        request=shown_request(request),
        reason=UNKNOWN if reason is None else reason.code,
        sentence=UNKNOWN if reason is None else reason.sentence,
        since=shown_instant(explanation.since_s),
        waited=shown_duration(explanation.waited_s),
        expected_start=shown_start(start),
        job=explanation.job_id,
    )


def shown_start(start: ExpectedStart | None) -> str:
    """Return an expected start with its error, as far as they are known."""
    if start is None:
        return UNKNOWN
    error_s = start.error_s
    return f"{shown_instant(start.at_s)} ± {UNKNOWN if error_s is None else shown_duration(error_s)}"


def explanation_document(explanation: Explanation) -> dict[str, object]:
    """Return all that ``why`` tells, for programs."""
    place, reason = explanation.place, explanation.reason
    return {
        "task": explanation.task,
        "job": explanation.job_id,
        "family": explanation.family,
        "airflow_pool": explanation.pool or UNKNOWN,
        "pool": None if place is None else place.pool,
        "state": explanation.state,
        "queued": shown_instant(explanation.queued_s),
        "waited": shown_duration(explanation.waited_s),
        "position": None if place is None else place.position,
        "of": None if place is None else place.of,
        "reason": None if reason is None else reason.code,
        "sentence": None if reason is None else reason.sentence,
        "since": None if reason is None else shown_instant(explanation.since_s),
        "what_would_change_it": None if reason is None else reason.remedy,
        "also": [
            {"reason": other.code, "sentence": other.sentence, "what_would_change_it": other.remedy}
            for other in explanation.also
        ],
        "story": [
            {"at": shown_instant(event.at_s), "event": event.event, "text": event.text}
            for event in explanation.story
        ],
        "energy": explanation.energy,
        "energy_record": explanation.energy_record,
        "choice": explanation.choice or None,
        "notes": [{"reason": note.code, "sentence": note.sentence} for note in explanation.notes],
        "alternatives": [_alternative(each) for each in explanation.alternatives],
    }


def _alternative(each: Alternative) -> dict[str, object]:
    return {
        "way": each.way.value,
        "families": list(each.families),
        "node": None if each.placement is None else each.placement.node,
        "slowdown": each.slowdown,
        "energy_j": each.energy_j,
        "of_one_unit": each.per_unit,
        "why_not": each.lost or None,
    }


def shown_request(request: GpuRequest) -> str:
    """Return what a job asks for, limits that were not asked for left out."""
    parts = [f"{request.gpus} GPU{'s' if request.gpus > 1 else ''}"]
    if request.gpu_models:
        parts.append(" or ".join(request.gpu_models))
    if request.gpu_memory_mib is not None:
        parts.append(f"{format_memory_mib(request.gpu_memory_mib)} each")
    if request.host_memory_mib is not None:
        parts.append(f"{format_memory_mib(request.host_memory_mib)} of host memory")
    if request.max_stretch is not None:
        parts.append(f"stretch <= {request.max_stretch:g}")
    if request.deadline_s is not None:
        parts.append(f"within {shown_duration(request.deadline_s)}")
    if request.share is not Share.AUTO:
        parts.append(f"share {request.share.value}")
    return ", ".join(parts)


def lease_rows(
    view: LedgerView, run_of: Mapping[str, str], energy_of: Mapping[str, JobEnergy] | None = None
) -> list[LeaseRow]:
    """Return who holds which GPUs, in the order of node, GPUs and token.

    :param energy_of: what the job of each has used so far.
    """
    energies = energy_of or {}
    record_of = {record.job.job_id: record for record in view.jobs}
    index_of = {gpu.uuid: gpu.index for node in view.nodes for gpu in node.gpus}
    leases = sorted(
        view.leases, key=lambda lease: (lease.placement.node, lease.placement.gpu_uuids, lease.token)
    )
    rows = [_lease_row(lease, leases, record_of, index_of, run_of) for lease in leases]
    return [
        replace(row, **_shown_energy_of(energies.get(lease.job_id)))
        for row, lease in zip(rows, leases, strict=True)
    ]


def _shown_energy_of(energy: JobEnergy | None) -> dict[str, str]:
    if energy is None:
        return {"energy": UNKNOWN, "mean_power": UNKNOWN}
    return {
        "energy": shown_energy(energy.energy_j, partial=energy.partial),
        "mean_power": shown_number(energy.mean_w, 0, "W"),
    }


def _lease_row(
    lease: Lease,
    leases: Sequence[Lease],
    record_of: Mapping[str, JobRecord],
    index_of: Mapping[str, int],
    run_of: Mapping[str, str],
) -> LeaseRow:
    record = record_of.get(lease.job_id)
    others = [
        other.job_id for other in leases if other.placement == lease.placement and other.token != lease.token
    ]
    return LeaseRow(
        node=lease.placement.node,
        gpus=shown_gpus(lease.placement.gpu_uuids, index_of),
        task=_task(lease.job_id, record_of),
        run=run_of.get(lease.job_id, UNKNOWN),
        state=str(lease.state.value),
        with_tasks=", ".join(_task(job_id, record_of) for job_id in others) or "nobody",
        units=UNKNOWN if record is None else shown_units(record.job.progress),
        energy=UNKNOWN,
        mean_power=UNKNOWN,
        since=shown_instant(lease.granted_s),
        token=str(lease.token),
        job=lease.job_id,
    )


def _task(job_id: str, record_of: Mapping[str, JobRecord]) -> str:
    return record_of[job_id].job.label if job_id in record_of else f"job {job_id}"


def shown_gpus(uuids: Iterable[str], index_of: Mapping[str, int]) -> str:
    """Return GPUs by index, runs of them joined (``0-7``); one that is in no inventory by its UUID."""
    known = sorted(index_of[uuid] for uuid in uuids if uuid in index_of)
    runs: list[list[int]] = []
    for index in known:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join([*shown, *(uuid for uuid in uuids if uuid not in index_of)])


def shown_units(progress: Progress) -> str:
    """Return the units done, of how many where the job has told."""
    total = shown_count(progress.units_total)
    return f"{shown_count(progress.units_done)} of {total}"


def _age(at_s: float | None, now_s: float) -> str:
    return UNKNOWN if at_s is None else f"{shown_duration(max(0.0, now_s - at_s))} ago"
