"""What whole machines used, as rows by month: GPUs, and the machine's own meter where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection
from sqlalchemy.sql.schema import Table

from airflow_provider_eaco.core.energy.accounting import DeviceTotals
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals, month_of, used_since
from airflow_provider_eaco.store.energy_tables import energy_counter as counter_table
from airflow_provider_eaco.store.energy_tables import energy_device as device_table
from airflow_provider_eaco.store.energy_tables import energy_node as node_table
from airflow_provider_eaco.store.session import upsert


def add(connection: Connection, counters: MachineEnergy, now_s: float) -> bool:
    """Add what the counters have grown by; return whether they count, see ``EnergyLog.add_machine``.

    What GPUs used between the last counting and a new one is not known: that time is added as unknown.
    """
    last = connection.execute(
        select(counter_table).where(counter_table.c.node == counters.node).with_for_update()
    ).first()
    known: Mapping[str, Any] = {}
    if last is not None and last.origin == counters.origin:
        known = last.counters
    elif last is not None and counters.began_s < last.until_at:
        return False
    elif last is not None:
        # The first account of a new counting need not list them yet.
        unknown = asdict(DeviceTotals(unknown_s=counters.began_s - last.until_at))
        for uuid in last.counters["devices"]:
            _add_device(connection, counters.node, uuid, unknown, now_s)
    for uuid, totals in counters.devices.items():
        before = known.get("devices", {}).get(uuid)
        used = used_since(DeviceTotals(**before) if before else DeviceTotals(), totals)
        if used is not None:
            _add_device(connection, counters.node, uuid, used, now_s)
    before = known.get("totals")
    used = used_since(NodeTotals(**before) if before else NodeTotals(), counters.totals)
    if used is not None and used["seconds"]:
        row = {"node": counters.node, "month": month_of(now_s), "updated_at": now_s}
        _sum(connection, node_table, row, used)
    _remember(connection, counters)
    return True


def origin_of(connection: Connection, node: str) -> str | None:
    """Return the counting that was added last for the node, ``None`` if none ever was."""
    query = select(counter_table.c.origin).where(counter_table.c.node == node)
    origin: str | None = connection.scalar(query)
    return origin


def _add_device(
    connection: Connection, node: str, uuid: str, used: Mapping[str, float], now_s: float
) -> None:
    if any(used.values()):
        row = {"uuid": uuid, "node": node, "month": month_of(now_s), "updated_at": now_s}
        _sum(connection, device_table, row, used)


def _sum(connection: Connection, table: Table, row: Mapping[str, object], used: Mapping[str, float]) -> None:
    statement = upsert(connection, table).values(**row, **used)
    grown: dict[str, Any] = {each: table.c[each] + statement.excluded[each] for each in used}
    grown["updated_at"] = statement.excluded.updated_at
    keys = [column.name for column in table.primary_key]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=grown))


def _remember(connection: Connection, counters: MachineEnergy) -> None:
    values = {
        "origin": counters.origin,
        "until_at": counters.until_s,
        "counters": {
            "devices": {uuid: asdict(totals) for uuid, totals in counters.devices.items()},
            "totals": asdict(counters.totals),
        },
    }
    statement = upsert(connection, counter_table).values(node=counters.node, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["node"], set_=values))
