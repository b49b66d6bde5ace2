"""Energy as rows: joules of each lease on each GPU, added up interval by interval.

Who gets which part of a shared GPU's joules is decided before they come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select, update
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.session import Database, upsert


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """The joules of one job over all its leases.

    ``energy_j`` is ``None`` when nothing was ever metered. ``complete`` is false when an interval is missing,
    so that the sum is a lower bound; ``estimated`` is true when a part was integrated from power.
    ``per_gpu_j`` is the same by GPU UUID. ``open`` is true while a lease of it is still metered.
    """

    energy_j: float | None
    complete: bool
    estimated: bool
    open: bool
    per_gpu_j: Mapping[str, float | None]


class SqlEnergyLog:
    """The energy of jobs in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, lease: Lease, joules: Mapping[str, float | None], at_s: float, *, estimated: bool = False
    ) -> None:
        """Add what the lease has drawn on each GPU since it was last added, up to ``at_s``.

        ``None`` means that the interval could not be metered: nothing is added and the record is no longer
        complete. A record that was closed stays as it is.

        :raises ValueError: for a negative or not finite number of joules.
        """
        for uuid, energy_j in joules.items():
            if energy_j is not None and not 0 <= energy_j < float("inf"):
                raise ValueError(f"joules: {energy_j!r} of GPU {uuid} must be a finite number from 0 up")
        with self._database.writing() as connection:
            for uuid in sorted(joules):
                _add(connection, lease, uuid, joules[uuid], at_s=at_s, estimated=estimated)

    def close(self, token: int, at_s: float) -> None:
        """End the records of the lease; closing again changes nothing."""
        with self._database.writing() as connection:
            still_open = (energy_table.c.token == token) & energy_table.c.ended_at.is_(None)
            connection.execute(update(energy_table).where(still_open).values(ended_at=at_s))

    def of_job(self, job_id: str) -> JobEnergy | None:
        """Return the energy of the job, ``None`` if no record of it was ever begun."""
        with self._database.reading() as connection:
            return energy_of(connection, [job_id]).get(job_id)


def _add(
    connection: Connection, lease: Lease, uuid: str, energy_j: float | None, *, at_s: float, estimated: bool
) -> None:
    dag_id = select(job_table.c.dag_id).where(job_table.c.job_id == lease.job_id).scalar_subquery()
    statement = upsert(connection, energy_table).values(
        token=lease.token,
        gpu_uuid=uuid,
        job_id=lease.job_id,
        dag_id=dag_id,
        energy_j=energy_j,
        complete=energy_j is not None,
        estimated=estimated,
        started_at=lease.granted_s,
        metered_at=at_s,
    )
    columns, new = energy_table.c, statement.excluded
    total = case(
        (new.energy_j.is_(None), columns.energy_j), else_=func.coalesce(columns.energy_j, 0.0) + new.energy_j
    )
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["token", "gpu_uuid"],
            set_={
                "energy_j": total,
                "complete": columns.complete & new.complete,
                "estimated": columns.estimated | new.estimated,
                "metered_at": new.metered_at,
            },
            where=columns.ended_at.is_(None),
        )
    )


def energy_of(connection: Connection, job_ids: list[str]) -> dict[str, JobEnergy]:
    """Return the energy of those of the jobs that have a record."""
    rows = connection.execute(select(energy_table).where(energy_table.c.job_id.in_(job_ids)))
    found: dict[str, list[JobEnergy]] = {}
    for row in rows:
        single = JobEnergy(
            row.energy_j, row.complete, row.estimated, row.ended_at is None, {row.gpu_uuid: row.energy_j}
        )
        found.setdefault(row.job_id, []).append(single)
    return {job_id: _sum(parts) for job_id, parts in found.items()}


def _sum(parts: list[JobEnergy]) -> JobEnergy:
    per_gpu: dict[str, float | None] = {}
    for part in parts:
        for uuid, energy_j in part.per_gpu_j.items():
            per_gpu[uuid] = _added(per_gpu.get(uuid), energy_j)
    total: float | None = None
    for energy_j in per_gpu.values():
        total = _added(total, energy_j)
    return JobEnergy(
        total,
        all(part.complete for part in parts),
        any(part.estimated for part in parts),
        any(part.open for part in parts),
        per_gpu,
    )


def _added(known: float | None, more: float | None) -> float | None:
    if known is None or more is None:
        return more if known is None else known
    return known + more
