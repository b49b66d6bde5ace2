"""Energy as rows: joules of each lease on each GPU, added up part by part.

Who gets which part of a shared GPU's joules is decided before they come here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, literal, or_, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.session import Database, upsert

# A sum is as certain as its least certain part; a part of unknown energy says so by ``partial`` instead.
_LEAST_CERTAIN_FIRST = (
    EnergyMethod.INTEGRATED,
    EnergyMethod.DIVIDED,
    EnergyMethod.MODEL,
    EnergyMethod.COUNTER,
)


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """The energy of one job over all its leases.

    ``energy_j`` is ``None`` when nothing was ever measured; ``partial`` when a part is missing, so that the
    sum is a lower bound. ``methods`` are those by which it was found. ``per_gpu_j`` is the same by GPU UUID.
    """

    energy_j: float | None
    partial: bool
    methods: frozenset[EnergyMethod]
    per_gpu_j: Mapping[str, float | None]


class SqlEnergyLog:
    """The energy of each task try on each of its GPUs, in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, part: EnergyPart) -> None:
        """Add the part to what is stored for its job, token and GPU.

        One part without a measured energy, or a partial one, marks the sum as partial for good.

        :raises ValueError: for a number of joules or seconds that is negative or not finite.
        """
        _check("energy_j", 0.0 if part.energy_j is None else part.energy_j)
        _check("seconds", part.seconds)
        with self._database.writing() as connection:
            _add(connection, part, self._database.now_s(connection))


def _check(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: {value!r} must be a finite number from 0 up")


def _add(connection: Connection, part: EnergyPart, now_s: float) -> None:
    dag_id = select(job_table.c.dag_id).where(job_table.c.job_id == part.job_id).scalar_subquery()
    statement = upsert(connection, energy_table).values(
        token=part.token,
        gpu_uuid=part.gpu_uuid,
        job_id=part.job_id,
        dag_id=dag_id,
        energy_j=part.energy_j,
        seconds=part.seconds,
        method=part.method.value,
        partial=part.partial or part.energy_j is None,
        updated_at=now_s,
    )
    stored, new = energy_table.c, statement.excluded
    total = func.coalesce(stored.energy_j, 0.0) + new.energy_j
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["token", "gpu_uuid"],
            set_={
                "energy_j": case((new.energy_j.is_(None), stored.energy_j), else_=total),
                "seconds": stored.seconds + new.seconds,
                "method": _least_certain(statement),
                "partial": or_(stored.partial, new.partial),
                "updated_at": new.updated_at,
            },
        )
    )


def _least_certain(statement: Insert) -> ColumnElement[Any]:
    stored, new = energy_table.c.method, statement.excluded.method
    ranked = [
        (or_(stored == method.value, new == method.value), literal(method.value))
        for method in _LEAST_CERTAIN_FIRST
    ]
    return case(*ranked, else_=stored)


def energy_of(connection: Connection, *conditions: Any) -> dict[str, JobEnergy]:
    """Return the energy by job id, of the rows that meet the conditions."""
    rows: dict[str, list[Any]] = {}
    for row in connection.execute(select(energy_table).where(*conditions)):
        rows.setdefault(row.job_id, []).append(row)
    return {job_id: _sum(of_job) for job_id, of_job in rows.items()}


def _sum(rows: list[Any]) -> JobEnergy:
    per_gpu: dict[str, float | None] = {}
    for row in rows:
        per_gpu[row.gpu_uuid] = _added(per_gpu.get(row.gpu_uuid), row.energy_j)
    total: float | None = None
    for energy_j in per_gpu.values():
        total = _added(total, energy_j)
    partial = any(row.partial for row in rows)
    return JobEnergy(total, partial, frozenset(EnergyMethod(row.method) for row in rows), per_gpu)


def _added(known: float | None, more: float | None) -> float | None:
    if known is None or more is None:
        return more if known is None else known
    return known + more
