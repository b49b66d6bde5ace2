"""What was, for those who look back: leases over time, past decisions, and energy by job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import EnergyMethod, JobRecord
from airflow_provider_eaco.store import jobs
from airflow_provider_eaco.store.decisions import StoredDecision, StoredEvent, decisions_of, events_of
from airflow_provider_eaco.store.energy_curve import Watts, curves_of_job, watts_over_time
from airflow_provider_eaco.store.schema import decision as decision_table
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import Database

# Below the number of variables that every supported database takes in one statement.
_CHUNK = 500
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
                events=tuple(_trial_events(connection, sorted(job_ids))),
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

    def energy_of_job(self, job_id: str) -> list[EnergyRow]:
        """Return what is stored of one job's energy, lease by lease."""
        with self._database.reading() as connection:
            return _energy_rows(connection, energy_table.c.job_id == job_id)

    def watts_of_job(self, job_id: str) -> dict[int, list[Watts]]:
        """Return what each of the job's leases has drawn over time, by its token."""
        with self._database.reading() as connection:
            curves = curves_of_job(connection, job_id)
            own = _spans(connection, _SPANS.where(lease_table.c.job_id == job_id))
        return {span.token: watts_over_time(curves.get(span.token, ()), span.granted_s) for span in own}

    def company_of_job(self, job_id: str) -> tuple[list[LeaseSpan], dict[int, list[str]]]:
        """Return every lease of the job, oldest first, and by its token who held the same GPUs meanwhile."""
        with self._database.reading() as connection:
            own = _spans(connection, _SPANS.where(lease_table.c.job_id == job_id))
            beside = {span.token: _beside(connection, span) for span in own}
        return sorted(own, key=lambda span: span.token), beside

    def records(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Return those of the jobs that are stored, by id."""
        with self._database.reading() as connection:
            return records_by_id(connection, job_ids)

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


def _beside(connection: Connection, span: LeaseSpan) -> list[str]:
    ended = lease_table.c.released_at
    until = [] if span.released_s is None else [lease_table.c.granted_at < span.released_s]
    query = (
        select(lease_table.c.job_id)
        .distinct()
        .where(
            # Residents share identical GPU sets.
            lease_table.c.gpu_uuids == span.placement.gpu_uuids,
            lease_table.c.job_id != span.job_id,
            or_(ended.is_(None), ended > span.granted_s),
            *until,
        )
        .order_by(lease_table.c.job_id)
    )
    return list(connection.scalars(query))


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


def _trial_events(connection: Connection, job_ids: Sequence[str]) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    for start in range(0, len(job_ids), _CHUNK):
        of_jobs = event_table.c.job_id.in_(job_ids[start : start + _CHUNK])
        found += events_of(connection, of_jobs, event_table.c.event.in_(TRIAL_EVENTS))
    return found


def records_by_id(connection: Connection, job_ids: Iterable[str]) -> dict[str, JobRecord]:
    """Return those of the jobs that are stored, by id."""
    wanted = sorted(set(job_ids))
    found: dict[str, JobRecord] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = jobs.select_records().where(job_table.c.job_id.in_(wanted[start : start + _CHUNK]))
        found |= {record.job.job_id: record for record in jobs.records_of(connection.execute(query))}
    return found
