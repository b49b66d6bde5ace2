"""Small builders: a test names what its case is about, everything else has a plain default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    ProfileBook,
    SoloProfile,
    family_set,
)
from airflow_provider_eaco.core.model.snapshot import (
    AirflowPool,
    ClusterSnapshot,
    GpuSet,
    NodeState,
    Observation,
    PoolState,
    Resident,
)
from airflow_provider_eaco.data import built_in_book

NOW_S = 1_000_000.0


def make_request(family: str = "J1", gpus: int = 8, **changes: Any) -> GpuRequest:
    """A job that asks for a whole V100 node and 4000 MiB on each GPU, with the default stretch limit."""
    return GpuRequest(**{"gpus": gpus, "family": family, "gpu_memory_mib": 4000, **changes})


_JOB_FIELDS = frozenset({"pool", "queued_s", "priority", "pool_slots", "on_hold", "progress", "bundle"})


def make_job(
    job_id: str = "job",
    family: str = "J1",
    gpus: int = 8,
    *,
    run_after_s: float = 0.0,
    dag_id: str = "dag",
    task_id: str | None = None,
    map_index: int = -1,
    **changes: Any,
) -> Job:
    """A job; keywords are fields of the job or of its request."""
    order = OrderKey(run_after_s, dag_id, job_id if task_id is None else task_id, map_index, job_id)
    job_changes = {name: changes.pop(name) for name in _JOB_FIELDS & changes.keys()}
    fields = {"pool": "eaco", "queued_s": NOW_S, **job_changes}
    return Job(job_id, make_request(family, gpus, **changes), order=order, **fields)


def make_node(
    name: str = "node-a",
    gpus: int = 8,
    model: str = "V100",
    memory_mib: int | None = 32_768,
    reserved_mib: int = 0,
    **changes: Any,
) -> NodeState:
    """A node with free, healthy GPUs of one model."""
    own = tuple(
        Gpu(f"{name}-gpu{index:02d}", name, index, model, memory_mib, reserved_mib) for index in range(gpus)
    )
    return NodeState(Node(name, own, **changes), free=own)


def make_resident(
    job: Job,
    state: LeaseState = LeaseState.EXCLUSIVE,
    *,
    token: int = 1,
    set_version: int = 1,
    granted_s: float = NOW_S - 3600,
    trial_since_s: float | None = None,
    unit_s: float | None = None,
    units: int = 1,
) -> Resident:
    """A resident; with ``unit_s`` it has reported ``units`` complete units under its set's version."""
    seen = None if unit_s is None else Observation(set_version, units, unit_s, units * unit_s)
    return Resident(job, token, state, set_version, granted_s, seen, trial_since_s)


def hold_gpus(node: NodeState, *residents: Resident) -> NodeState:
    """The node with these residents together on as many of its free GPUs as the first one asks for."""
    chosen = node.free[: residents[0].job.request.gpus]
    placement = Placement(node.node.name, tuple(sorted(gpu.uuid for gpu in chosen)))
    held = GpuSet(placement, chosen, residents)
    return replace(node, sets=(*node.sets, held), free=node.free[len(chosen) :])


def make_snapshot(
    *nodes: NodeState,
    waiting: Iterable[Job] = (),
    slots: int | None = None,
    used: int = 0,
    settings: PoolSettings | None = None,
    profiles: ProfileBook | None = None,
    readings: Sequence[GpuReading] = (),
    now_s: float = NOW_S,
) -> ClusterSnapshot:
    """A pool ``eaco`` over these nodes, with the built-in profiles and an unlimited Airflow pool."""
    return ClusterSnapshot(
        now_s,
        PoolState(settings or PoolSettings(), {"eaco": AirflowPool(slots, used)}),
        {node.node.name: node for node in nodes},
        tuple(waiting),
        built_in_book() if profiles is None else profiles,
        {reading.uuid: reading for reading in readings},
    )


def make_progress(done: int = 0, total: int | None = None, unit_s: float = 100.0, **changes: Any) -> Progress:
    """Progress of a run whose units have taken ``unit_s`` each so far."""
    return Progress(**{"units_done": done, "units_total": total, "run_s": done * unit_s, **changes})


def make_solo(family: str = "A", gpu_model: str = "T4", gpu_count: int = 1, **changes: Any) -> SoloProfile:
    """A light job on one T4: 100 s a unit, 40 W, 20 % busy, 4000 MiB."""
    plain: dict[str, Any] = {
        "unit_s": 100.0,
        "power_w": 40.0,
        "utilisation_pct": 20.0,
        "memory_peak_mib": 4000,
        "samples": 3,
    }
    return SoloProfile(family, gpu_model, gpu_count, **{**plain, **changes})


def make_pair(
    slowdowns: dict[str, float], gpu_model: str = "T4", gpu_count: int = 1, **changes: Any
) -> CoallocationProfile:
    """A measured set of the families in ``slowdowns`` (each once): 50 W, 40 % busy."""
    plain = {"power_w": 50.0, "utilisation_pct": 40.0, "samples": 3, **changes}
    return CoallocationProfile(family_set(list(slowdowns)), gpu_model, gpu_count, slowdowns, **plain)


def make_book(*profiles: SoloProfile | CoallocationProfile) -> ProfileBook:
    """A book of exactly these profiles."""
    solo = {profile.key: profile for profile in profiles if isinstance(profile, SoloProfile)}
    shared = {profile.key: profile for profile in profiles if isinstance(profile, CoallocationProfile)}
    return ProfileBook(solo, shared)
