"""Power limits on nodes with a worker, as rows: what is wanted there, and what each worker has told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import delete, exists, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.store.node_tables import node_credential as credential_table
from airflow_provider_eaco.store.node_tables import node_limit as limit_table
from airflow_provider_eaco.store.node_tables import node_limit_report as report_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.session import Database, upsert


class SqlNodeLimits:
    """What schedulers want of the boards of other machines and what those have; several may use it at once.

    Every method raises :class:`~airflow_provider_eaco.core.model.errors.StoreUnavailableError` when the
    database is out of reach; then nothing has changed. Where tables of an older state have no such tables,
    no node knows limits.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> tuple[Mapping[str, NodeLimits | None], Mapping[Placement, float]]:
        """Return what each node with a worker has told, ``None`` of one whose worker knows no limits, and
        which limits are wanted, in watts.
        """
        with self._database.reading() as connection:
            if not self._database.has(connection, report_table):
                return {}, {}
            query = (
                select(credential_table.c.node, report_table.c.told)
                .outerjoin(report_table, report_table.c.node == credential_table.c.node)
                .where(credential_table.c.revoked_at.is_(None))
            )
            told = {row.node: _told(row.node, row.told) for row in connection.execute(query)}
            wanted = {
                Placement(row.node, row.gpu_uuids): row.limit_w
                for row in connection.execute(select(limit_table))
            }
        return told, wanted

    def want(self, limits_w: Mapping[Placement, float]) -> None:
        """Have the boards of each placement held to so many watts."""
        with self._database.writing() as connection:
            for placement, limit_w in limits_w.items():
                row = {"node": placement.node, "gpu_uuids": placement.gpu_uuids, "limit_w": limit_w}
                wish = upsert(connection, limit_table).values(row)
                key = ["node", "gpu_uuids"]
                connection.execute(wish.on_conflict_do_update(index_elements=key, set_={"limit_w": limit_w}))

    def drop(self, placements: Collection[Placement]) -> None:
        """Have the boards of these placements held to nothing."""
        with self._database.writing() as connection:
            for placement in placements:
                own = (limit_table.c.node == placement.node, limit_table.c.gpu_uuids == placement.gpu_uuids)
                connection.execute(delete(limit_table).where(*own))

    def sweep(self) -> None:
        """Drop what is wanted on boards that nobody holds."""
        with self._database.writing() as connection:
            connection.execute(delete(limit_table).where(~_is_held()))


def limit_of(connection: Connection, placement: Placement) -> float | None:
    """Return to how many watts the boards of a placement are to be held, ``None``: to nothing."""
    own = (limit_table.c.node == placement.node, limit_table.c.gpu_uuids == placement.gpu_uuids)
    found: float | None = connection.scalar(select(limit_table.c.limit_w).where(*own))
    return found


def wanted_of(connection: Connection, node: str) -> dict[Placement, float]:
    """Return to what the boards of the node are to be held; what nobody holds any more is dropped."""
    own = limit_table.c.node == node
    rows = connection.execute(select(limit_table, _is_held().label("held")).where(own)).all()
    if not all(row.held for row in rows):
        connection.execute(delete(limit_table).where(own, ~_is_held()))
    return {Placement(node, row.gpu_uuids): row.limit_w for row in rows if row.held}


def note_limits(connection: Connection, node: str, limits: NodeLimits | None) -> None:
    """Keep what the node's worker tells of its boards in place of what it told before."""
    known = connection.scalar(select(report_table.c.told).where(report_table.c.node == node))
    told = None if limits is None else _as_json(limits)
    if told == known:
        return
    if told is None:
        connection.execute(delete(report_table).where(report_table.c.node == node))
        return
    kept = upsert(connection, report_table).values(node=node, told=told)
    connection.execute(kept.on_conflict_do_update(index_elements=["node"], set_={"told": told}))


def _is_held() -> Any:
    same = (lease_table.c.node == limit_table.c.node, lease_table.c.gpu_uuids == limit_table.c.gpu_uuids)
    return exists().where(*same, lease_table.c.released_at.is_(None))


def _as_json(limits: NodeLimits) -> dict[str, Any]:
    return {
        "permits": dict(limits.permits),
        "in_force": [
            [list(placement.gpu_uuids), limit.limit_w, list(limit.before_w)]
            for placement, limit in sorted(limits.in_force.items(), key=lambda each: each[0].gpu_uuids)
        ],
        "noted": sorted(list(placement.gpu_uuids) for placement in limits.noted),
        "refused": sorted([list(placement.gpu_uuids), cause] for placement, cause in limits.refused.items()),
    }


def _told(node: str, told: Mapping[str, Any] | None) -> NodeLimits | None:
    if told is None:
        return None
    return NodeLimits(
        permits=told["permits"],
        in_force={
            Placement(node, tuple(uuids)): LimitInForce(limit_w, tuple(before_w))
            for uuids, limit_w, before_w in told["in_force"]
        },
        noted=frozenset(Placement(node, tuple(uuids)) for uuids in told["noted"]),
        refused={Placement(node, tuple(uuids)): cause for uuids, cause in told["refused"]},
    )
