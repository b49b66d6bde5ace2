"""What was used in each month, as it is stored: by task try, by GPU, by machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, EnergyMethod
from airflow_provider_eaco.core.energy.records import NodeTotals, month_of
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.store import jobs
from airflow_provider_eaco.store.energy_tables import energy_device as device_table
from airflow_provider_eaco.store.energy_tables import energy_node as node_table
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.session import Database

# How many ids one query names: SQLite bounds them.
_BATCH = 500


@dataclass(slots=True)
class JobMonth:
    """What one task try used in one month: ``parts_j`` one by one, ``None`` for one that was not measured.

    ``gpu_s`` are seconds of GPUs that were looked at. ``gpu_models`` are those of its GPUs that are known.
    ``record`` is ``None`` where the job's row was cleaned away. ``is_whole``: it used nothing in another
    month.
    """

    job_id: str
    month: str
    record: JobRecord | None
    parts_j: list[float | None] = field(default_factory=list)
    gpu_s: float = 0.0
    partial: bool = False
    is_whole: bool = True
    gpu_uuids: set[str] = field(default_factory=set)
    gpu_models: set[str] = field(default_factory=set)
    methods: set[EnergyMethod] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class EnergyMonths:
    """All that is stored, by month. ``devices`` and ``nodes`` are by month and UUID or name."""

    jobs: Sequence[JobMonth]
    devices: Sequence[tuple[str, str, DeviceTotals]]
    nodes: Sequence[tuple[str, str, NodeTotals]]


class SqlEnergyMonths:
    """Reads what the meters have stored; changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, month: str | None = None) -> EnergyMonths:
        """Return one month (``2026-12``), or all, as of one instant."""
        with self._database.reading() as connection:
            return EnergyMonths(
                _jobs(connection, month),
                [
                    (row.month, row.uuid, DeviceTotals(*_numbers(row, DeviceTotals)))
                    for row in connection.execute(_of(device_table, month))
                ],
                [
                    (row.month, row.node, NodeTotals(*_numbers(row, NodeTotals)))
                    for row in connection.execute(_of(node_table, month))
                ],
            )

    def by_pool(self) -> dict[str, float]:
        """Return the joules that the tasks of each Airflow pool have used this month."""
        with self._database.reading() as connection:
            month = month_of(self._database.now_s(connection))
            query = (
                select(job_table.c.pool, func.sum(energy_table.c.energy_j))
                .join(job_table, job_table.c.job_id == energy_table.c.job_id)
                .where(energy_table.c.month == month, energy_table.c.energy_j.is_not(None))
                .group_by(job_table.c.pool)
            )
            return {row[0]: row[1] for row in connection.execute(query)}


def _of(table: Any, month: str | None) -> Any:
    query = select(table).order_by(*table.primary_key)
    return query if month is None else query.where(table.c.month == month)


def _numbers(row: Any, kind: type[DeviceTotals | NodeTotals]) -> list[float]:
    return [getattr(row, name) for name in kind.__dataclass_fields__]


def _jobs(connection: Connection, month: str | None) -> list[JobMonth]:
    rows = list(connection.execute(_of(energy_table, month)))
    records = _records(connection, {row.job_id for row in rows})
    models: dict[str, str] = {
        row.uuid: row.model for row in connection.execute(select(gpu_table.c.uuid, gpu_table.c.model))
    }
    several = (
        select(energy_table.c.job_id)
        .group_by(energy_table.c.job_id)
        .having(func.count(energy_table.c.month.distinct()) > 1)
    )
    longer = set(connection.scalars(several))
    found: dict[tuple[str, str], JobMonth] = {}
    for row in rows:
        key = row.job_id, row.month
        one = found.get(key)
        if one is None:
            one = found[key] = JobMonth(row.job_id, row.month, records.get(row.job_id))
            one.is_whole = row.job_id not in longer
        one.parts_j.append(row.energy_j)
        one.gpu_s += row.seconds
        one.partial = one.partial or row.partial
        one.gpu_uuids.add(row.gpu_uuid)
        if row.gpu_uuid in models:
            one.gpu_models.add(models[row.gpu_uuid])
        one.methods.add(EnergyMethod(row.method))
    return list(found.values())


def _records(connection: Connection, job_ids: Iterable[str]) -> dict[str, JobRecord]:
    wanted = sorted(job_ids)
    found: dict[str, JobRecord] = {}
    for first in range(0, len(wanted), _BATCH):
        query = jobs.select_records().where(job_table.c.job_id.in_(wanted[first : first + _BATCH]))
        found |= {record.job.job_id: record for record in jobs.records_of(connection.execute(query))}
    return found
