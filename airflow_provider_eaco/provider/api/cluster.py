"""``/overview``: pools, nodes, GPUs and who is on them, all as of one instant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, User, may_steer
from airflow_provider_eaco.provider.api.jobs_shown import JobName, JobNames
from airflow_provider_eaco.provider.api.pace import Pace, pace_of
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.api.versions import answer_if_changed
from airflow_provider_eaco.provider.cli.facts import Facts, read_facts
from airflow_provider_eaco.provider.cli.pool_rows import airflow_pool_rows, pool_rows, summary
from airflow_provider_eaco.provider.cli.rows import node_state, power_w
from airflow_provider_eaco.provider.shown import shown_foreign

router = APIRouter(tags=["cluster"], dependencies=[CanSee])


class Resident(JobName):
    """A job that holds GPUs. ``slowdown`` is that of its units under the present set, ``stretch`` so far."""

    state: str = Field(description="exclusive, trial, confirmed, unconfirmed or yielding")
    granted_s: float
    units_done: int
    units_total: int | None
    slowdown: float | None
    stretch: float | None


class GpuShown(BaseModel):
    """One GPU; ``null`` is unknown, which is neither 0 nor idle. ``residents`` are job ids, ``foreign`` what
    somebody else has there, as ``airflow eaco nodes`` tells it.
    """

    uuid: str
    index: int
    model: str
    health: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    utilisation_pct: float | None
    power_w: float | None
    residents: list[str]
    foreign: str


class NodeShown(BaseModel):
    """One node with its GPUs. ``power_w`` is unknown unless that of each GPU is known."""

    name: str
    state: str = Field(description="available, draining, asleep, waking or unavailable")
    last_report_s: float | None
    host_memory_mib: int | None
    time_scale: float = Field(description="device seconds in a second; above 1 only on simulated nodes")
    power_w: float | None
    gpus: list[GpuShown]


class SummaryShown(BaseModel):
    """All nodes and jobs together. Texts are those of ``airflow eaco status``."""

    now_s: float = Field(description="the store's clock, seconds since the Unix epoch")
    may_steer: bool = Field(description="whether you may drain nodes and correct profiles")
    summary: dict[str, str]
    pools: list[dict[str, str]]
    airflow_pools: list[dict[str, str]]


class Overview(SummaryShown):
    """Everything about the cluster."""

    nodes: list[NodeShown]
    residents: dict[str, Resident]


@router.get("/summary", response_model=SummaryShown)
def totals(request: Request, user: User) -> Response:
    """Return totals and pools of one instant; 304 where nothing changed since ``ETag``."""
    return answer_if_changed(request, _summary(read_facts(), user))


@router.get("/overview", response_model=Overview)
def overview(request: Request, user: User) -> Response:
    """Return pools, nodes, GPUs and residents of one instant; 304 where nothing changed since ``ETag``."""
    return answer_if_changed(request, overview_of(read_facts(), user))


def overview_of(facts: Facts, user: User) -> Overview:
    """Return the answer for this user."""
    view = facts.view
    records = {record.job.job_id: record for record in view.jobs}
    held = [(lease, records.get(lease.job_id)) for lease in view.leases]
    names = JobNames(user, [record for _, record in held if record is not None], with_runs=True)
    model_of = {gpu.uuid: gpu.model for node in view.nodes for gpu in node.gpus}
    book = the_store().profiles.book()
    on_gpu: dict[str, list[str]] = defaultdict(list)
    for lease in view.leases:
        for uuid in lease.placement.gpu_uuids:
            on_gpu[uuid].append(lease.job_id)
    return Overview(
        **_summary(facts, user).model_dump(),
        nodes=[_node(node, facts, on_gpu) for node in sorted(view.nodes, key=lambda node: node.name)],
        residents={
            lease.job_id: _resident(lease, record, names, pace_of(record, lease.placement, model_of, book))
            for lease, record in held
            if record is not None
        },
    )


def _summary(facts: Facts, user: User) -> SummaryShown:
    view = facts.view
    return SummaryShown(
        now_s=view.now_s,
        may_steer=may_steer(user),
        summary=asdict(summary(view, facts.readings, facts.energy_j)),
        pools=[asdict(row) for row in pool_rows(view, facts.states)],
        airflow_pools=[asdict(row) for row in airflow_pool_rows(view, facts.states)],
    )


def _node(node: Node, facts: Facts, on_gpu: Mapping[str, Sequence[str]]) -> NodeShown:
    readings = facts.readings
    return NodeShown(
        name=node.name,
        state=node_state(node, facts.sleeping.get(node.name)),
        last_report_s=node.last_report_s,
        host_memory_mib=node.host_memory_mib,
        time_scale=node.time_scale,
        power_w=power_w(node.gpus, readings),
        gpus=[
            _gpu(gpu, readings.get(gpu.uuid), on_gpu.get(gpu.uuid, ()))
            for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)
        ],
    )


def _gpu(gpu: Gpu, reading: GpuReading | None, residents: Sequence[str]) -> GpuShown:
    return GpuShown(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        health=gpu.health.value,
        memory_total_mib=gpu.memory_usable_mib,
        memory_used_mib=None if reading is None else reading.memory_used_mib,
        utilisation_pct=None if reading is None else reading.utilisation_pct,
        power_w=None if reading is None else reading.power_w,
        residents=list(residents),
        foreign=shown_foreign(reading),
    )


def _resident(lease: Lease, record: JobRecord, names: JobNames, pace: Pace) -> Resident:
    progress = record.job.progress
    return Resident(
        **names.name(record).model_dump(),
        state=lease.state.value,
        granted_s=lease.granted_s,
        units_done=progress.units_done,
        units_total=progress.units_total,
        slowdown=pace.slowdown,
        stretch=pace.stretch,
    )
