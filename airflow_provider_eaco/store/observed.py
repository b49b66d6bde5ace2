"""Tasks that other executors run, as rows: a job, a lease that counts as released, and its energy.

Nothing of it holds a GPU: the ledger shows leases that have not been released, and one of an observed task
ends anew with every report, until the task has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.observed import ObservedReport, ObservedTask
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.store import jobs, machine_energy
from airflow_provider_eaco.store.columns import Instant
from airflow_provider_eaco.store.energy import bring_to, note_run
from airflow_provider_eaco.store.leases import leases_of
from airflow_provider_eaco.store.node_reports import SqlNodeReports, check_own_gpus
from airflow_provider_eaco.store.observed_tables import node_sample as sample_table
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.schema import node as node_table
from airflow_provider_eaco.store.session import upsert

# What the story of an observed job says once it has been decided about.
OBSERVED_EVENT = "observed"
# What it says last of a job that has ended.
ENERGY_EVENT = "energy"
# What ended longer ago and has no such line stays without it.
_CLOSABLE_S = 86400.0
# A node that has said nothing for so many time-outs is not only late.
_SILENCES = 2.0
_OBSERVED = lease_table.c.state == LeaseState.OBSERVED.value


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What a report was to the store. ``undecided`` are jobs to be decided about, oldest first.

    ``left_out`` are those that are neither known nor new, and those that an executor of ours runs.
    ``silent`` are jobs of any node that count as running and of which no sampler has told for long.
    ``unclosed`` are jobs of this node that have ended lately, do not live by this report, and whose story has
    no line about their energy since.
    """

    undecided: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unclosed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedNow:
    """Where observed tasks run, oldest first, their jobs, and the nodes whose samplers have told lately.

    ``jobs`` has also those whose process is gone and that have not ended yet.
    """

    leases: tuple[Lease, ...]
    jobs: tuple[JobRecord, ...]
    nodes: frozenset[str]


class SqlObservedTasks(SqlNodeReports):
    """The store's door for samplers. Whoever calls has checked the node's credential."""

    def known(self, report: ObservedReport) -> frozenset[str]:
        """Return the processes of this report that are stored already."""
        with self._database.reading() as connection:
            return frozenset(
                task.process for task in report.tasks if _lease_of(connection, report.node, task) is not None
            )

    def observe(self, report: ObservedReport, new: Mapping[str, Job]) -> TakenIn:
        """Write the report down as one transaction; a task that is neither known nor new is left out.

        :param new: jobs by id, of tasks that are not stored yet.
        :raises NodeRefusedError: if another machine reports for this node, or a task is said to use a GPU
            that the node never had; then nothing was taken.
        """
        undecided, left_out = [], []
        with self._database.writing() as connection:
            self._check_turn(connection, report.node, report.machine)
            check_own_gpus(connection, report.node, _told_of(report))
            now_s = self._database.now_s(connection)
            _note_sample(connection, report.node, now_s)
            # A sampler tells the machine's counters first, and then of its tasks.
            origin = machine_energy.origin_of(connection, report.node)
            for task in sorted(report.tasks, key=lambda task: -task.running_s):
                token = _lease_of(connection, report.node, task)
                if token is None:
                    job = new.get(task.job_id)
                    token = None if job is None else _begin(connection, report.node, task, job, now_s)
                if token is None:
                    left_out.append(task.job_id)
                    continue
                _go_on(connection, token, task, now_s, origin)
                if not _is_decided(connection, task.job_id):
                    undecided.append(task.job_id)
            silent = _silent(connection, now_s - _SILENCES * self._silent_s)
            living = {task.job_id for task in report.tasks if task.ended_s is None}
            ended = _unclosed(connection, report.node, now_s - _CLOSABLE_S)
        unclosed = tuple(job_id for job_id in ended if job_id not in living)
        return TakenIn(tuple(undecided), silent, tuple(left_out), unclosed)

    def end(self, endings: Mapping[str, JobPhase]) -> tuple[str, ...]:
        """Give those of these jobs that count as running the phases in which they have ended; return them."""
        if not endings:
            return ()
        with self._database.writing() as connection:
            now_s = self._database.now_s(connection)
            ended = [job_id for job_id, phase in endings.items() if _end(connection, job_id, phase, now_s)]
        return tuple(ended)

    def present(self) -> ObservedNow:
        """Return who is observed now, on all nodes that have told lately."""
        with self._database.reading() as connection:
            oldest_s = self._database.now_s(connection) - self._silent_s
            told = select(sample_table.c.node, sample_table.c.sampled_at).where(
                sample_table.c.sampled_at >= oldest_s
            )
            sampled = {row.node: row.sampled_at for row in connection.execute(told)}
            query = select(node_table.c.name).where(~node_table.c.available, ~node_table.c.forgotten)
            nodes = frozenset(connection.scalars(query)) & sampled.keys()
            running = jobs.select_records().where(
                job_table.c.owner == jobs.OBSERVED, job_table.c.phase == JobPhase.RUNNING.value
            )
            records = jobs.records_of(connection.execute(running))
            names = [record.job.job_id for record in records]
            of_running = (lease_table.c.released_at >= oldest_s, lease_table.c.job_id.in_(names))
            leases = leases_of(connection, _OBSERVED, *of_running)
            ends = dict(
                map(
                    tuple,
                    connection.execute(
                        select(lease_table.c.token, lease_table.c.released_at).where(
                            lease_table.c.token.in_([lease.token for lease in leases])
                        )
                    ),
                )
            )
        living = [
            lease
            for lease in leases
            if lease.placement.node in nodes and ends[lease.token] >= sampled[lease.placement.node]
        ]
        ordered = sorted(living, key=lambda lease: (lease.granted_s, lease.token))
        return ObservedNow(tuple(ordered), tuple(records), nodes)

    def lease_of(self, job_id: str) -> Lease | None:
        """Return where the job was observed last, ``None`` if it never was."""
        with self._database.reading() as connection:
            found = leases_of(connection, _OBSERVED, lease_table.c.job_id == job_id)
            return found[-1] if found else None


