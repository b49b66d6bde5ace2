"""`airflow eaco why` tells where else a task could have run, and which budget holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.provider.wiring import present_pools
from tests.builders import make_job
from tests.unit.provider.cli.rig import OWNER, Cli, Cluster


@pytest.fixture
def busy(cluster: Cluster) -> Cluster:
    """A V100 node with a task on it, and one for each of the others that come."""
    cluster.add_node("n1", 8, "V100")
    cluster.add_node("n2", 8, "V100")
    cluster.add(make_job("first", "J1"))
    cluster.plan()
    cluster.start("first")
    return cluster


def limited(cluster: Cluster, budget: EnergyBudget) -> None:
    """Plan from now on under a budget."""
    settings = PoolSettings(policy="exclusive", energy_budget=budget)
    cluster.loop = AdmissionLoop(
        cluster.store.ledger,
        cluster.store.profiles,
        cluster.store.decisions,
        cluster.store.planner,
        pools=lambda: [replace(pool, settings=settings) for pool in present_pools(load_settings())],
        owner=OWNER,
        energy_use=cluster.store.energy_use,
    )


def test_a_running_task_is_told_why_it_is_there_and_where_else_it_could_be(busy: Cluster, cli: Cli) -> None:
    """The chosen place comes first; the joules of each are there, for people and for programs."""
    busy.add(make_job("second", "J3"))
    busy.plan()
    words = cli("why", "second").out
    assert "why there: pack: the busiest set that fits" in words
    assert "where it could have run:" in words
    assert "- beside J1 on n1: " in words
    assert "- GPUs of its own on n2: " in words
    (told,) = cli("why", "second", "-o", "json").json()
    assert [each["way"] for each in told["alternatives"]] == ["join", "alone"]
    assert [bool(each["why_not"]) for each in told["alternatives"]] == [False, True]
    assert all(float(each["energy_j"]) > 0 for each in told["alternatives"])


def test_a_task_that_a_budget_holds_is_told_the_numbers_and_what_would_fit(busy: Cluster, cli: Cli) -> None:
    """Watts that are drawn, allowed and would be added; the place itself is free."""
    limited(busy, EnergyBudget(power_w=1900.0))
    busy.add(make_job("second", "J3"))
    busy.plan()
    words = cli("why", "second").out
    assert "reason: over_energy_budget, since " in words
    assert "it draws 1.1 kW of 1.9 kW by prediction, and the task would add 0.9 kW" in words
    assert "- GPUs of its own on n2: " in words
    assert "not taken: it would fit; the task waits for over_energy_budget" in words


def test_a_budget_that_warns_stands_in_the_story_of_the_task(busy: Cluster, cli: Cli) -> None:
    """It runs, and what it runs in spite of is told."""
    limited(busy, EnergyBudget(power_w=1900.0, action=BudgetAction.WARN))
    busy.add(make_job("second", "J3"))
    busy.plan()
    words = cli("why", "second").out
    assert "started all the same: over_energy_budget: energy budget of pool eaco: it draws 1.1 kW" in words
