"""Nodes, GPUs and their last readings as rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Select, delete, exists, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from airflow_provider_eaco.core.model.gpu import ForeignProcess, Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import gpu_reading as reading_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.schema import node as node_table
from airflow_provider_eaco.store.session import Database, upsert

_GPU = ("uuid", "node", "gpu_index", "model", "memory_total_mib", "memory_reserved_mib", "health")
# What a report says of a node; whether it drains is said by users alone.
_REPORTED = ("host_memory_mib", "available", "forgotten", "time_scale", "last_report_at")
_READING = (
    "uuid",
    "read_at",
    "utilisation_pct",
    "memory_used_mib",
    "power_w",
    "energy_j",
    "foreign_memory_mib",
    "foreign_processes",
    "foreign_by",
)


def nodes_of(connection: Connection) -> tuple[tuple[Node, ...], dict[str, int]]:
    """Return all nodes by name, their GPUs by index, and the ``ledger_version`` of every GPU."""
    query: Select[Any] = select(*(gpu_table.c[name] for name in _GPU), gpu_table.c.ledger_version)
    gpus: dict[str, list[Gpu]] = defaultdict(list)
    versions: dict[str, int] = {}
    query = query.where(gpu_table.c.present).order_by(gpu_table.c.gpu_index, gpu_table.c.uuid)
    for uuid, node, index, model, total_mib, reserved_mib, health, version in connection.execute(query):
        gpus[node].append(Gpu(uuid, node, index, model, total_mib, reserved_mib, GpuHealth(health)))
        versions[uuid] = version
    nodes = connection.execute(select(node_table).order_by(node_table.c.name)).all()
    return tuple(
        Node(
            row.name,
            tuple(gpus[row.name]),
            row.host_memory_mib,
            row.draining,
            row.available and not row.forgotten,
            row.last_report_at,
            row.time_scale,
        )
        for row in nodes
    ), versions


def save_nodes(connection: Connection, nodes: Sequence[Node], now_s: float) -> None:
    """Upsert these nodes with their GPUs; see ``Ledger.save_nodes``.

    A GPU that its node no longer reports goes, unless it is leased: then it stays with unknown health. Rows
    of GPUs are written only when something about them changed.
    """
    if not nodes:
        return
    _write_nodes(connection, sorted(nodes, key=lambda node: node.name), now_s)
    names = [node.name for node in nodes]
    known = {
        row.uuid: tuple(row)
        for row in connection.execute(
            select(*(gpu_table.c[name] for name in _GPU)).where(
                gpu_table.c.node.in_(names), gpu_table.c.present
            )
        )
    }
    wanted = {gpu.uuid: _gpu_row(node, gpu) for node in nodes for gpu in node.gpus}
    missing = [known[uuid] for uuid in known.keys() - wanted.keys()]
    if missing:
        held = _held_uuids(connection, names)
        wanted |= {row[0]: (*row[:-1], GpuHealth.UNKNOWN.value) for row in missing if row[0] in held}
        gone = [row[0] for row in missing if row[0] not in held]
        _mark_absent(connection, gpu_table.c.uuid.in_(gone))
    _write_gpus(connection, sorted(row for uuid, row in wanted.items() if known.get(uuid) != row))


def _gpu_row(node: Node, gpu: Gpu) -> tuple[Any, ...]:
    reserved = gpu.memory_reserved_mib
    return (gpu.uuid, node.name, gpu.index, gpu.model, gpu.memory_total_mib, reserved, gpu.health.value)


def _write_nodes(connection: Connection, nodes: Sequence[Node], now_s: float) -> None:
    statement = upsert(connection, node_table)
    changed = {name: statement.excluded[name] for name in _REPORTED}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["name"], set_=changed),
        [
            {
                "name": node.name,
                "draining": node.draining,
                "host_memory_mib": node.host_memory_mib,
                "available": node.available,
                "forgotten": False,
                "time_scale": node.time_scale,
                "last_report_at": now_s,
            }
            for node in nodes
        ],
    )


def _write_gpus(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    if not rows:
        return
    statement = upsert(connection, gpu_table)
    changed = {name: statement.excluded[name] for name in (*_GPU[1:], "present")}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["uuid"], set_=changed),
        [dict(zip(_GPU, row, strict=True), present=True, ledger_version=0, set_version=0) for row in rows],
    )


def _mark_absent(connection: Connection, condition: ColumnElement[bool]) -> None:
    connection.execute(update(gpu_table).where(condition).values(present=False))


def _held_uuids(connection: Connection, nodes: Iterable[str]) -> set[str]:
    query = select(lease_table.c.gpu_uuids).where(
        lease_table.c.node.in_(list(nodes)), lease_table.c.released_at.is_(None)
    )
    return {uuid for uuids in connection.scalars(query) for uuid in uuids}


def forget_node(connection: Connection, name: str) -> None:
    """Remove a node that has no lease; one with leases becomes unavailable and goes when they end."""
    connection.execute(update(node_table).where(node_table.c.name == name).values(forgotten=True))
    sweep_forgotten(connection, name)


def sweep_forgotten(connection: Connection, name: str) -> None:
    """Delete the node if it was to be forgotten and its last lease has ended."""
    held = exists().where(lease_table.c.node == name, lease_table.c.released_at.is_(None))
    gone = delete(node_table).where(node_table.c.name == name, node_table.c.forgotten.is_(True), ~held)
    if connection.execute(gone).rowcount:
        _mark_absent(connection, gpu_table.c.node == name)


def set_draining(connection: Connection, node: str, draining: bool) -> bool:
    """Mark the node; return whether it exists."""
    marked = update(node_table).where(node_table.c.name == node).values(draining=draining)
    return connection.execute(marked).rowcount == 1


class SqlReadings:
    """The last reading of every GPU, for those who have no meter at hand: CLI and UI."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, readings: Sequence[GpuReading]) -> None:
        """Keep these readings, each in place of the GPU's former one."""
        if readings:
            with self._database.writing() as connection:
                save_readings(connection, readings)


def save_readings(connection: Connection, readings: Sequence[GpuReading]) -> None:
    """Keep these readings, each in place of the GPU's former one."""
    if not readings:
        return
    statement = upsert(connection, reading_table)
    changed = {name: statement.excluded[name] for name in _READING[1:]}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["uuid"], set_=changed),
        [
            {
                "uuid": reading.uuid,
                "read_at": reading.at_s,
                "utilisation_pct": reading.utilisation_pct,
                "memory_used_mib": reading.memory_used_mib,
                "power_w": reading.power_w,
                "energy_j": reading.energy_j,
                "foreign_memory_mib": reading.foreign_memory_mib,
                "foreign_processes": reading.foreign_processes,
                "foreign_by": [[each.pid, each.user] for each in reading.foreign_by] or None,
            }
            for reading in sorted(readings, key=lambda reading: reading.uuid)
        ],
    )


def readings_of(connection: Connection) -> dict[str, GpuReading]:
    """Return the last reading of every GPU by UUID."""
    rows = connection.execute(select(*(reading_table.c[name] for name in _READING)))
    return {row.uuid: _reading(row) for row in rows}


def _reading(row: Any) -> GpuReading:
    *values, foreign_by = row
    return replace(GpuReading(*values), foreign_by=_processes(foreign_by))


def _processes(stored: Sequence[Sequence[Any]] | None) -> tuple[ForeignProcess, ...]:
    return tuple(ForeignProcess(pid, user) for pid, user in stored or ())
