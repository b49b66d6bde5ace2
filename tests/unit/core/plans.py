"""Reading a plan in a test."""

from __future__ import annotations

from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan


def launched(plan: Plan) -> dict[str, Launch]:
    """The launches of a plan by job id."""
    return {step.job.job_id: step for step in plan.instructions if isinstance(step, Launch)}


def decision_of(plan: Plan, job_id: str) -> KindDecision:
    """The decision that covers the job."""
    return next(made for made in plan.decisions if job_id in made.job_ids)


def codes_of(plan: Plan, job_id: str) -> list[str]:
    """The codes of the reasons why the job waits, most severe first."""
    return [finding.reason.code for finding in decision_of(plan, job_id).decision.findings]


def texts_of(plan: Plan, job_id: str) -> str:
    """The sentences why the job waits."""
    return "; ".join(finding.text for finding in decision_of(plan, job_id).decision.findings)
