"""Alternatives of decisions that are stored: asked for one by one, and never in the way of a plan."""

from __future__ import annotations

from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.alternatives import Explainer
from airflow_provider_eaco.core.policy.base import AdmissionPolicy
from airflow_provider_eaco.core.ports import Explain

# Of a plan with more news the first so many decisions are explained: a heartbeat stays short.
MOST_EXPLAINED = 200


def explaining(policy: AdmissionPolicy, snapshot: ClusterSnapshot, plan: Plan) -> Explain:
    """Return who explains the plan's decisions; what cannot be explained has no alternatives."""
    explainer: Explainer | None = None
    left = MOST_EXPLAINED

    def explain(item: KindDecision) -> tuple[Alternative, ...]:
        nonlocal explainer, left
        if not left:
            return ()
        left -= 1
        try:
            if explainer is None:
                explainer = Explainer(policy, snapshot, plan)
            return explainer.alternatives(item)
        # A user's policy may decide what nobody can follow; its decisions count all the same.
        except Exception:  # noqa: BLE001
            return ()

    return explain
