"""What each meter has told of a run so far, so that its next account adds only what it has grown by.

A meter that is started anew counts from 0: its account stands beside that of the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.ports import EnergyPart
from airflow_provider_eaco.store.energy_tables import energy_told as told_table
from airflow_provider_eaco.store.schema import energy as energy_table
from airflow_provider_eaco.store.session import upsert


class Before(NamedTuple):
    """Joules and seconds of an account that are stored already, ``None`` where there are none; ``is_told``:
    its origin has told of the run before.
    """

    energy_j: float | None
    seconds: float | None
    is_told: bool = False


def told_before(connection: Connection, part: EnergyPart, origin: str | None) -> Before:
    """Return what of this account is stored already.

    An account without an origin is taken for one of all that is stored, and so is that of the first origin,
    as long as no other has told of the run on this GPU.
    """
    of_part = (told_table.c.token == part.token) & (told_table.c.gpu_uuid == part.gpu_uuid)
    told = {
        row.origin: row for row in connection.execute(select(told_table).where(of_part).with_for_update())
    }
    if origin in told:
        return Before(told[origin].energy_j, told[origin].seconds, is_told=True)
    if told and origin is not None:
        return Before(None, None)
    of_energy = (energy_table.c.token == part.token) & (energy_table.c.gpu_uuid == part.gpu_uuid)
    sums = select(func.sum(energy_table.c.energy_j), func.sum(energy_table.c.seconds)).where(of_energy)
    stored_j, stored_s = connection.execute(sums).one()
    return Before(stored_j, stored_s)


def remember(
    connection: Connection,
    part: EnergyPart,
    origin: str,
    before: Before,
    now_s: float,
    *,
    dag_id: Any,
) -> None:
    """Keep the account as told by this origin; what it told ``before`` stays where that was more.

    :param dag_id: that of the part's job, as a value or an expression.
    """
    joules = [part.energy_j, before.energy_j if before.is_told else None]
    values = {
        "energy_j": max((each for each in joules if each is not None), default=None),
        "seconds": max(part.seconds, (before.seconds or 0.0) if before.is_told else 0.0),
        "updated_at": now_s,
    }
    statement = upsert(connection, told_table).values(
        token=part.token, gpu_uuid=part.gpu_uuid, origin=origin, dag_id=dag_id, **values
    )
    keys = ["token", "gpu_uuid", "origin"]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))
