"""The Airflow pools that stand for GPU pools, and what Airflow says of all its pools."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow.models.pool import Pool
from sqlalchemy import select

from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Airflow's number for a pool without a limit.
_UNLIMITED = -1
# The size that we wrote last stands in the description: there an edit of a user shows, and needs no table.
_WRITTEN = re.compile(r"Managed by airflow-provider-eaco: (?P<slots>-?\d+) slots")


def pool_states(session: Session, pools: Sequence[PoolSettings]) -> tuple[PoolState, ...]:
    """Return every declared GPU pool with the Airflow pools that exist now; what is in use is not counted."""
    known = {
        str(name): AirflowPool(None if slots == _UNLIMITED else slots)
        for name, slots in session.execute(select(Pool.pool, Pool.slots))
    }
    return tuple(PoolState(settings, known) for settings in pools)


def acting(pools: Sequence[PoolSettings]) -> tuple[PoolSettings, ...]:
    """Return the pools that are not switched off."""
    return tuple(pool for pool in pools if pool.mode is not PoolMode.OFF)


def slots_of_off(pools: Sequence[PoolSettings], present: Collection[str]) -> dict[str, int]:
    """Return the size of the Airflow pools that are missing for pools that are switched off: no limit.

    Such a pool decides nothing, but tasks are routed to it, and Airflow runs none of a pool that is missing.

    :param present: the names of the Airflow pools that exist.
    """
    off = (pool.name for pool in pools if pool.mode is PoolMode.OFF)
    return {name: _UNLIMITED for name in off if name not in present}


def written_slots(session: Session, names: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """Return the size of these Airflow pools, and the one that we gave each last (``None``: never)."""
    query = select(Pool.pool, Pool.slots, Pool.description).where(Pool.pool.in_(names))
    return {str(name): (slots, _written(description)) for name, slots, description in session.execute(query)}


def write_slots(session: Session, slots_of: Mapping[str, int]) -> None:
    """Create or size these Airflow pools.

    Only what has to change may be asked for: Airflow's scheduler locks these rows in every loop.
    """
    present = {str(pool.pool): pool for pool in session.scalars(select(Pool).where(Pool.pool.in_(slots_of)))}
    for name, slots in slots_of.items():
        pool = present.get(name)
        if pool is None:
            pool = Pool(pool=name, include_deferred=False)
            session.add(pool)
        pool.slots = slots
        pool.description = _description(name, slots)


def reset_slots(session: Session, name: str) -> bool:
    """Give a pool that a user has sized back to the provider; return whether there is such a pool.

    The executor sizes it again within some seconds.
    """
    pool = session.scalar(select(Pool).where(Pool.pool == name))
    if pool is None:
        return False
    pool.description = _description(name, pool.slots)
    return True


def _description(name: str, slots: int) -> str:
    return (
        f"Managed by airflow-provider-eaco: {slots} slots for the tasks of GPU pool {name}. "
        "GPUs are granted by the executor. Slots that you change stay as you set them until "
        f"`airflow eaco pools reset {name}`."
    )


def _written(description: str | None) -> int | None:
    found = _WRITTEN.match(description or "")
    return None if found is None else int(found["slots"])
