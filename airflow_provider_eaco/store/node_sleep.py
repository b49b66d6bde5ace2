"""Which nodes were put to sleep and which wake up, as rows; every step is one compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select, update

from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.store.node_tables import node_sleep as sleep_table
from airflow_provider_eaco.store.session import Database, upsert


class SqlNodeSleep:
    """The power states of nodes that are not up; several schedulers may use it at once.

    Every method raises :class:`~airflow_provider_eaco.core.model.errors.StoreUnavailableError` when the
    database is out of reach; then nothing has changed. Where tables of an older state have no such table, no
    node sleeps.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def states(self) -> Mapping[str, NodePowerState]:
        """Return the states of the nodes that sleep or wake, with the instants on the store's clock."""
        with self._database.reading() as connection:
            if not self._database.has(connection, sleep_table):
                return {}
            rows = connection.execute(select(sleep_table)).all()
        return {row.node: NodePowerState(NodePower(row.state), row.since_at) for row in rows}

    def move(self, node: str, before: NodePower | None, after: NodePower | None) -> bool:
        """Let the node be in the state ``after`` from now on if it is in ``before``; return whether it was.

        ``None``: it is up. Of several who ask for the same step one gets it.
        """
        with self._database.writing() as connection:
            if not self._database.has(connection, sleep_table):
                return False
            own = sleep_table.c.node == node
            if before is not None:
                own &= sleep_table.c.state == before.value
            now_s = self._database.now_s(connection)
            if after is None:
                return connection.execute(delete(sleep_table).where(own)).rowcount == 1
            values = {"state": after.value, "since_at": now_s}
            if before is not None:
                return connection.execute(update(sleep_table).where(own).values(**values)).rowcount == 1
            first = upsert(connection, sleep_table).values(node=node, **values)
            return connection.execute(first.on_conflict_do_nothing()).rowcount == 1
