"""What a user sees of jobs whose DAG he may not read: that there is one, and nothing that names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.alternative import Alternative, Way
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.store.decisions import StoredDecision
from tests.contract.parts import make_job, place

# Airflow's API imports a test client that warns of its own dependency.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx`")

SECRET = JobRecord(make_job("secret", family="secret-family"), JobPhase.WAITING, "x")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names as somebody sees them who may read no DAG."""
    from airflow_provider_eaco.provider.api import jobs_shown

    monkeypatch.setattr(jobs_shown, "permitted_dags", lambda *_: set())
    return jobs_shown.JobNames(object(), [SECRET])


def test_a_hidden_job_has_no_name(names: Any) -> None:
    """Its id tells colours apart; DAG, task and family are not there, and nothing can be changed."""
    shown = names.name(SECRET).model_dump()
    assert shown.pop("job_id") == "secret"
    assert shown.pop("label") == "a task of a DAG that you may not read"
    assert set(shown.values()) == {None, False}


@pytest.mark.parametrize("hides_kinds", [True, False])
@pytest.mark.parametrize("job_id", ["secret", None], ids=["one job", "a kind"])
def test_a_decision_about_it_names_nothing(names: Any, job_id: str | None, hides_kinds: bool) -> None:
    """Family, choice, sentences and alternatives are hidden with the job; of a kind they need to read every
    DAG.
    """
    from airflow_provider_eaco.provider.api.decisions import shown_decision

    finding = Finding(Reason.RESIDENT_DEADLINE_AT_RISK, {"who": "secret.task", "predicted": 2, "limit": 1})
    decision = hold(finding)
    if job_id is not None:
        decision = AdmissionDecision(Verdict.ADMIT, placement=place(0), choice="beside secret.task")
    decision = replace(decision, alternatives=(Alternative(Way.JOIN, ("near-secret",), energy_j=2e6),))
    stored = StoredDecision(1, "eaco", "s", "k", job_id, "secret-family", 1, decision, 0.0, None)
    shown = shown_decision(stored, {"secret": SECRET}, names, hides_kinds=hides_kinds)
    hidden = job_id is not None or hides_kinds
    assert ("secret-family" in shown.model_dump_json()) is not hidden
    assert ("secret.task" in shown.model_dump_json()) is not hidden
    assert [each.text for each in shown.alternatives] == (
        [] if hidden else ["beside near-secret: 2.00 MJ, slowdown unknown; taken"]
    )
