"""Energy as rows: joules of each lease on each GPU by month, added up part by part.

Who gets which part of a shared GPU's joules is decided before they come here. What whole machines used lies
in :mod:`.machine_energy`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import case, func, literal, or_, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from airflow_provider_eaco.core.energy.accounting import SplitRule
from airflow_provider_eaco.core.energy.records import JobEnergy, MachineEnergy, RunNote, month_of
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store import energy_curve, machine_energy
from airflow_provider_eaco.store.energy_tables import energy_run as run_table
from airflow_provider_eaco.store.energy_told import remember, told_before
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import Database, upsert

# A sum is as certain as its least certain part; a part of unknown energy says so by ``partial`` instead.
_LEAST_CERTAIN_FIRST = (
    EnergyMethod.INTEGRATED,
    EnergyMethod.DIVIDED,
    EnergyMethod.MODEL,
    EnergyMethod.COUNTER,
)


class SqlEnergyLog:
    """The energy of each task try on each of its GPUs, and of whole machines, in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, part: EnergyPart) -> None:
        """Add the part to what is stored for its job, token and GPU.

        One part without a measured energy, or a partial one, marks the sum as partial for good.

        :raises ValueError: for a number of joules or seconds that is negative or not finite.
        """
        _check_part(part)
        with self._database.writing() as connection:
            _add(connection, part, self._database.now_s(connection))

    def bring_to(self, part: EnergyPart) -> None:
        """Let what is stored for its job, token and GPU be this part in all; it never becomes less.

        :raises ValueError: for a number of joules or seconds that is negative or not finite.
        """
        _check_part(part)
        with self._database.writing() as connection:
            bring_to(connection, part, self._database.now_s(connection))

    def note_run(self, note: RunNote) -> None:
        """Keep the largest peak and all rules that were ever noted of the run.

        :raises ValueError: for a peak that is negative or not finite.
        """
        _check("peak_w", note.peak_w or 0.0)
        with self._database.writing() as connection:
            note_run(connection, note, self._database.now_s(connection))

    def add_machine(self, counters: MachineEnergy) -> bool:
        """Add what the counters have grown by since this origin was last stored; return whether it counts."""
        with self._database.writing() as connection:
            return machine_energy.add(connection, counters, self._database.now_s(connection))

    def job_energy(self, job_id: str) -> JobEnergy | None:
        """Return the energy record of one task try, ``None`` if it never had one."""
        with self._database.reading() as connection:
            return record_of(connection, job_id)


def bring_to(connection: Connection, part: EnergyPart, now_s: float, origin: str | None = None) -> None:
    """Add what the part, the account of a meter in all, has grown by since the meter told it last.

    One that is told again, or is less than what was told, adds nothing.

    :param origin: the meter's counting, as in ``MachineEnergy``; each counts from 0. Without one, what is
        stored for the part's job, token and GPU becomes this part in all, and never less.
    """
    before = told_before(connection, part, origin)
    more_j = None if part.energy_j is None else max(0.0, part.energy_j - (before.energy_j or 0.0))
    more = replace(part, energy_j=more_j, seconds=max(0.0, part.seconds - (before.seconds or 0.0)))
    if origin is not None and (not before.is_told or more.energy_j or more.seconds):
        remember(connection, part, origin, before, now_s, dag_id=_dag_id_of(part.job_id))
    # A lower bound has to say so, also where it has not grown beyond what is stored.
    if before.seconds is None or more.energy_j or more.seconds or more.partial:
        _add(connection, more, now_s)


def note_run(connection: Connection, note: RunNote, now_s: float) -> None:
    """Keep the largest peak and all rules that were ever noted of the run, and what it has used by now."""
    stored = connection.execute(select(run_table).where(run_table.c.token == note.token)).first()
    peaks = [note.peak_w, None if stored is None else stored.peak_w]
    rules = {rule.value for rule in note.rules} | set(() if stored is None else stored.rules)
    curve = [] if stored is None else stored.curve
    used = energy_curve.used_until_now(connection, note.token) if energy_curve.is_due(curve, now_s) else None
    values = {
        "peak_w": max((peak for peak in peaks if peak is not None), default=None),
        "rules": sorted(rules),
        "curve": curve if used is None else energy_curve.grown(curve, used),
        "updated_at": now_s,
    }
    statement = upsert(connection, run_table).values(
        token=note.token, job_id=note.job_id, dag_id=_dag_id_of(note.job_id), **values
    )
    connection.execute(statement.on_conflict_do_update(index_elements=["token"], set_=values))


def _check_part(part: EnergyPart) -> None:
    _check("energy_j", 0.0 if part.energy_j is None else part.energy_j)
    _check("seconds", part.seconds)


