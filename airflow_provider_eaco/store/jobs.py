"""Jobs as rows: how one is written, read back, and moved along its life."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from functools import cache
from typing import Any

from sqlalchemy import Select, Text, case, exists, null, select, type_coerce, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase, phases_before
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress, Share
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import handed_in, upsert_in

# The owner of jobs that executors of others run.
OBSERVED = "observed"
_HOLDING_GPUS = (JobPhase.LEASED.value, JobPhase.RUNNING.value)

_REQUEST = (
    "gpus",
    "family",
    "gpu_memory_mib",
    "gpu_models",
    "host_memory_mib",
    "max_stretch",
    "deadline_s",
    "share",
    "shiftable",
)
_PROGRESS = (
    "units_done",
    "units_total",
    "run_s",
    "can_yield",
    "solo_unit_s",
    "solo_units",
    "solo_spread_s",
    "reported_s",
    "lost_s",
    "out_of_memory",
)
_OBSERVATION = (
    "seen_set_version",
    "seen_units",
    "seen_unit_s",
    "seen_elapsed_s",
    "seen_spread_s",
    "seen_limited",
)
# Besides the request, what a task that is handed over again may bring anew.
_ROUTE = ("dag_id", "task_id", "map_index", "run_after_at", "pool", "bundle", "pool_slots", "priority")
_ORDER = ("run_after_at", "dag_id", "task_id", "map_index", "job_id")
_REST = ("pool", "queued_at", "priority", "pool_slots", "on_hold", "bundle")
_RECORD = ("phase", "owner", "process", "started_at", "ended_at")
_R = len(_REQUEST)
_P = _R + len(_PROGRESS)
_S = _P + len(_OBSERVATION)
_O = _S + len(_ORDER)
_J = _O + len(_REST)

_NAMES = (*_REQUEST, *_PROGRESS, *_OBSERVATION, *_ORDER, *_REST, *_RECORD)
# The models of a request stay text until they are needed: most jobs share the request of another.
_READ_AS = {"gpu_models": type_coerce(job_table.c.gpu_models, Text)}
_COLUMNS = tuple(_READ_AS.get(name, job_table.c[name]) for name in _NAMES)


def enqueue(session: Session, job: Job, owner: str) -> None:
    """Write ``job`` as waiting through a session that belongs to somebody else; commit nothing.

    What holds afterwards is what holds after ``Ledger.add_waiting``, once that session is committed.

    :raises StoreUnavailableError: if the tables are out of reach; the session can still be used.
    """
    with handed_in(session) as connection:
        add_waiting(connection, job, owner)


def add_waiting(connection: Connection, job: Job, owner: str) -> None:
    """Store ``job`` as waiting, or bring it back to waiting; see ``Ledger.add_waiting``.

    A job that still holds GPUs stays as it is. If its process runs, it is noted that ``owner`` has a new
    workload for it, and it waits again as soon as its lease is released.
    """
    values = {
        **_request_values(job.request),
        **_progress_values(job.progress),
        "dag_id": job.order.dag_id,
        "task_id": job.order.task_id,
        "map_index": job.order.map_index,
        "run_after_at": job.order.run_after_s,
        "pool": job.pool,
        "bundle": job.bundle,
        "pool_slots": job.pool_slots,
        "priority": job.priority,
        "job_id": job.job_id,
        "queued_at": job.queued_s,
        "on_hold": job.on_hold,
        "phase": JobPhase.WAITING.value,
        "owner": owner,
    }
    connection.execute(_adding(connection.dialect.name), values)


@cache
def _adding(dialect_name: str) -> postgresql.Insert:
    """Return the statement of :func:`add_waiting`; making it takes ten times as long as running it."""
    statement = upsert_in(dialect_name, job_table)
    holds = job_table.c.phase.in_(_HOLDING_GPUS)
    running = job_table.c.phase == JobPhase.RUNNING.value
    changes: dict[str, Any] = {
        name: case((holds, job_table.c[name]), else_=statement.excluded[name])
        for name in (*_REQUEST, *_ROUTE, "owner", "phase")
    }
    for name in ("process", "ended_at"):
        changes[name] = case((holds, job_table.c[name]), else_=null())
    changes["requeued_by"] = case((running, statement.excluded.owner), else_=null())
    return statement.on_conflict_do_update(index_elements=["job_id"], set_=changes)


def select_records() -> Select[Any]:
    """Return the query that :func:`records_of` reads, to be narrowed by the caller."""
    return select(*_COLUMNS)


def unfinished(connection: Connection) -> list[JobRecord]:
    """Return every job that is not in a final phase, oldest first; those that are only observed are nobody's
    to plan.
    """
    open_phases = [phase.value for phase in JobPhase if phase not in FINAL_PHASES]
    query = select_records().where(job_table.c.phase.in_(open_phases), job_table.c.owner != OBSERVED)
    return records_of(connection.execute(query.order_by(job_table.c.queued_at, job_table.c.job_id)))


def records_of(rows: Iterable[Any]) -> list[JobRecord]:
    """Return the records of rows of :func:`select_records`. Jobs of one kind share their request object."""
    requests: dict[Any, GpuRequest] = {}
    records = []
    for row in map(tuple, rows):
        wanted = row[:_R]
        request = requests.get(wanted)
        if request is None:
            request = requests[wanted] = _request(wanted)
        pool, queued_s, priority, pool_slots, on_hold, bundle = row[_O:_J]
        phase, owner, process, started_s, ended_s = row[_J:]
        order = OrderKey(*row[_S:_O])
        progress = Progress(*row[_R:_P])
        job = Job(
            order.job_id, request, pool, queued_s, order, priority, pool_slots, on_hold, progress, bundle
        )
        seen = row[_P:_S]
        observation = None if seen[0] is None else Observation(*seen)
        records.append(JobRecord(job, JobPhase(phase), owner, process, observation, started_s, ended_s))
    return records


def _request(values: tuple[Any, ...]) -> GpuRequest:
    gpus, family, gpu_mib, models_json, host_mib, max_stretch, deadline_s, share, shiftable = values
    models = tuple(json.loads(models_json))
    return GpuRequest(
        gpus, family, gpu_mib, models, host_mib, max_stretch, deadline_s, Share(share), shiftable
    )


def set_hold(connection: Connection, job_id: str, on_hold: bool) -> bool:
    """Hold or release a waiting job; return whether there is one."""
    waiting = (job_table.c.job_id == job_id) & (job_table.c.phase == JobPhase.WAITING.value)
    return connection.execute(update(job_table).where(waiting).values(on_hold=on_hold)).rowcount == 1


def finish_waiting(connection: Connection, job_id: str, phase: JobPhase, now_s: float) -> bool:
    """End a job that holds no lease; return whether anything changed."""
    if phase not in FINAL_PHASES:
        raise ValueError(f"phase: {phase.value!r} ends no job, must be one of {_texts(FINAL_PHASES)}")
    before = phases_before(phase) & {JobPhase.WAITING, JobPhase.YIELDED}
    held = exists().where(lease_table.c.job_id == job_id, lease_table.c.released_at.is_(None))
    ending = (
        update(job_table)
        .where(job_table.c.job_id == job_id, job_table.c.phase.in_(_texts(before)), ~held)
        .values(phase=phase.value, ended_at=now_s, process=None)
    )
    return connection.execute(ending).rowcount == 1


def save_progress(
    connection: Connection, job_id: str, progress: Progress, observation: Observation | None
) -> None:
    """Record how far an unfinished job has come and what was seen under its present set."""
    seen: Mapping[str, Any] = dict.fromkeys(_OBSERVATION)
    if observation is not None:
        seen = dict(zip(_OBSERVATION, astuple(observation), strict=True))
    open_job = (job_table.c.job_id == job_id) & job_table.c.phase.not_in(_texts(FINAL_PHASES))
    connection.execute(update(job_table).where(open_job).values(**_progress_values(progress), **seen))


def _request_values(request: GpuRequest) -> dict[str, Any]:
    return {
        "gpus": request.gpus,
        "family": request.family,
        "gpu_memory_mib": request.gpu_memory_mib,
        "gpu_models": list(request.gpu_models),
        "host_memory_mib": request.host_memory_mib,
        "max_stretch": request.max_stretch,
        "deadline_s": request.deadline_s,
        "share": request.share.value,
        "shiftable": request.shiftable,
    }


def _progress_values(progress: Progress) -> dict[str, Any]:
    return {name: getattr(progress, name) for name in _PROGRESS}


def _texts(phases: Iterable[JobPhase]) -> list[str]:
    return sorted(phase.value for phase in phases)
