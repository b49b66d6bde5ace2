"""What command line and UI show, read in as few queries as it takes; nothing here changes anything."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, or_, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.board_limits import POWER_LIMIT_EVENT
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.store import jobs
from airflow_provider_eaco.store.chunks import chunks
from airflow_provider_eaco.store.decisions import (
    StoredDecision,
    StoredEvent,
    decisions_of,
    events_of,
    kind_id,
)
from airflow_provider_eaco.store.energy import energy_of
from airflow_provider_eaco.store.energy import records_of as energy_records_of
from airflow_provider_eaco.store.inventory import readings_of
from airflow_provider_eaco.store.leases import leases_of
from airflow_provider_eaco.store.ledger import view_of
from airflow_provider_eaco.store.past import records_by_id
from airflow_provider_eaco.store.schema import decision as decision_table
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.schema import planner as planner_table
from airflow_provider_eaco.store.schema import queue as queue_table
from airflow_provider_eaco.store.session import Database

_STANDING = decision_table.c.ended_at.is_(None)


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One waiting job.

    ``pool`` is the GPU pool that plans it, ``position`` of ``length`` its place there, the first is 1; all
    three are ``None`` until a planner has seen it. ``decision`` is the standing one of its kind (in a pool
    that only observes, its own), ``since_s`` the instant from which that answer has held for this job.
    """

    record: JobRecord
    pool: str | None = None
    position: int | None = None
    length: int | None = None
    decision: StoredDecision | None = None
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlannerState:
    """Who holds the planner lock until when; an instant in the past means that nobody plans."""

    owner: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class Overview:
    """One page of everything, all as of one instant, so that its numbers agree with each other.

    ``queue`` has every waiting job once: pool by pool in planned order, then those that nobody has planned.
    ``energy_j`` is the sum over all jobs that are still stored, ``None`` where nothing was measured;
    ``energy_of`` has what each job that holds GPUs has used so far, by job id; ``limits`` what was told last
    of its power limit, if anything ever was.
    """

    view: LedgerView
    queue: tuple[QueueEntry, ...]
    readings: Mapping[str, GpuReading]
    planner: PlannerState | None
    energy_j: float | None
    energy_of: Mapping[str, JobEnergy]
    limits: Mapping[str, StoredEvent] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStory:
    """All that is stored about one job: what was decided about it and what happened to it, oldest first.

    ``entry`` is its place in the queue while it waits; ``leases`` are all that it ever held.
    """

    record: JobRecord
    entry: QueueEntry | None
    decisions: tuple[StoredDecision, ...]
    events: tuple[StoredEvent, ...]
    leases: tuple[Lease, ...]
    energy: JobEnergy | None