def _check(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: {value!r} must be a finite number from 0 up")


def _dag_id_of(job_id: str) -> Any:
    return select(job_table.c.dag_id).where(job_table.c.job_id == job_id).scalar_subquery()


def _add(connection: Connection, part: EnergyPart, now_s: float) -> None:
    statement = upsert(connection, energy_table).values(
        token=part.token,
        gpu_uuid=part.gpu_uuid,
        month=month_of(now_s),
        job_id=part.job_id,
        dag_id=_dag_id_of(part.job_id),
        energy_j=part.energy_j,
        seconds=part.seconds,
        known_s=0.0 if part.energy_j is None else part.seconds,
        method=part.method.value,
        partial=part.partial or part.energy_j is None,
        updated_at=now_s,
    )
    stored, new = energy_table.c, statement.excluded
    total = func.coalesce(stored.energy_j, 0.0) + new.energy_j
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["token", "gpu_uuid", "month"],
            set_={
                "energy_j": case((new.energy_j.is_(None), stored.energy_j), else_=total),
                "seconds": stored.seconds + new.seconds,
                "known_s": stored.known_s + new.known_s,
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


@dataclass(slots=True)
class _Rows:
    """The rows of one job."""

    energy: list[Any] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)


def energy_of(connection: Connection, *conditions: Any) -> dict[str, JobEnergy]:
    """Return the energy by job id, of the rows that meet the conditions, without who was beside it."""
    found: dict[str, _Rows] = {}
    for row in connection.execute(select(energy_table).where(*conditions)):
        found.setdefault(row.job_id, _Rows()).energy.append(row)
    tokens = select(energy_table.c.token).where(*conditions)
    for row in connection.execute(select(run_table).where(run_table.c.token.in_(tokens))):
        if row.job_id in found:
            found[row.job_id].runs.append(row)
    return {job_id: _record(rows) for job_id, rows in found.items()}


def record_of(connection: Connection, job_id: str) -> JobEnergy | None:
    """Return the whole energy record of one job, ``None`` if it never had one."""
    return records_of(connection, [job_id]).get(job_id)


def records_of(connection: Connection, job_ids: Sequence[str]) -> dict[str, JobEnergy]:
    """Return the whole energy records of those of the jobs that have one, by job id.

    :param job_ids: so many as fit one statement.
    """
    found = energy_of(connection, energy_table.c.job_id.in_(job_ids))
    beside = _co_residents(connection, list(found)) if found else {}
    return {job_id: replace(of, co_residents=beside.get(job_id, ())) for job_id, of in found.items()}


def _co_residents(connection: Connection, job_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return by job the labels of those that held the same GPUs at the same time."""
    own, other = lease_table.alias("own"), lease_table.alias("other")
    query = (
        select(
            own.c.job_id.label("own_id"),
            other.c.job_id,
            job_table.c.dag_id,
            job_table.c.task_id,
            job_table.c.map_index,
        )
        .distinct()
        .select_from(own)
        .join(other, (other.c.gpu_uuids == own.c.gpu_uuids) & (other.c.job_id != own.c.job_id))
        .outerjoin(job_table, job_table.c.job_id == other.c.job_id)
        .where(
            own.c.job_id.in_(job_ids),
            or_(own.c.released_at.is_(None), other.c.granted_at < own.c.released_at),
            or_(other.c.released_at.is_(None), other.c.released_at > own.c.granted_at),
        )
    )
    labels: dict[str, list[str]] = defaultdict(list)
    for row in connection.execute(query):
        labels[row.own_id].append(_label(row))
    return {job_id: tuple(sorted(each)) for job_id, each in labels.items()}


def _label(row: Any) -> str:
    """Return the name that people know the job by; that of a row that was cleaned away is its id."""
    if row.dag_id is None:
        return f"job {row.job_id}"
    return f"{row.dag_id}.{row.task_id}" + ("" if row.map_index < 0 else f"[{row.map_index}]")


def _record(rows: _Rows) -> JobEnergy:
    per_gpu: dict[str, float | None] = {}
    for row in rows.energy:
        per_gpu[row.gpu_uuid] = _added(per_gpu.get(row.gpu_uuid), row.energy_j)
    known_j = [energy_j for energy_j in per_gpu.values() if energy_j is not None]
    peaks = [row.peak_w for row in rows.runs if row.peak_w is not None]
    return JobEnergy(
        energy_j=math.fsum(known_j) if known_j else None,
        partial=any(row.partial for row in rows.energy),
        methods=frozenset(EnergyMethod(row.method) for row in rows.energy),
        per_gpu_j=per_gpu,
        seconds=_on_all_gpus(rows.energy, "seconds"),
        mean_w=_mean_w(rows.energy),
        peak_w=max(peaks, default=None),
        rules=frozenset(SplitRule(rule) for row in rows.runs for rule in row.rules),
    )


def _on_all_gpus(rows: list[Any], name: str) -> float:
    """Return the time of all leases: the GPUs of one lease are held together."""
    by_lease: dict[int, dict[str, float]] = {}
    for row in rows:
        of_gpu = by_lease.setdefault(row.token, {})
        of_gpu[row.gpu_uuid] = of_gpu.get(row.gpu_uuid, 0.0) + getattr(row, name)
    return math.fsum(max(of_gpu.values()) for of_gpu in by_lease.values())


def _mean_w(rows: list[Any]) -> float | None:
    """Return the mean draw of all GPUs together, over the time in which it was measured."""
    known_s = _on_all_gpus(rows, "known_s")
    if known_s <= 0:
        return None
    return math.fsum(row.energy_j for row in rows if row.energy_j is not None) / known_s


def _added(known: float | None, more: float | None) -> float | None:
    if known is None or more is None:
        return more if known is None else known
    return known + more
