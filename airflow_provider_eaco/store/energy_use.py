"""What runs have used since an instant, from their energy records and their leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select

from airflow_provider_eaco.core.ports import UsedEnergy
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import Database


class SqlEnergyUse:
    """The port :class:`~airflow_provider_eaco.core.ports.EnergyUse` on the provider's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def used_since(self, since_s: float) -> Sequence[UsedEnergy]:
        """Return one part for each GPU of each run whose record was brought up to date since then."""
        query = (
            select(
                lease_table.c.job_id,
                lease_table.c.node,
                lease_table.c.granted_at,
                energy_table.c.month,
                energy_table.c.updated_at,
                energy_table.c.energy_j,
                energy_table.c.partial,
            )
            .join(lease_table, lease_table.c.token == energy_table.c.token)
            .where(energy_table.c.updated_at > since_s)
            .order_by(energy_table.c.token, energy_table.c.gpu_uuid, energy_table.c.month)
        )
        with self._database.reading() as connection:
            return [_part(row) for row in connection.execute(query)]


def _part(row: Any) -> UsedEnergy:
    # A run has one record a month.
    month_began_s = datetime.strptime(f"{row.month} +0000", "%Y-%m %z").timestamp()
    begin_s = min(max(row.granted_at, month_began_s), row.updated_at)
    return UsedEnergy(row.job_id, row.node, begin_s, row.updated_at, row.energy_j, row.partial)
