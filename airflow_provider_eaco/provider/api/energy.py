"""``/energy``: what was used, by whom, and what the same work would have taken alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, User
from airflow_provider_eaco.provider.api.energy_sums import (
    METHOD,
    Group,
    JobUse,
    Sums,
    exclusive_j,
    grouped,
    sums,
)
from airflow_provider_eaco.provider.api.jobs_shown import HIDDEN, JobNames
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.settings import load_settings
from airflow_provider_eaco.provider.teams import team_shown

router = APIRouter(tags=["energy"], dependencies=[CanSee])

MAX_DAYS = 366


class EnergyShown(BaseModel):
    """Energy of the jobs that used some since ``from_s``: whole jobs, also what they had used before."""

    now_s: float
    from_s: float
    total: Sums
    by_team: list[Group] = Field(
        description="a team is what the rule fair_share of the job's GPU pool goes by, else its DAG bundle"
    )
    by_dag: list[Group]
    by_task: list[Group]
    by_pool: list[Group]
    method: str = Field(description="how exclusive_j is found")


@router.get("/energy", response_model=EnergyShown)
def energy(
    user: User,
    days: Annotated[float, Query(gt=0, le=MAX_DAYS, description="how far it goes back from now")] = 1.0,
) -> EnergyShown:
    """Return what was used by team, DAG, task and pool, the largest first, at most 200 of each."""
    store = the_store()
    from_s = store.clock.now_s() - days * 86400
    found = store.past.energy_since(from_s)
    jobs = {job_id: JobUse(record) for job_id, record in found.records.items()}
    for row in found.rows:
        if row.job_id in jobs:
            jobs[row.job_id].add(row)
    book = store.profiles.book()
    for each in jobs.values():
        each.exclusive_j = exclusive_j(each, book)
    names, settings = JobNames(user, found.records.values()), load_settings()

    def shown(name: Callable[[JobRecord], str | None]) -> Callable[[JobUse], str | None]:
        return lambda job: HIDDEN if names.is_hidden(job.record) else name(job.record)

    return EnergyShown(
        now_s=found.now_s,
        from_s=from_s,
        total=sums(jobs.values()),
        by_team=grouped(jobs.values(), shown(lambda record: team_shown(record.job, settings))),
        by_dag=grouped(jobs.values(), shown(lambda record: record.job.order.dag_id)),
        by_task=grouped(jobs.values(), shown(_task)),
        by_pool=grouped(jobs.values(), shown(lambda record: record.job.pool)),
        method=METHOD,
    )


def _task(record: JobRecord) -> str:
    return f"{record.job.order.dag_id}.{record.job.order.task_id}"
