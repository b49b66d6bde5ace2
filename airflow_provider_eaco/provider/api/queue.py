"""``/queue``: the waiting jobs in planned order, each with its reason; hold and release."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import Field

from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, User
from airflow_provider_eaco.provider.api.audit_log import note_change
from airflow_provider_eaco.provider.api.errors import CONFLICT
from airflow_provider_eaco.provider.api.jobs_shown import JobName, JobNames
from airflow_provider_eaco.provider.api.paging import Limit, Offset, Page
from airflow_provider_eaco.provider.api.reasons import ReasonShown, shown_reasons
from airflow_provider_eaco.provider.api.starts import the_board
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.api.versions import answer_if_changed
from airflow_provider_eaco.provider.cli.facts import explain_waiting, read_facts
from airflow_provider_eaco.provider.cli.rows import shown_request
from airflow_provider_eaco.provider.explain import Explanation
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart

router = APIRouter(tags=["queue"], dependencies=[CanSee])

JobId = Annotated[str, Path(min_length=1, max_length=250)]


class Waiting(JobName):
    """A waiting job. Instants are seconds since the Unix epoch; ``null`` is unknown."""

    pool: str | None = Field(description="the GPU pool that plans it")
    position: int | None
    of: int | None = Field(description="how many wait in that pool")
    request: str
    priority: int
    on_hold: bool
    queued_s: float
    since_s: float | None = Field(description="since when the reason has stood")
    reasons: list[ReasonShown] = Field(description="most severe first, at least one")
    expected_start_s: float | None = Field(
        description="when it is expected to start on GPUs of its own, at most a minute old"
    )
    earliest_start_s: float | None = Field(description="if everybody before it is one deviation faster")
    latest_start_s: float | None = Field(description="if everybody before it is one deviation slower")


class Held(JobName):
    """A waiting job after a change."""

    on_hold: bool


@router.get("/queue", response_model=Page[Waiting])
def queue(
    request: Request,
    user: User,
    pool: Annotated[str | None, Query(max_length=250, description="of this GPU pool alone")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> Response:
    """Return waiting jobs: pool by pool in planned order, then those that nobody has planned yet."""
    facts = read_facts(the_store())
    starts = the_board().starts(facts)
    entries = [entry for entry in facts.queue if pool is None or entry.pool == pool]
    chosen = entries[offset : offset + limit]
    names = JobNames(user, [entry.record for entry in chosen], with_runs=True)
    page = Page[Waiting](
        now_s=facts.view.now_s,
        items=[
            _waiting(
                entry.record,
                explain_waiting(entry, facts.view.now_s),
                names,
                starts.get(entry.record.job.job_id),
            )
            for entry in chosen
        ],
        total=len(entries),
        limit=limit,
        offset=offset,
    )
    return answer_if_changed(request, page)


def _waiting(
    record: JobRecord,
    told: Explanation,
    names: JobNames,
    start: ExpectedStart | None,
) -> Waiting:
    hidden = names.is_hidden(record)
    job = record.job
    reasons = (*(() if told.reason is None else (told.reason,)), *told.also)
    return Waiting(
        **names.name(record).model_dump(),
        pool=None if told.place is None else told.place.pool,
        position=None if told.place is None else told.place.position,
        of=None if told.place is None else told.place.of,
        request=shown_request(job.request),
        priority=job.priority,
        on_hold=job.on_hold,
        queued_s=job.queued_s,
        since_s=told.since_s,
        reasons=shown_reasons(reasons, hidden=hidden),
        expected_start_s=_whole(None if start is None else start.at_s),
        earliest_start_s=_whole(None if start is None else start.earliest_s),
        latest_start_s=_whole(None if start is None else start.latest_s),
    )


def _whole(at_s: float | None) -> float | None:
    # Digits that no forecast has would only make every answer another one.
    return None if at_s is None else float(round(at_s))


@router.post("/jobs/{job_id}/hold", response_model=Held, responses=CONFLICT)
def hold(user: User, job_id: JobId) -> Held:
    """Keep a waiting job from starting, until it is released. Needs to change task instances of its DAG."""
    return _set_hold(user, job_id, on_hold=True)


@router.post("/jobs/{job_id}/release", response_model=Held, responses=CONFLICT)
def release(user: User, job_id: JobId) -> Held:
    """End the hold of a waiting job. Needs to change task instances of its DAG."""
    return _set_hold(user, job_id, on_hold=False)


def _set_hold(user: User, job_id: str, *, on_hold: bool) -> Held:
    store = the_store()
    record = store.reads.job(job_id)
    names = JobNames(user, [] if record is None else [record])
    if record is None or names.is_hidden(record):
        raise HTTPException(404, "no such job is stored")
    name = names.name(record)
    if not name.may_change:
        raise HTTPException(403, f"holding and releasing needs to change tasks of DAG {name.dag_id}")
    note_change(user, "eaco user hold" if on_hold else "eaco user release", name.label, record)
    if not store.ledger.set_hold(job_id, on_hold):
        raise HTTPException(409, f"{name.label} does not wait; only a waiting task can be held or released")
    return Held(**name.model_dump(), on_hold=on_hold)
