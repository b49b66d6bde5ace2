"""Every cycle of these tests is an invariant test too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy, make_rules
from tests.invariants import check_plan

Cycle = Callable[[ClusterSnapshot], Plan]


def run_checked(snapshot: ClusterSnapshot) -> Plan:
    """Run one cycle with what the pool's settings name, and check the plan's invariants."""
    settings = snapshot.pool.settings
    ordering, rules = make_ordering(settings.ordering), make_rules(settings)
    plan = run_cycle(make_policy(settings), ordering, snapshot, rules)
    check_plan(snapshot, plan)
    return plan


@pytest.fixture
def cycle() -> Cycle:
    """The cycle under test, with its invariants checked."""
    return run_checked