def _told_of(report: ObservedReport) -> set[str]:
    used = {uuid for task in report.tasks for uuid in task.gpu_uuids}
    return used | {part.gpu_uuid for task in report.tasks for part in task.energy}


def _note_sample(connection: Connection, node: str, now_s: float) -> None:
    statement = upsert(connection, sample_table).values(node=node, sampled_at=now_s)
    connection.execute(statement.on_conflict_do_update(index_elements=["node"], set_={"sampled_at": now_s}))


def _lease_of(connection: Connection, node: str, task: ObservedTask) -> int | None:
    """Return the token under which this very process is stored."""
    query = (
        select(func.max(lease_table.c.token))
        .join(job_table, job_table.c.job_id == lease_table.c.job_id)
        .where(_OBSERVED, lease_table.c.node == node, lease_table.c.job_id == task.job_id)
        .where(job_table.c.process == task.process)
    )
    token: int | None = connection.scalar(query)
    return token


def _begin(connection: Connection, node: str, task: ObservedTask, job: Job, now_s: float) -> int | None:
    """Store the job and its lease and return the token; ``None`` if an executor of ours runs this job."""
    held = select(lease_table.c.token).where(
        lease_table.c.job_id == task.job_id, lease_table.c.released_at.is_(None)
    )
    if connection.execute(held).first() is not None:
        return None
    began_s = now_s - task.running_s
    jobs.add_waiting(connection, job, jobs.OBSERVED)
    of_job = update(job_table).where(job_table.c.job_id == task.job_id)
    connection.execute(
        of_job.values(
            phase=JobPhase.RUNNING.value,
            process=task.process,
            owner=jobs.OBSERVED,
            requeued_by=None,
            started_at=func.coalesce(job_table.c.started_at, literal(began_s, Instant)),
            ended_at=None,
        )
    )
    row = insert(lease_table).values(
        job_id=task.job_id,
        dag_id=job.order.dag_id,
        node=node,
        gpu_uuids=task.gpu_uuids,
        state=LeaseState.OBSERVED.value,
        set_version=0,
        owner=jobs.OBSERVED,
        granted_at=began_s,
        # What nobody granted counts against nobody's share.
        charged_s=0.0,
        charged_until_at=now_s,
        released_at=now_s,
    )
    token: int = connection.execute(row.returning(lease_table.c.token)).scalar_one()
    return token


def _go_on(connection: Connection, token: int, task: ObservedTask, now_s: float, origin: str | None) -> None:
    """Bring lease and energy to what is told; the lease of a task that has left stays as it ended."""
    if task.ended_s is None:
        going_on = update(lease_table).where(lease_table.c.token == token)
        connection.execute(going_on.values(gpu_uuids=task.gpu_uuids, released_at=now_s))
    for part in task.energy:
        bring_to(connection, replace(part, job_id=task.job_id, token=token), now_s, origin)
    if task.note is not None:
        note_run(connection, replace(task.note, job_id=task.job_id, token=token), now_s)


def _end(connection: Connection, job_id: str, phase: JobPhase, now_s: float) -> bool:
    values: dict[str, Any] = {"phase": phase.value}
    if phase in FINAL_PHASES:
        values["ended_at"] = now_s
    running = (job_table.c.job_id == job_id) & (job_table.c.phase == JobPhase.RUNNING.value)
    return connection.execute(update(job_table).where(running).values(**values)).rowcount == 1


def _silent(connection: Connection, since_s: float) -> tuple[str, ...]:
    heard = select(lease_table.c.job_id).where(_OBSERVED, lease_table.c.released_at >= since_s)
    query = select(job_table.c.job_id).where(
        job_table.c.owner == jobs.OBSERVED,
        job_table.c.phase == JobPhase.RUNNING.value,
        job_table.c.job_id.not_in(heard),
    )
    return tuple(connection.scalars(query.order_by(job_table.c.job_id)))


def _unclosed(connection: Connection, node: str, since_s: float) -> tuple[str, ...]:
    told = select(event_table.c.event_id).where(
        event_table.c.job_id == lease_table.c.job_id, event_table.c.event == ENERGY_EVENT
    )
    query = (
        select(lease_table.c.job_id)
        .join(job_table, job_table.c.job_id == lease_table.c.job_id)
        .where(_OBSERVED, lease_table.c.node == node, lease_table.c.released_at >= since_s)
        .where(job_table.c.owner == jobs.OBSERVED, job_table.c.phase != JobPhase.RUNNING.value)
        # A job may come back, and end again: each end has its line.
        .where(~told.where(event_table.c.happened_at >= lease_table.c.released_at).exists())
    )
    return tuple(connection.scalars(query.distinct().order_by(lease_table.c.job_id)))


def _is_decided(connection: Connection, job_id: str) -> bool:
    """Tell whether its story says what would have been decided, or nobody can say that any more."""
    running = select(job_table.c.job_id).where(
        job_table.c.job_id == job_id, job_table.c.phase == JobPhase.RUNNING.value
    )
    if connection.execute(running).first() is None:
        return True
    query = select(event_table.c.event_id).where(
        event_table.c.job_id == job_id, event_table.c.event == OBSERVED_EVENT
    )
    return connection.execute(query.limit(1)).first() is not None
