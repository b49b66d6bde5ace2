"""Whose work a job is, wherever people read it: on the page, in the API and in the report."""

from __future__ import annotations

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.policy.rules_fair_share import team_of
from airflow_provider_eaco.provider.settings import EacoSettings

FAIR_SHARE = "fair_share"


def team_shown(job: Job, settings: EacoSettings) -> str | None:
    """Return the job's team: that by which the rule ``fair_share`` of its GPU pool goes, else its bundle.

    ``None`` if that is not known. Nothing that a request says is in it.
    """
    pool = settings.pool_for(job.pool)
    if FAIR_SHARE in pool.rules:
        return team_of(job, pool.fair_share.by) or None
    return job.bundle
