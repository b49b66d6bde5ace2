"""Power limits between schedulers and nodes: answers carry what is wanted, reports what boards have."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits
from airflow_provider_eaco.core.node_runs import NodeReport
from airflow_provider_eaco.provider.node_wiring import make_node_door
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.store.node_limits import SqlNodeLimits
from airflow_provider_eaco.store.node_reports import SqlNodeReports
from airflow_provider_eaco.store.node_tables import node_limit
from tests.databases import database_on
from tests.integration.node_api.gate import SILENT_S, Gate, gpu_of

HELD = Placement("one", (gpu_of("one"),))
FREE = Placement("one", (gpu_of("one", 1),))
TOLD = {
    "permits": {gpu_of("one"): None, gpu_of("one", 1): "no permission"},
    "boards": [
        {"gpu_uuids": [gpu_of("one")], "limit_w": 200.0, "before_w": [300.0]},
        {"gpu_uuids": [gpu_of("one", 1)]},
    ],
    "refused": [{"gpu_uuids": [gpu_of("one", 1)], "cause": "out of range"}],
}


@pytest.fixture
def limits(gate: Gate) -> SqlNodeLimits:
    """What a scheduler sees of limits."""
    return SqlNodeLimits(gate.database)


def wanted_on(gate: Gate, node: str = "one") -> list[dict[str, Any]]:
    answer = gate.report(node, v=3).json()
    found: list[dict[str, Any]] = answer["limits"]
    return found


def test_a_wanted_limit_goes_out_with_the_start_and_with_each_answer(
    gate: Gate, limits: SqlNodeLimits
) -> None:
    """The node learns of it before it begins, and of a changed or lifted one with its next report."""
    limits.want({HELD: 200.0})
    assert gate.start("one", gate.lease.token, v=3).json()["power_limit_w"] == 200.0
    assert wanted_on(gate) == [{"gpu_uuids": [gpu_of("one")], "limit_w": 200.0}]
    assert wanted_on(gate, "two") == []
    limits.want({HELD: 180.0})
    assert wanted_on(gate) == [{"gpu_uuids": [gpu_of("one")], "limit_w": 180.0}]
    limits.drop([HELD])
    assert wanted_on(gate) == []
    assert gate.start("one", gate.lease.token, v=3).json()["power_limit_w"] is None


def test_a_limit_goes_with_the_last_lease(gate: Gate, limits: SqlNodeLimits) -> None:
    """Whoever is granted the boards next begins without what was planned for others."""
    limits.want({HELD: 200.0})
    gate.ledger.release(gate.lease.token, JobPhase.WAITING)
    assert wanted_on(gate) == []
    gate.grant("next", "one")
    assert wanted_on(gate) == []


def test_what_nobody_holds_is_swept_and_what_somebody_holds_stays(gate: Gate, limits: SqlNodeLimits) -> None:
    """Also on nodes that do not report any more."""
    limits.want({HELD: 200.0, FREE: 200.0})
    limits.sweep()
    assert limits.read()[1] == {HELD: 200.0}


def test_what_a_node_tells_is_what_schedulers_see(gate: Gate, limits: SqlNodeLimits) -> None:
    """In place of what it told before; a worker of an older version tells nothing."""
    assert limits.read()[0] == {"one": None, "two": None}
    gate.report("one", v=3, limits=TOLD)
    told = limits.read()[0]["one"]
    assert told == NodeLimits(
        permits={gpu_of("one"): None, gpu_of("one", 1): "no permission"},
        in_force={HELD: LimitInForce(200.0, (300.0,))},
        noted=frozenset({HELD, FREE}),
        refused={FREE: "out of range"},
    )
    gate.report("one", v=3)
    assert limits.read()[0]["one"] == NodeLimits()
    gate.report("one")
    assert limits.read()[0]["one"] is None


def test_a_revoked_node_has_told_nothing(gate: Gate, limits: SqlNodeLimits) -> None:
    """It is no node with a worker any more."""
    gate.report("one", v=3, limits=TOLD)
    gate.credentials.revoke("one")
    assert limits.read()[0] == {"two": None}


@pytest.mark.parametrize(
    ("setting", "goes_out"),
    [(PowerLimits.APPLY, True), (PowerLimits.ADVISE, False), (PowerLimits.OFF, False)],
)
def test_limits_go_out_only_where_a_pool_applies_them(
    setting: PowerLimits, goes_out: bool, gate: Gate, limits: SqlNodeLimits
) -> None:
    """Else nodes do not even ask their boards, whatever an earlier setting has left."""
    limits.want({HELD: 200.0})
    settings = EacoSettings(pools=(PoolSettings(), PoolSettings("limited", power_limits=setting)))
    door = make_node_door(settings, gate.database)
    claim = door.claim("one", "host-one", gate.lease.token, "job")
    assert claim is not None
    assert claim.power_limit_w == (200.0 if goes_out else None)
    report = NodeReport(gate.node("one"), "host-one", limits=NodeLimits())
    assert door.take(report).limits_w == ({HELD: 200.0} if goes_out else None)


def test_tables_that_know_no_limits_yet_go_on_without(gate: Gate, limits: SqlNodeLimits) -> None:
    """Nodes start and report as before, and no node is known to take a limit."""
    with gate.engine.begin() as connection:
        for table in ("eaco_node_limit", "eaco_node_limit_report"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
    try:
        database = database_on(gate.engine)
        reports = SqlNodeReports(database, SILENT_S)
        assert SqlNodeLimits(database).read() == ({}, {})
        assert reports.claim("one", "host-one", gate.lease.token, "job") is not None
        report = NodeReport(gate.node("one"), "host-one", limits=NodeLimits())
        assert reports.take(report).limits_w == {}
    finally:
        node_limit.metadata.create_all(gate.engine)
