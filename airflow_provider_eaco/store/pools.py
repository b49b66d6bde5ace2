"""What we last wrote into Airflow's pools, so that a user's edit can be told from our own."""

from __future__ import annotations

from sqlalchemy import select, update

from airflow_provider_eaco.store.schema import pool as pool_table
from airflow_provider_eaco.store.session import Database, upsert


class SqlPoolSizes:
    """The size that we gave each Airflow pool last. Another size there now is a user's, and wins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def written(self, name: str) -> int | None:
        """Return the slots that we wrote last; ``None`` if we never did, or since :meth:`forget`."""
        with self._database.reading() as connection:
            return connection.scalar(select(pool_table.c.slots_written).where(pool_table.c.name == name))

    def remember(self, name: str, slots: int) -> None:
        """Keep that we wrote this size."""
        with self._database.writing() as connection:
            statement = upsert(connection, pool_table).values(name=name, slots_written=slots)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["name"], set_={"slots_written": slots})
            )

    def forget(self, name: str) -> None:
        """Reset: whatever size the pool has now counts as ours to change again."""
        with self._database.writing() as connection:
            of_pool = update(pool_table).where(pool_table.c.name == name)
            connection.execute(of_pool.values(slots_written=None))
