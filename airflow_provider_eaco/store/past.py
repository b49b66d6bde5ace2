"""What was, for those who look back: leases over time, past decisions, and energy by job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import EnergyMethod, JobRecord
from airflow_provider_eaco.store import inventory, jobs
from airflow_provider_eaco.store.chunks import chunks
from airflow_provider_eaco.store.decisions import StoredDecision, StoredEvent, decisions_of, events_of
from airflow_provider_eaco.store.energy_curve import Watts, curves_of_jobs, watts_over_time
from airflow_provider_eaco.store.schema import decision as decision_table
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import Database

# What ends or begins a trial, in the words of the engine's events.
TRIAL_EVENTS = ("trial", "confirmed", "unconfirmed", "undone")


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """A lease over time; ``released_s`` is ``None`` while it is held."""

    token: int
    job_id: str
    placement: Placement
    granted_s: float
    released_s: float | None


@dataclass(frozen=True, slots=True)
class LeasesOverTime:
    """The leases that were held at some time between two instants, the newest ``limit`` of them.

    ``events`` are those of :data:`TRIAL_EVENTS` of their jobs, oldest first. ``records`` are the jobs that
    are still stored.
    """

    now_s: float
    spans: tuple[LeaseSpan, ...]
    is_cut: bool
    events: tuple[StoredEvent, ...]
    records: Mapping[str, JobRecord]


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """Some decisions, the newest first, of ``total``; ``records`` has the jobs that they name."""

    now_s: float
    decisions: tuple[StoredDecision, ...]
    total: int
    records: Mapping[str, JobRecord]


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """What one job used of one GPU under one lease: ``None`` if unmeasured, a lower bound if ``partial``.

    ``gpu_model`` is ``None`` where the GPU is no longer known; ``updated_s`` is the instant of its last part.
    """

    job_id: str
    token: int
    gpu_uuid: str
    gpu_model: str | None
    energy_j: float | None
    seconds: float
    partial: bool
    method: EnergyMethod
    updated_s: float


@dataclass(frozen=True, slots=True)
class EnergyOverTime:
    """The energy rows that grew after an instant, with their jobs, as of ``now_s``."""

    now_s: float
    rows: tuple[EnergyRow, ...]
    records: Mapping[str, JobRecord]


@dataclass(frozen=True, slots=True)
class JobPast:
    """What one job held, beside whom, and what it drew there.

    ``spans`` are all its leases, the oldest first. By their tokens, ``beside`` has the ids of those that held
    the same GPUs meanwhile, and ``watts`` the draw over time. ``energy`` has a row a lease and GPU.
    """

    spans: tuple[LeaseSpan, ...] = ()
    beside: Mapping[int, Sequence[str]] = field(default_factory=dict)
    watts: Mapping[int, Sequence[Watts]] = field(default_factory=dict)
    energy: tuple[EnergyRow, ...] = ()


class PastReads:
    """The store as seen by those who look back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def leases_between(self, from_s: float, until_s: float, limit: int) -> LeasesOverTime:
        """Return who held what between the two instants."""
        held = or_(lease_table.c.released_at.is_(None), lease_table.c.released_at > from_s)
        newest = _SPANS.where(lease_table.c.granted_at < until_s, held).order_by(lease_table.c.token.desc())
        with self._database.reading() as connection:
            spans = _spans(connection, newest.limit(limit + 1))
            job_ids = {span.job_id for span in spans}
            return LeasesOverTime(
                now_s=self._database.now_s(connection),
                spans=tuple(reversed(spans[:limit])),
                is_cut=len(spans) > limit,
                events=tuple(_trial_events(connection, job_ids)),
                records=records_by_id(connection, job_ids),
            )

    def decisions(self, pool: str | None, limit: int, offset: int) -> DecisionPage:
        """Return decisions, the newest first; of one GPU pool where it is named."""
        conditions = [] if pool is None else [decision_table.c.pool == pool]
        newest = (
            select(decision_table.c.decision_id)
            .where(*conditions)
            .order_by(decision_table.c.decided_at.desc(), decision_table.c.decision_id.desc())
            .limit(limit)
            .offset(offset)
        )
        with self._database.reading() as connection:
            total = connection.scalar(select(func.count()).select_from(decision_table).where(*conditions))
            chosen = list(connection.scalars(newest))
            found = decisions_of(connection, decision_table.c.decision_id.in_(chosen))
            named = {job_id for each in found for job_id in _jobs_named(each)}
            return DecisionPage(
                now_s=self._database.now_s(connection),
                decisions=tuple(reversed(found)),
                total=total or 0,
                records=records_by_id(connection, named),
            )

    def energy_since(self, from_s: float) -> EnergyOverTime:
        """Return the energy of all jobs of which some was stored after the instant, whole jobs."""
        grown = select(energy_table.c.job_id).where(energy_table.c.updated_at >= from_s)
        with self._database.reading() as connection:
            rows = _energy_rows(connection, energy_table.c.job_id.in_(grown))
            return EnergyOverTime(
                now_s=self._database.now_s(connection),
                rows=tuple(rows),
                records=records_by_id(connection, {row.job_id for row in rows}),
            )

    def of_jobs(self, job_ids: Iterable[str]) -> dict[str, JobPast]:
        """Return the past of every one of these jobs by its id; that of an unknown job is empty."""
        found: dict[str, JobPast] = {}
        with self._database.reading() as connection:
            for chunk in chunks(job_ids):
                found |= _pasts(connection, chunk)
        return found

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with their GPUs as they are now."""
        with self._database.reading() as connection:
            return inventory.nodes_of(connection)[0]

    def records(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Return those of the jobs that are stored, by id."""
        with self._database.reading() as connection:
            return records_by_id(connection, job_ids)

    def newest_first(self, job_ids: Iterable[str]) -> list[str]:
        """Return the ids of those of the jobs that are stored, the last queued first."""
        queued: list[tuple[float, str]] = []
        with self._database.reading() as connection:
            for chunk in chunks(job_ids):
                query = select(job_table.c.queued_at, job_table.c.job_id).where(job_table.c.job_id.in_(chunk))
                queued += [(-queued_s, job_id) for queued_s, job_id in map(tuple, connection.execute(query))]
        return [job_id for _, job_id in sorted(queued)]

    def now_s(self) -> float:
        """Return the store's present instant."""
        with self._database.reading() as connection:
            return self._database.now_s(connection)


