"""Jobs as every answer of the API carries them, and what is left of one whose DAG the user may not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import permitted_dags
from airflow_provider_eaco.provider.cli.airflow_facts import runs_of

HIDDEN = "a task of a DAG that you may not read"


class JobName(BaseModel):
    """Which task a job is a try of; all but ``job_id`` and ``label`` are ``None`` where it is hidden."""

    job_id: str
    label: str = Field(description="DAG, task and map index, as people say it")
    dag_id: str | None
    task_id: str | None
    map_index: int | None
    run_id: str | None = Field(default=None, description="its DAG run, where it is known here")
    family: str | None
    may_change: bool = Field(description="whether you may hold and release it")


class JobNames:
    """Names the jobs of one answer for one user; asks the auth manager once for all of their DAGs.

    :param with_runs: whether their DAG runs are looked up, too.
    """

    def __init__(self, user: Any, records: Iterable[JobRecord], *, with_runs: bool = False) -> None:
        named = list(records)
        self._readable = permitted_dags(user, {record.job.order.dag_id for record in named}, "GET")
        self._editable = permitted_dags(user, self._readable, "PUT")
        shown = [record.job.job_id for record in named if not self.is_hidden(record)] if with_runs else []
        self._run_of = runs_of(shown) if shown else {}

    def is_hidden(self, record: JobRecord) -> bool:
        """Tell whether the user may not read the job's DAG."""
        return record.job.order.dag_id not in self._readable

    def name(self, record: JobRecord) -> JobName:
        """Return the job's name as the user may see it."""
        job = record.job
        if self.is_hidden(record):
            return JobName(
                job_id=job.job_id,
                label=HIDDEN,
                dag_id=None,
                task_id=None,
                map_index=None,
                family=None,
                may_change=False,
            )
        return JobName(
            job_id=job.job_id,
            label=job.label,
            dag_id=job.order.dag_id,
            task_id=job.order.task_id,
            map_index=job.order.map_index,
            run_id=self._run_of.get(job.job_id),
            family=job.request.family,
            may_change=job.order.dag_id in self._editable,
        )
