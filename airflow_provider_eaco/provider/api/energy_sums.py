"""Energy of jobs added up, beside what the same work would have taken alone. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook
from airflow_provider_eaco.core.ports import EnergyMethod, JobRecord

if TYPE_CHECKING:
    from airflow_provider_eaco.store.past import EnergyRow

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


@dataclass(slots=True)
class JobUse:
    """What one job used: add its rows one by one."""

    record: JobRecord
    known_j: list[float] = field(default_factory=list)
    partial: bool = False
    gpu_s: float = 0.0
    models: set[str | None] = field(default_factory=set)
    methods: set[EnergyMethod] = field(default_factory=set)
    exclusive_j: float | None = None

    def add(self, row: EnergyRow) -> None:
        """Add what it used of one GPU under one lease."""
        if row.energy_j is not None:
            self.known_j.append(row.energy_j)
        self.partial = self.partial or row.partial
        self.gpu_s += row.seconds
        self.models.add(row.gpu_model)
        self.methods.add(row.method)


def exclusive_j(job: JobUse, book: ProfileBook) -> float | None:
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


def grouped(jobs: Iterable[JobUse], name_of: Callable[[JobUse], str | None]) -> list[Group]:
    """Return the sums by name, the largest first, at most :data:`MAX_GROUPS`."""
    groups: dict[str | None, list[JobUse]] = defaultdict(list)
    for job in jobs:
        groups[name_of(job)].append(job)
    found = [Group(name=name, **sums(members).model_dump()) for name, members in groups.items()]
    return sorted(found, key=lambda group: (-(group.energy_j or 0.0), group.name or ""))[:MAX_GROUPS]


def sums(jobs: Iterable[JobUse]) -> Sums:
    """Return what the jobs used together."""
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
