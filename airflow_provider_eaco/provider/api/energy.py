"""``/energy``: what was used, by whom, and what the same work would have taken alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook
from airflow_provider_eaco.core.ports import EnergyMethod, JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, User
from airflow_provider_eaco.provider.api.jobs_shown import HIDDEN, JobNames
from airflow_provider_eaco.provider.wiring import open_store

if TYPE_CHECKING:
    from airflow_provider_eaco.store.past import EnergyRow

router = APIRouter(tags=["energy"], dependencies=[CanSee])

MAX_DAYS = 366
MAX_GROUPS = 200
METHOD = (
    "Of every job whose energy is known: its finished units, times time per unit and power alone, both from "
    "the profile of its family on this GPU model and number of GPUs. Jobs without one, or whose profile "
    "covers another part of the machine than their meter, are in neither sum."
)


class Sums(BaseModel):
    """What some jobs used. ``energy_j`` is ``null`` if nothing was measured; a lower bound if partial.

    ``compared_j`` is the energy of those jobs of which ``exclusive_j``, the same work alone, is known.
    """

    jobs: int
    energy_j: float | None
    partial: bool
    gpu_s: float = Field(description="seconds of GPUs held, each divided by nobody")
    compared_j: float | None
    exclusive_j: float | None


class Group(Sums):
    """The sums of one team, DAG, task or pool; ``name`` is ``null`` where it is not known."""

    name: str | None


class EnergyShown(BaseModel):
    """Energy of the jobs that used some since ``from_s``: whole jobs, also what they had used before."""

    now_s: float
    from_s: float
    total: Sums
    by_team: list[Group] = Field(description="a team is the bundle that a DAG comes from")
    by_dag: list[Group]
    by_task: list[Group]
    by_pool: list[Group]
    method: str = Field(description="how exclusive_j is found")


@dataclass(slots=True)
class _Job:
    """What one job used."""

    record: JobRecord
    known_j: list[float] = field(default_factory=list)
    partial: bool = False
    gpu_s: float = 0.0
    models: set[str | None] = field(default_factory=set)
    methods: set[EnergyMethod] = field(default_factory=set)
    exclusive_j: float | None = None

    def add(self, row: EnergyRow) -> None:
        if row.energy_j is not None:
            self.known_j.append(row.energy_j)
        self.partial = self.partial or row.partial
        self.gpu_s += row.seconds
        self.models.add(row.gpu_model)
        self.methods.add(row.method)


@router.get("/energy", response_model=EnergyShown)
def energy(
    user: User,
    days: Annotated[float, Query(gt=0, le=MAX_DAYS, description="how far it goes back from now")] = 1.0,
) -> EnergyShown:
    """Return what was used by team, DAG, task and pool, the largest first, at most 200 of each."""
    store = open_store()
    from_s = store.clock.now_s() - days * 86400
    found = store.past.energy_since(from_s)
    jobs = {job_id: _Job(record) for job_id, record in found.records.items()}
    for row in found.rows:
        if row.job_id in jobs:
            jobs[row.job_id].add(row)
    book = store.profiles.book()
    for each in jobs.values():
        each.exclusive_j = exclusive_j(each, book)
    names = JobNames(user, found.records.values())

    def shown(name: Callable[[JobRecord], str | None]) -> Callable[[_Job], str | None]:
        return lambda job: HIDDEN if names.is_hidden(job.record) else name(job.record)

    return EnergyShown(
        now_s=found.now_s,
        from_s=from_s,
        total=_sums(jobs.values()),
        by_team=_grouped(jobs.values(), shown(lambda record: record.job.bundle)),
        by_dag=_grouped(jobs.values(), shown(lambda record: record.job.order.dag_id)),
        by_task=_grouped(jobs.values(), shown(_task)),
        by_pool=_grouped(jobs.values(), shown(lambda record: record.job.pool)),
        method=METHOD,
    )


def exclusive_j(job: _Job, book: ProfileBook) -> float | None:
    """Return the joules of the job's finished units alone, ``None`` where not known (:data:`METHOD`)."""
    model = next(iter(job.models)) if len(job.models) == 1 else None
    units = job.record.job.progress.units_done
    if model is None or not units or not job.known_j or job.partial:
        return None
    request = job.record.job.request
    solo = book.solo_of(request.family, model, request.gpus)
    if solo is None or solo.unit_s is None or solo.power_w is None:
        return None
    metered = PowerScope.NODE if job.methods == {EnergyMethod.MODEL} else PowerScope.BOARD
    return None if solo.scope is not metered else units * solo.unit_s * solo.power_w


def _task(record: JobRecord) -> str:
    return f"{record.job.order.dag_id}.{record.job.order.task_id}"


def _grouped(jobs: Iterable[_Job], name_of: Callable[[_Job], str | None]) -> list[Group]:
    groups: dict[str | None, list[_Job]] = defaultdict(list)
    for job in jobs:
        groups[name_of(job)].append(job)
    found = [Group(name=name, **_sums(members).model_dump()) for name, members in groups.items()]
    return sorted(found, key=lambda group: (-(group.energy_j or 0.0), group.name or ""))[:MAX_GROUPS]


def _sums(jobs: Iterable[_Job]) -> Sums:
    members = list(jobs)
    compared = [job for job in members if job.exclusive_j is not None]
    return Sums(
        jobs=len(members),
        energy_j=_total(joules for job in members for joules in job.known_j),
        partial=any(job.partial for job in members),
        gpu_s=math.fsum(job.gpu_s for job in members),
        compared_j=_total(joules for job in compared for joules in job.known_j),
        exclusive_j=_total(job.exclusive_j for job in compared if job.exclusive_j is not None),
    )


def _total(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) if known else None
