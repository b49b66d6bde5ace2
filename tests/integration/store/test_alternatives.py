"""Alternatives and notes of decisions come back as they were stored."""

from __future__ import annotations

from airflow_provider_eaco.core.model.alternative import Alternative, Way
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.store.decisions import SqlDecisionLog, decisions_of
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import make_job, place

FOUND = (
    Alternative(Way.JOIN, ("x", "y"), place(0, 1), 1.02, 2.5e6),
    Alternative(Way.ALONE, (), None, 1.0, None, per_unit=True, lost="no node has as many GPUs free"),
    Alternative(Way.CLOSED, lost="held exclusively (1 of 1)"),
)
NOTE = Finding(Reason.OVER_ENERGY_BUDGET, {"pool": "eaco", "case": "too much", "added_w": 3.5})


def test_alternatives_are_those_of_the_instant_of_the_answer(database: Database) -> None:
    """They are asked for once, however long the answer stands."""
    log = SqlDecisionLog(database)
    admitted = AdmissionDecision(Verdict.ADMIT, placement=place(0), choice="because", notes=(NOTE,))
    items = (
        KindDecision(make_job("a").kind, ("a",), admitted),
        KindDecision(make_job("b").kind, ("b",), hold(Finding(Reason.ON_HOLD))),
    )
    first = Plan("eaco", 1.0, decisions=items, order=("a", "b"))
    log.record(first, lambda item: FOUND if item.decision.placement else FOUND[1:])
    log.record(first, lambda _: ())
    with database.reading() as connection:
        stored = [row.decision for row in decisions_of(connection)]
    assert [decision.alternatives for decision in stored] == [FOUND, FOUND[1:]]
    assert stored[0].notes == (NOTE,)
    assert stored[0].choice == "because"


def test_who_explains_nothing_stores_none(database: Database) -> None:
    """No alternatives is a value."""
    log = SqlDecisionLog(database)
    item = KindDecision(make_job("a").kind, ("a",), hold(Finding(Reason.ON_HOLD)))
    log.record(Plan("eaco", 1.0, decisions=(item,), order=("a",)))
    with database.reading() as connection:
        (row,) = decisions_of(connection)
    assert row.decision.alternatives == ()