_SPANS = select(
    *(lease_table.c[name] for name in ("token", "job_id", "node", "gpu_uuids", "granted_at", "released_at"))
)


def _spans(connection: Connection, query: Select[Any]) -> list[LeaseSpan]:
    return [
        LeaseSpan(token, job_id, Placement(node, uuids), granted_s, released_s)
        for token, job_id, node, uuids, granted_s, released_s in map(tuple, connection.execute(query))
    ]


def _pasts(connection: Connection, job_ids: Sequence[str]) -> dict[str, JobPast]:
    """Return the past of every one of so few jobs that they fit one statement."""
    spans: dict[str, list[LeaseSpan]] = defaultdict(list)
    for span in _spans(connection, _SPANS.where(lease_table.c.job_id.in_(job_ids))):
        spans[span.job_id].append(span)
    if not spans:
        return {job_id: JobPast() for job_id in job_ids}
    beside, curves = _beside(connection, job_ids), curves_of_jobs(connection, job_ids)
    rows: dict[str, list[EnergyRow]] = defaultdict(list)
    for row in _energy_rows(connection, energy_table.c.job_id.in_(job_ids)):
        rows[row.job_id].append(row)
    return {
        job_id: JobPast(
            tuple(sorted(spans[job_id], key=lambda span: span.token)),
            {span.token: beside.get(span.token, []) for span in spans[job_id]},
            {
                span.token: watts_over_time(curves.get(span.token, ()), span.granted_s)
                for span in spans[job_id]
            },
            tuple(rows[job_id]),
        )
        for job_id in job_ids
    }


def _beside(connection: Connection, job_ids: Sequence[str]) -> dict[int, list[str]]:
    own, other = lease_table.alias("own"), lease_table.alias("other")
    # Residents share identical GPU sets.
    same = (other.c.gpu_uuids == own.c.gpu_uuids) & (other.c.job_id != own.c.job_id)
    query = (
        select(own.c.token, other.c.job_id)
        .distinct()
        .select_from(own)
        .join(other, same)
        .where(
            own.c.job_id.in_(job_ids),
            or_(own.c.released_at.is_(None), other.c.granted_at < own.c.released_at),
            or_(other.c.released_at.is_(None), other.c.released_at > own.c.granted_at),
        )
        .order_by(own.c.token, other.c.job_id)
    )
    found: dict[int, list[str]] = defaultdict(list)
    for token, job_id in map(tuple, connection.execute(query)):
        found[token].append(job_id)
    return found


def _energy_rows(connection: Connection, condition: Any) -> list[EnergyRow]:
    names = ("job_id", "token", "gpu_uuid", "energy_j", "seconds", "partial", "method", "updated_at")
    query = (
        select(*(energy_table.c[name] for name in names), gpu_table.c.model)
        .outerjoin(gpu_table, gpu_table.c.uuid == energy_table.c.gpu_uuid)
        .where(condition)
        .order_by(energy_table.c.token, energy_table.c.gpu_uuid)
    )
    return [
        EnergyRow(
            job_id=row.job_id,
            token=row.token,
            gpu_uuid=row.gpu_uuid,
            gpu_model=row.model,
            energy_j=row.energy_j,
            seconds=row.seconds,
            partial=row.partial,
            method=EnergyMethod(row.method),
            updated_s=row.updated_at,
        )
        for row in connection.execute(query)
    ]


def _jobs_named(decision: StoredDecision) -> tuple[str, ...]:
    own = () if decision.job_id is None else (decision.job_id,)
    return (*own, *decision.decision.co_residents)


def _trial_events(connection: Connection, job_ids: Iterable[str]) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    for chunk in chunks(job_ids):
        of_jobs = event_table.c.job_id.in_(chunk)
        found += events_of(connection, of_jobs, event_table.c.event.in_(TRIAL_EVENTS))
    return found


def records_by_id(connection: Connection, job_ids: Iterable[str]) -> dict[str, JobRecord]:
    """Return those of the jobs that are stored, by id."""
    found: dict[str, JobRecord] = {}
    for chunk in chunks(job_ids):
        query = jobs.select_records().where(job_table.c.job_id.in_(chunk))
        found |= {record.job.job_id: record for record in jobs.records_of(connection.execute(query))}
    return found