class ReadModel:
    """The store as seen by those who only look."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def overview(self) -> Overview:
        """Return everything that the pages and tables show, as of one instant."""
        with self._database.reading() as connection:
            view = view_of(connection, self._database)
            total_j = connection.scalar(select(func.sum(energy_table.c.energy_j)))
            holders = [lease.job_id for lease in view.leases]
            of_limits = (event_table.c.job_id.in_(holders), event_table.c.event == POWER_LIMIT_EVENT)
            return Overview(
                view,
                tuple(_queue(connection, view.jobs)),
                readings_of(connection),
                _planner(connection),
                total_j,
                energy_of(connection, energy_table.c.job_id.in_(holders)),
                {event.job_id: event for event in events_of(connection, *of_limits)},
            )

    def queue(self) -> list[QueueEntry]:
        """Return every waiting job once: pool by pool in planned order, then those nobody has planned."""
        with self._database.reading() as connection:
            return _queue(connection, jobs.unfinished(connection))

    def job(self, job_id: str) -> JobRecord | None:
        """Return the stored job, also an ended one."""
        return self.newest_job([job_id])

    def newest_job(self, job_ids: Iterable[str]) -> JobRecord | None:
        """Return that of the jobs which was queued last; ``None`` if none of them is stored."""
        newest = jobs.select_records().where(job_table.c.job_id.in_(list(job_ids)))
        with self._database.reading() as connection:
            rows = connection.execute(newest.order_by(job_table.c.queued_at.desc()).limit(1))
            return next(iter(jobs.records_of(rows)), None)

    def jobs_of_task(self, dag_id: str, task_id: str, map_index: int | None = None) -> list[JobRecord]:
        """Return the stored jobs of a task, also ended ones, the last queued first."""
        query = jobs.select_records().where(job_table.c.dag_id == dag_id, job_table.c.task_id == task_id)
        if map_index is not None:
            query = query.where(job_table.c.map_index == map_index)
        with self._database.reading() as connection:
            return jobs.records_of(connection.execute(query.order_by(job_table.c.queued_at.desc())))

    def story(self, job_id: str) -> JobStory | None:
        """Return all that is stored about the job; ``None`` if it is not known (any more)."""
        return next(iter(self.stories([job_id])), None)

    def stories(self, job_ids: Iterable[str]) -> list[JobStory]:
        """Return all that is stored about those of the jobs that are known, in the order of the ids.

        Up to :data:`~airflow_provider_eaco.store.chunks.MOST_VALUES` jobs take as many statements as one.
        """
        wanted = list(dict.fromkeys(job_ids))
        with self._database.reading() as connection:
            found = records_by_id(connection, wanted)
            records = [found[job_id] for job_id in wanted if job_id in found]
            entries = {entry.record.job.job_id: entry for entry in _queue(connection, records)}
            decisions = _decisions_about(connection, records)
            events: dict[str, list[StoredEvent]] = defaultdict(list)
            leases: dict[str, list[Lease]] = defaultdict(list)
            energy: dict[str, JobEnergy] = {}
            for chunk in chunks(found):
                for event in events_of(connection, event_table.c.job_id.in_(chunk)):
                    events[event.job_id].append(event)
                for lease in leases_of(connection, lease_table.c.job_id.in_(chunk)):
                    leases[lease.job_id].append(lease)
                energy |= energy_records_of(connection, chunk)
        return [
            JobStory(
                found[job_id],
                entries.get(job_id),
                tuple(decisions[job_id]),
                tuple(events[job_id]),
                tuple(leases[job_id]),
                energy.get(job_id),
            )
            for job_id in wanted
            if job_id in found
        ]


def _planner(connection: Connection) -> PlannerState | None:
    row = connection.execute(select(planner_table.c.owner, planner_table.c.expires_at)).first()
    return None if row is None else PlannerState(row.owner, row.expires_at)


def _queue(connection: Connection, records: Sequence[JobRecord]) -> list[QueueEntry]:
    waiting = [record for record in records if record.phase is JobPhase.WAITING]
    if not waiting:
        return []
    places, apart = _places(connection)
    standing = decisions_of(connection, _STANDING)
    of_job = {(found.pool, found.job_id): found for found in standing if found.job_id is not None}
    of_part = {(found.pool, found.subject): found for found in standing if found.job_id is None}
    parts = set(apart.values())
    of_kind = {(pool, found.kind_id): found for (pool, part), found in of_part.items() if part not in parts}
    entries = []
    for record in waiting:
        job = record.job
        pool, position, length = places.get(job.job_id, (None, None, None))
        found = None
        if pool is not None:
            part = apart.get(job.job_id)
            of_many = of_kind.get((pool, kind_id(job.kind))) if part is None else of_part.get((pool, part))
            found = of_job.get((pool, job.job_id)) or of_many
        since_s = None if found is None else max(found.decided_s, job.queued_s)
        entries.append(QueueEntry(record, pool, position, length, found, since_s))
    return sorted(entries, key=_planned_first)


def _planned_first(entry: QueueEntry) -> tuple[bool, str, int, float]:
    planned = entry.pool is not None
    return not planned, entry.pool or "", entry.position or 0, entry.record.job.queued_s


def _places(connection: Connection) -> tuple[dict[str, tuple[str, int, int]], dict[str, str]]:
    """Place of each job that still waits, counted without those that have left since it was planned.

    And the subjects of the answers to those that were told something else than most of their kind.
    """
    still = set(
        connection.scalars(select(job_table.c.job_id).where(job_table.c.phase == JobPhase.WAITING.value))
    )
    places: dict[str, tuple[str, int, int]] = {}
    apart: dict[str, str] = {}
    for pool, ordered, parts in connection.execute(select(queue_table)):
        apart |= {job_id: subject for subject, job_ids in parts.items() for job_id in job_ids}
        present = [job_id for job_id in ordered if job_id in still]
        for position, job_id in enumerate(present, start=1):
            places[job_id] = (pool, position, len(present))
    return places, apart


def _decisions_about(connection: Connection, records: Sequence[JobRecord]) -> dict[str, list[StoredDecision]]:
    """Return by job its own admissions, and the answers to its kinds while it waited as one of them."""
    admissions: dict[str, list[StoredDecision]] = {record.job.job_id: [] for record in records}
    for chunk in chunks(admissions):
        for found in decisions_of(connection, decision_table.c.job_id.in_(chunk)):
            if found.job_id is not None:
                admissions[found.job_id].append(found)
    until_s = {record.job.job_id: _waited_until(record, admissions[record.job.job_id]) for record in records}
    of_kind: dict[str, list[StoredDecision]] = defaultdict(list)
    first_s = min((record.job.queued_s for record in records), default=0.0)
    lasted = or_(_STANDING, decision_table.c.ended_at >= first_s)
    for chunk in chunks(kind for of_job in until_s.values() for kind in of_job):
        of_kinds = decision_table.c.job_id.is_(None), decision_table.c.kind_id.in_(chunk), lasted
        for found in decisions_of(connection, *of_kinds):
            of_kind[found.kind_id].append(found)
    return {
        record.job.job_id: sorted(
            [
                *admissions[record.job.job_id],
                *(
                    found
                    for kind, last_s in until_s[record.job.job_id].items()
                    for found in of_kind[kind]
                    if _heard(found, record.job.queued_s, last_s)
                ),
            ],
            key=lambda found: (found.decided_s, found.decision_id),
        )
        for record in records
    }


def _waited_until(record: JobRecord, admissions: Sequence[StoredDecision]) -> dict[str, float]:
    """Return by kind the last instant at which the job heard what was told to that kind."""
    # What the cycle that admitted it told others of its kind was not told to it.
    until_s = {found.kind_id: math.nextafter(found.decided_s, -math.inf) for found in admissions}
    if record.phase in {JobPhase.WAITING, JobPhase.REJECTED, JobPhase.REMOVED}:
        until_s[kind_id(record.job.kind)] = math.inf if record.ended_s is None else record.ended_s
    return until_s


def _heard(found: StoredDecision, queued_s: float, until_s: float) -> bool:
    ended_before = found.ended_s is not None and found.ended_s < queued_s
    return not ended_before and found.decided_s <= until_s
