"""Explaining is never in the way of a plan."""

from __future__ import annotations

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.policy.registry import make_ordering, make_policy
from airflow_provider_eaco.engine import explaining
from airflow_provider_eaco.engine.explaining import MOST_EXPLAINED
from tests.builders import make_job, make_node, make_snapshot

SETTINGS = PoolSettings(policy="exclusive")
POLICY = make_policy(SETTINGS)
WAITING = [make_job("a", "J1"), make_job("b", "J2", run_after_s=1.0)]
SNAPSHOT = make_snapshot(make_node(), waiting=WAITING, settings=SETTINGS)


def planned() -> Plan:
    return run_cycle(POLICY, make_ordering("fifo"), SNAPSHOT)


def test_what_cannot_be_explained_has_no_alternatives() -> None:
    """A user's policy may place a job where there is nothing; that is no failure of its pool."""
    (first, rest) = planned().decisions
    nowhere = KindDecision(
        first.kind,
        first.job_ids,
        first.decision.__class__(
            first.decision.verdict, placement=Placement("nowhere", ("x",)), choice="mine"
        ),
    )
    explain = explaining.explaining(POLICY, SNAPSHOT, planned())
    assert explain(nowhere) == ()
    assert explain(rest) != ()


def test_of_many_news_the_first_are_explained() -> None:
    """A heartbeat in which everything is new stays short."""
    plan = planned()
    explain = explaining.explaining(POLICY, SNAPSHOT, plan)
    found = [bool(explain(plan.decisions[0])) for _ in range(MOST_EXPLAINED + 1)]
    assert found == [True] * MOST_EXPLAINED + [False]
