"""Leases as rows: grants by compare-and-set, the set's version, release (docs/adr/0004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase, may_become
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import PastLease
from airflow_provider_eaco.store.inventory import sweep_forgotten
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table

_HELD = lease_table.c.released_at.is_(None)
_COLUMNS = tuple(
    lease_table.c[name]
    for name in (
        "token",
        "job_id",
        "node",
        "gpu_uuids",
        "state",
        "set_version",
        "granted_at",
        "trial_since_at",
        "owner",
        "charged_s",
        "charged_until_at",
    )
)


def held_leases(connection: Connection) -> list[Lease]:
    """Return every lease that has not been released, oldest first."""
    return leases_of(connection, _HELD)


def leases_of(connection: Connection, *conditions: Any) -> list[Lease]:
    """Return the leases that meet the conditions, oldest first."""
    rows = connection.execute(select(*_COLUMNS).where(*conditions).order_by(lease_table.c.token))
    return [
        Lease(token, job_id, Placement(node, uuids), LeaseState(state), *rest)
        for token, job_id, node, uuids, state, *rest in map(tuple, rows)
    ]


def past_leases(connection: Connection, after_s: float, until_s: float) -> list[PastLease]:
    """Return the leases that ended after the one instant and not after the other; see ``Ledger``."""
    query = select(
        *(
            lease_table.c[name]
            for name in ("token", "node", "gpu_uuids", "granted_at", "released_at", "charged_s")
        ),
        *(job_table.c[name] for name in ("pool", "bundle", "dag_id", "queued_at")),
    ).join(job_table, job_table.c.job_id == lease_table.c.job_id)
    ended = query.where(lease_table.c.released_at > after_s, lease_table.c.released_at <= until_s)
    return [
        PastLease(token, node, len(uuids), *rest)
        for token, node, uuids, *rest in map(tuple, connection.execute(ended))
    ]


def grant(
    connection: Connection,
    launch: Launch,
    state: LeaseState,
    gpu_versions: Mapping[str, int],
    *,
    owner: str,
    now_s: float,
) -> Lease:
    """Store the lease, move the job to leased and its co-residents to trial; see ``Ledger.grant``."""
    job_id = launch.job.job_id
    node, uuids = launch.placement.node, tuple(sorted(launch.placement.gpu_uuids))
    if not uuids:
        raise ValueError(f"launch: the placement of job {job_id!r} names no GPU, must name at least one")
    _compare_and_set(connection, node, uuids, gpu_versions)
    staying = _residents(connection, node, uuids)
    set_version = _next_set_version(connection, uuids)
    _move_to_leased(connection, job_id, owner)
    _move_set(connection, staying, LeaseState.TRIAL, set_version, now_s=now_s, members=len(staying))
    since_s = None if state is LeaseState.EXCLUSIVE else now_s
    dag_id = select(job_table.c.dag_id).where(job_table.c.job_id == job_id).scalar_subquery()
    row = insert(lease_table).values(
        job_id=job_id,
        dag_id=dag_id,
        node=node,
        gpu_uuids=uuids,
        state=state.value,
        set_version=set_version,
        owner=owner,
        granted_at=now_s,
        trial_since_at=since_s,
        charged_s=0.0,
        charged_until_at=now_s,
    )
    try:
        token = connection.execute(row.returning(lease_table.c.token)).scalar_one()
    except IntegrityError as error:
        raise LeaseConflictError(f"job {job_id!r} already holds GPUs") from error
    placement = Placement(node, uuids)
    return Lease(token, job_id, placement, state, set_version, now_s, since_s, owner, 0.0, now_s)


def _compare_and_set(
    connection: Connection, node: str, uuids: Sequence[str], gpu_versions: Mapping[str, int]
) -> None:
    # One by one in sorted order: two planners that want the same GPUs meet at the first and cannot deadlock.
    for uuid in uuids:
        seen = gpu_versions.get(uuid)
        unchanged = (
            update(gpu_table)
            .where(gpu_table.c.uuid == uuid, gpu_table.c.node == node, gpu_table.c.present)
            .where(gpu_table.c.ledger_version == seen)
            .values(ledger_version=gpu_table.c.ledger_version + 1)
        )
        if seen is None or connection.execute(unchanged).rowcount != 1:
            raise LeaseConflictError(f"GPU {uuid} on node {node!r} changed since the snapshot")


def _residents(connection: Connection, node: str, uuids: tuple[str, ...]) -> list[Lease]:
    wanted = set(uuids)
    there = [
        lease
        for lease in leases_of(connection, _HELD, lease_table.c.node == node)
        if wanted.intersection(lease.placement.gpu_uuids)
    ]
    for lease in there:
        if lease.placement.gpu_uuids != uuids:
            raise LeaseConflictError(
                f"GPUs {', '.join(uuids)} overlap those of job {lease.job_id!r}; residents share whole sets"
            )
    return there


def _next_set_version(connection: Connection, uuids: Sequence[str]) -> int:
    of_set = gpu_table.c.uuid.in_(uuids)
    versions = connection.scalars(select(gpu_table.c.set_version).where(of_set)).all()
    version = max(versions, default=0) + 1
    connection.execute(update(gpu_table).where(of_set).values(set_version=version))
    return version


def _move_to_leased(connection: Connection, job_id: str, owner: str) -> None:
    waiting = (
        update(job_table)
        .where(
            job_table.c.job_id == job_id,
            job_table.c.phase == JobPhase.WAITING.value,
            job_table.c.on_hold.is_(False),
        )
        .values(phase=JobPhase.LEASED.value, owner=owner, process=None, seen_set_version=None)
    )
    if connection.execute(waiting).rowcount != 1:
        raise LeaseConflictError(f"job {job_id!r} is no longer waiting")


def _move_set(
    connection: Connection,
    leases: Sequence[Lease],
    state: LeaseState,
    set_version: int,
    *,
    now_s: float,
    members: int,
) -> None:
    """Give those who stay in a set its new version; one that was asked to yield still is, unless alone.

    :param members: how many there were until now, among whom the time up to now is divided.
    """
    alone = state is LeaseState.EXCLUSIVE
    for lease in leases:
        stays_asked = lease.state is LeaseState.YIELDING and not alone
        connection.execute(
            update(lease_table)
            .where(lease_table.c.token == lease.token)
            .values(
                state=(LeaseState.YIELDING if stays_asked else state).value,
                set_version=set_version,
                trial_since_at=None if alone else now_s,
                charged_s=lease.charged_at(now_s, members),
                charged_until_at=now_s,
            )
        )


def set_lease_state(connection: Connection, placement: Placement, set_version: int, state: LeaseState) -> int:
    """Move the set's leases if it still has this version, except yielding ones; return how many."""
    _lock_gpus(connection, placement.gpu_uuids)
    moved = (
        update(lease_table)
        .where(
            _HELD,
            lease_table.c.node == placement.node,
            lease_table.c.gpu_uuids == tuple(placement.gpu_uuids),
            lease_table.c.set_version == set_version,
            lease_table.c.state != LeaseState.YIELDING.value,
        )
        .values(state=state.value)
    )
    return connection.execute(moved).rowcount


