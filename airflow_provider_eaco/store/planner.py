"""The planner lock: one row with its holder and the instant at which it falls, on the database's clock."""

from __future__ import annotations

from sqlalchemy import delete, or_, update

from airflow_provider_eaco.store.schema import planner as planner_table
from airflow_provider_eaco.store.session import Database, upsert

_NAME = "admission"


class SqlPlannerLock:
    """One planner at a time over all schedulers; a lock that nobody renews falls by itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, owner: str, ttl_s: float) -> bool:
        """Return whether ``owner`` now holds the lock until ``ttl_s`` from now; renews its own."""
        if not ttl_s > 0:
            raise ValueError(f"ttl_s: {ttl_s!r} must be more than 0 seconds")
        with self._database.writing() as connection:
            # Read before the row is locked: a late winner gets a shorter time, never a longer one.
            now_s = self._database.now_s(connection)
            held = {"owner": owner, "expires_at": now_s + ttl_s}
            taken = (
                update(planner_table)
                .where(planner_table.c.name == _NAME)
                .where(or_(planner_table.c.owner == owner, planner_table.c.expires_at <= now_s))
                .values(**held)
            )
            if connection.execute(taken).rowcount == 1:
                return True
            first = upsert(connection, planner_table).values(name=_NAME, **held).on_conflict_do_nothing()
            return connection.execute(first).rowcount == 1

    def release(self, owner: str) -> None:
        """Give the lock up if ``owner`` holds it; otherwise do nothing."""
        with self._database.writing() as connection:
            held = (planner_table.c.name == _NAME) & (planner_table.c.owner == owner)
            connection.execute(delete(planner_table).where(held))
