"""Nodes that do not report, and nodes that sleep by our will, in the commands."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from airflow import settings
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.inventory import SqlReadings
from airflow_provider_eaco.store.session import Database
from tests.unit.provider.cli.rig import Cli, Cluster


def test_a_silent_node_is_unavailable_after_the_time_that_is_set(
    cluster: Cluster, cli: Cli, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``[eaco] node_timeout`` decides for the commands as it does for the planner; from then on nobody knows
    how its GPUs are and what they draw.
    """

    def told() -> tuple[str, ...]:
        (node,) = cli("nodes", "-o", "json").json()
        (status,) = cli("status", "-o", "json").json()
        (gpu,) = node["gpu_list"]
        assert status["power"] == node["power"] == gpu["power"]
        return node["state"], status["gpus_unknown"], gpu["health"], gpu["utilisation"], node["power"]

    cluster.add_node()
    readings = [GpuReading("n1-gpu00", 1.0, power_w=50.0, utilisation_pct=20.0)]
    SqlReadings(Database(settings.NonScopedSession)).save(readings)
    ago = sa.update(schema.node).values(last_report_at=sa.func.datetime("now", "-70 seconds"))
    with engine.begin() as connection:
        connection.execute(ago)
    assert told() == ("unavailable", "1", "unknown", "unknown", "unknown")
    monkeypatch.setenv("AIRFLOW__EACO__NODE_TIMEOUT", "90")
    load_settings.cache_clear()
    assert told() == ("available", "0", "healthy", "20.0 %", "50 W")


@pytest.mark.parametrize("power", [NodePower.ASLEEP, NodePower.WAKING])
def test_a_node_that_was_put_to_sleep_says_so_while_somebody_would_wake_it(
    power: NodePower, cluster: Cluster, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ``nodes`` and ``status``; one that is in ``[eaco] node_sleep`` no more is what it would be else."""
    cluster.add_node("n1", available=False)
    cluster.add_node("n2", available=False)
    for name in ("n1", "n2"):
        assert cluster.store.node_sleep.move(name, None, power)
    commands = '{"n1": {"sleep": ["/bin/true"], "wake": ["/bin/true"]}}'
    monkeypatch.setenv("AIRFLOW__EACO__NODE_SLEEP", commands)
    load_settings.cache_clear()
    states = {"n1": power.value, "n2": "unavailable"}
    gpus = cli("nodes", "-o", "json").json()
    assert {row["node"]: row["state"] for row in gpus if "state" in row} == states
    nodes = cli("status", "-o", "json").json()[0]["nodes"]
    assert {row["node"]: row["state"] for row in nodes} == states