def ask_to_yield(connection: Connection, job_id: str, set_version: int) -> bool:
    """Mark the job's lease as yielding if its set still has this version; return whether it did."""
    asked = (
        update(lease_table)
        .where(_HELD, lease_table.c.job_id == job_id, lease_table.c.set_version == set_version)
        .values(state=LeaseState.YIELDING.value)
    )
    return connection.execute(asked).rowcount == 1


def set_running(connection: Connection, token: int, process: str, now_s: float) -> bool:
    """Record the process of a leased job; return ``False`` when the token is no longer valid."""
    holder = select(lease_table.c.job_id).where(lease_table.c.token == token, _HELD).scalar_subquery()
    phases = (JobPhase.LEASED.value, JobPhase.RUNNING.value)
    started = (
        update(job_table)
        .where(job_table.c.job_id == holder, job_table.c.phase.in_(phases))
        .values(phase=JobPhase.RUNNING.value, process=process)
    )
    if connection.execute(started).rowcount != 1:
        return False
    first = update(job_table).where(job_table.c.job_id == holder, job_table.c.started_at.is_(None))
    connection.execute(first.values(started_at=now_s))
    return True


def release(connection: Connection, token: int, phase: JobPhase, now_s: float) -> bool:
    """End the lease and move its job to ``phase``; see ``Ledger.release``.

    A job that was handed over again meanwhile waits again, whatever ``phase`` says of its former run.

    :raises ValueError: if the lifecycle does not allow ``phase`` now; then nothing has changed.
    """
    found = leases_of(connection, lease_table.c.token == token, _HELD)
    if not found:
        return False
    node, uuids = found[0].placement.node, found[0].placement.gpu_uuids
    _lock_gpus(connection, uuids)
    # Only now are the rows certain: another release may have been first while this one waited for the lock.
    members = _residents(connection, node, uuids)
    lease = next((member for member in members if member.token == token), None)
    if lease is None:
        return False
    ended = update(lease_table).where(lease_table.c.token == token)
    charged_s = lease.charged_at(now_s, len(members))
    connection.execute(ended.values(released_at=now_s, charged_s=charged_s, charged_until_at=now_s))
    _move_to_released(connection, lease.job_id, phase, now_s)
    version = _next_set_version(connection, uuids)
    grown = update(gpu_table).where(gpu_table.c.uuid.in_(uuids))
    connection.execute(grown.values(ledger_version=gpu_table.c.ledger_version + 1))
    staying = [member for member in members if member.token != token]
    state = LeaseState.EXCLUSIVE if len(staying) == 1 else LeaseState.TRIAL
    _move_set(connection, staying, state, version, now_s=now_s, members=len(members))
    sweep_forgotten(connection, node)
    return True


def _move_to_released(connection: Connection, job_id: str, phase: JobPhase, now_s: float) -> None:
    of_job = job_table.c.job_id == job_id
    row = connection.execute(select(job_table.c.phase, job_table.c.requeued_by).where(of_job)).one()
    present = JobPhase(row.phase)
    if phase is present or not may_become(present, phase):
        raise ValueError(f"phase: a {present.value} job cannot be released to {phase.value}")
    values: dict[str, Any] = {"phase": phase.value, "process": None, "requeued_by": None}
    if row.requeued_by is not None:
        values |= {"phase": JobPhase.WAITING.value, "owner": row.requeued_by}
    elif phase in FINAL_PHASES:
        values["ended_at"] = now_s
    connection.execute(update(job_table).where(of_job).values(**values))


def _lock_gpus(connection: Connection, uuids: Sequence[str]) -> None:
    # Every change of a set holds its GPU rows first, in sorted order, as a grant does: no two can deadlock.
    locked = select(gpu_table.c.uuid).where(gpu_table.c.uuid.in_(sorted(uuids)))
    connection.execute(locked.order_by(gpu_table.c.uuid).with_for_update()).all()
