"""What the page is told of a node: one that sleeps by our will is no node that has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.provider.cli.facts import Facts
from airflow_provider_eaco.store.past import LeasesOverTime
from tests.builders import make_node

# Airflow's API imports a test client that warns of its own dependency.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx`")

NAMES = ("asleep", "lost", "up", "wakes")
NODES = tuple(make_node(name, gpus=1, available=name == "up").node for name in NAMES)
STATES = {"asleep": "asleep", "lost": "unavailable", "up": "available", "wakes": "waking"}


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Four nodes of which one sleeps and one wakes; a store that holds nothing else."""
    from airflow_provider_eaco.provider.api import cluster, jobs_shown, timeline

    past = SimpleNamespace(leases_between=lambda *_: LeasesOverTime(0.0, (), False, (), {}))
    store = SimpleNamespace(profiles=SimpleNamespace(book=ProfileBook), past=past)
    made = Facts(
        view=LedgerView(0.0, NODES, (), ()),
        states=(PoolState(PoolSettings("eaco")),),
        queue=(),
        readings={},
        energy_j=None,
        energy_of={},
        profiles=ProfileBook,
        limits={},
        sleeping={
            "asleep": NodePowerState(NodePower.ASLEEP, 0.0),
            "wakes": NodePowerState(NodePower.WAKING, 0.0),
        },
    )
    for module in (cluster, timeline):
        monkeypatch.setattr(module, "the_store", lambda: store)
    monkeypatch.setattr(jobs_shown, "permitted_dags", lambda *_: set())
    monkeypatch.setattr(cluster, "may_steer", lambda user: False)
    monkeypatch.setattr(timeline, "read_facts", lambda: made)
    return made


def test_the_page_tells_sleep_from_failure(facts: Facts) -> None:
    """Overview and timeline say it alike."""
    from airflow_provider_eaco.provider.api.cluster import overview_of
    from airflow_provider_eaco.provider.api.timeline import timeline

    user: Any = object()
    assert {node.name: node.state for node in overview_of(facts, user).nodes} == STATES
    assert {lane.node: lane.state for lane in timeline(user).lanes} == STATES
