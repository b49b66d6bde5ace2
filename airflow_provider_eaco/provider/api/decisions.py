"""``/decisions``: what was decided, and why not otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.decision import SetPrediction, Verdict
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, User, reads_every_dag
from airflow_provider_eaco.provider.api.jobs_shown import JobName, JobNames
from airflow_provider_eaco.provider.api.paging import Limit, Offset, Page
from airflow_provider_eaco.provider.api.reasons import ReasonShown, shown_reasons
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.explain import ShownReason

if TYPE_CHECKING:
    from airflow_provider_eaco.store.decisions import StoredDecision

router = APIRouter(tags=["decisions"], dependencies=[CanSee])


class Prediction(BaseModel):
    """What was expected of the set: slowdowns by family, draw, utilisation, and whether it was measured."""

    slowdowns: dict[str, float]
    power_w: float | None
    utilisation_pct: float | None
    measured: bool
    error: float = Field(description="relative error that was added to the slowdowns of an estimate")


class AlternativeShown(BaseModel):
    """One way in which the job could have run, and what spoke against it."""

    way: str = Field(description="alone, join, or closed: sets that take nobody")
    families: list[str] = Field(description="who is there")
    node: str | None
    slowdown: float | None
    energy_j: float | None = Field(description="joules that its work adds there, as predicted")
    of_one_unit: bool = Field(
        description="whether the joules are of one unit of its work, not of what is left"
    )
    why_not: str | None = Field(description="null for the one that was taken")
    text: str = Field(description="the same in one line, as `airflow eaco why` prints it")


class DecisionShown(BaseModel):
    """One decision. ``job`` is set where one job was admitted; else it is the answer to a kind of job."""

    decision_id: int
    pool: str
    verdict: str
    family: str | None
    gpus: int
    job: JobName | None
    node: str | None
    gpu_uuids: list[str]
    co_residents: list[JobName]
    choice: str = Field(description="why this placement before others; empty where nothing was to choose")
    reasons: list[ReasonShown] = Field(
        description="why each way to place it was ruled out, most severe first"
    )
    alternatives: list[AlternativeShown]
    prediction: Prediction | None
    decided_s: float
    ended_s: float | None = Field(description="null while it stands")


@router.get("/decisions", response_model=Page[DecisionShown])
def decisions(
    user: User,
    pool: Annotated[str | None, Query(max_length=250, description="of this GPU pool alone")] = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[DecisionShown]:
    """Return decisions, the newest first."""
    found = the_store().past.decisions(pool, limit, offset)
    names = JobNames(user, found.records.values(), with_runs=True)
    hides_kinds = not reads_every_dag(user)
    return Page[DecisionShown](
        now_s=found.now_s,
        items=[
            shown_decision(each, found.records, names, hides_kinds=hides_kinds) for each in found.decisions
        ],
        total=found.total,
        limit=limit,
        offset=offset,
    )


def shown_decision(
    stored: StoredDecision, records: Mapping[str, JobRecord], names: JobNames, *, hides_kinds: bool
) -> DecisionShown:
    """Return the decision as this user may see it.

    Sentences may name tasks, so they are shown where the user may read the DAGs of all jobs of the answer.
    Whose jobs made up a kind is not stored: its answers are for those who read every DAG.
    """
    decision = stored.decision
    record = records.get(stored.job_id or "")
    others = [records[job_id] for job_id in decision.co_residents if job_id in records]
    hidden = hides_kinds if record is None else any(map(names.is_hidden, [record, *others]))
    place = decision.placement
    admitted = decision.verdict is Verdict.ADMIT
    return DecisionShown(
        decision_id=stored.decision_id,
        pool=stored.pool,
        verdict=decision.verdict.value,
        family=None if hidden else stored.family,
        gpus=stored.gpus,
        job=names.name(record) if record is not None else None,
        node=None if place is None else place.node,
        gpu_uuids=[] if place is None else list(place.gpu_uuids),
        co_residents=[names.name(other) for other in others],
        choice="" if hidden else decision.choice,
        reasons=[] if admitted else shown_reasons(map(ShownReason.of, decision.findings), hidden=hidden),
        alternatives=[] if hidden else [_alternative(each) for each in decision.alternatives],
        prediction=None if hidden or decision.prediction is None else _prediction(decision.prediction),
        decided_s=stored.decided_s,
        ended_s=stored.ended_s,
    )


def _alternative(found: Alternative) -> AlternativeShown:
    return AlternativeShown(
        way=found.way.value,
        families=list(found.families),
        node=None if found.placement is None else found.placement.node,
        slowdown=found.slowdown,
        energy_j=found.energy_j,
        of_one_unit=found.per_unit,
        why_not=found.lost or None,
        text=found.text,
    )


def _prediction(found: SetPrediction) -> Prediction:
    return Prediction(
        slowdowns=dict(found.expected_slowdowns),
        power_w=found.joint_power_w,
        utilisation_pct=found.utilisation_pct,
        measured=found.measured,
        error=found.error,
    )
