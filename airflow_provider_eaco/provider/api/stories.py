"""``/jobs/{job_id}`` and ``/task-jobs``: one job, or those of a task or DAG run, with their whole story."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, Field

from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.api.access import CanSee, CanSeeTasks, User
from airflow_provider_eaco.provider.api.decisions import DecisionShown, shown_decision
from airflow_provider_eaco.provider.api.jobs_shown import JobName, JobNames
from airflow_provider_eaco.provider.api.pace import pace_of
from airflow_provider_eaco.provider.api.paging import Page
from airflow_provider_eaco.provider.api.reasons import ReasonShown, shown_reasons
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.api.versions import answer_if_changed
from airflow_provider_eaco.provider.cli.airflow_facts import job_ids_of_run
from airflow_provider_eaco.provider.cli.facts import explain_story
from airflow_provider_eaco.provider.cli.rows import shown_request
from airflow_provider_eaco.provider.explain import Explanation
from airflow_provider_eaco.provider.wiring import Store

if TYPE_CHECKING:
    from airflow_provider_eaco.core.model.gpu import Gpu, Node
    from airflow_provider_eaco.core.model.profile import ProfileBook
    from airflow_provider_eaco.store.past import JobPast, LeaseSpan
    from airflow_provider_eaco.store.read_model import JobStory

router = APIRouter(tags=["jobs"])

MAX_DECISIONS = 50
# Seconds after which an answer about jobs that have not ended is sent again, though only time has passed.
TOLD_EVERY_S = 10.0


class WattsShown(BaseModel):
    """The mean draw of the GPUs between two instants; ``null`` where nothing was measured."""

    from_s: float
    until_s: float
    mean_w: float | None


class Stay(BaseModel):
    """One placement of the job, with who was there at the same time, and its mean draw if measured."""

    token: int
    node: str
    gpus: list[int] = Field(description="indices of the GPUs on their node")
    from_s: float
    until_s: float | None
    beside: list[JobName]
    energy_j: float | None
    mean_w: float | None
    watts: list[WattsShown] = Field(description="over time, in their order; at most 121")


class EnergyRecordShown(BaseModel):
    """The energy record of the job as it is stored now; ``null`` is unknown, a lower bound if ``partial``."""

    energy_j: float | None
    partial: bool
    seconds: float = Field(description="seconds of its GPUs that were looked at, in device time")
    mean_w: float | None
    peak_w: float | None
    method: str = Field(description="counter, estimated, simulated or unknown")
    split_by: list[str] = Field(description="by what shared energy was split")
    co2e_g: float | None = Field(default=None, description="where the site has a factor")


class HappenedShown(BaseModel):
    """One thing that happened to the job."""

    at_s: float
    event: str
    text: str


class Story(JobName):
    """Everything about one job. Texts are those of ``airflow eaco why``."""

    now_s: float
    state: str
    on_hold: bool
    request: str
    airflow_pool: str
    queued_s: float
    started_s: float | None
    ended_s: float | None
    waited_s: float | None
    pool: str | None
    position: int | None
    of: int | None
    since_s: float | None
    reasons: list[ReasonShown]
    units_done: int
    units_total: int | None
    slowdown: float | None = Field(description="unit time under the present set / alone")
    stretch: float | None = Field(description="run time / exclusive run time so far")
    max_stretch: float | None
    energy: str = Field(description="how much, and how it was found")
    energy_record: EnergyRecordShown | None
    stays: list[Stay]
    events: list[HappenedShown]
    decisions: list[DecisionShown]


@router.get("/jobs/{job_id}", response_model=Story, dependencies=[CanSee])
def job(user: User, job_id: Annotated[str, Path(min_length=1, max_length=250)]) -> Story:
    """Return all that is known of one job."""
    store = the_store()
    found = store.reads.story(job_id)
    if found is None or JobNames(user, [found.record]).is_hidden(found.record):
        raise HTTPException(404, "no such job is stored")
    return _stories(store, [found], user, store.clock.now_s())[0]


@router.get("/task-jobs", response_model=Page[Story], dependencies=[CanSee, CanSeeTasks])
def task_jobs(
    *,
    request: Request,
    user: User,
    dag_id: Annotated[str, Query(min_length=1, max_length=250)],
    run_id: Annotated[str, Query(min_length=1, max_length=250)],
    task_id: Annotated[str | None, Query(max_length=250, description="of this task alone")] = None,
    map_index: Annotated[int | None, Query(ge=-1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Return the jobs of a DAG run or of one of its tasks, the last queued first; 304 where nothing changed.

    While one of them waits or holds GPUs, the passing of ten seconds is a change.
    """
    store = the_store()
    ordered = store.past.newest_first(job_ids_of_run(dag_id, run_id, task_id, map_index))
    found = store.reads.stories(ordered[offset : offset + limit])
    now_s = store.clock.now_s()
    page = Page[Story](
        now_s=now_s,
        items=_stories(store, found, user, now_s),
        total=len(ordered),
        limit=limit,
        offset=offset,
    )
    return answer_if_changed(request, page, _unchanging(page))


def _unchanging(page: Page[Story]) -> Page[Story]:
    """Return the page with instants that move only when they have to be told anew.

    Time alone changes nothing about a job that has ended. Of the others one is shown how long they have
    waited or held GPUs, which is told anew after :data:`TOLD_EVERY_S`.
    """
    told_s = page.now_s - page.now_s % TOLD_EVERY_S
    items = [
        story.model_copy(update={"now_s": 0.0})
        if story.ended_s is not None
        else story.model_copy(
            update={"now_s": told_s, "waited_s": story.waited_s if story.started_s is not None else None}
        )
        for story in page.items
    ]
    return page.model_copy(update={"items": items})


@dataclass(frozen=True, slots=True)
class _Around:
    """What is read once for all jobs of an answer. ``others`` are the jobs that are named beside them."""

    now_s: float
    nodes: Sequence[Node]
    gpus: Mapping[str, Gpu]
    model_of: Mapping[str, str]
    book: ProfileBook
    pasts: Mapping[str, JobPast]
    others: Mapping[str, JobRecord]
    names: JobNames


def _stories(store: Store, found: Sequence[JobStory], user: User, now_s: float) -> list[Story]:
    """Return what the user may see of these jobs; how many they are changes no number of queries."""
    if not found:
        return []
    pasts = store.past.of_jobs(each.record.job.job_id for each in found)
    told = (stored for each in found for stored in each.decisions[-MAX_DECISIONS:])
    named = {job_id for stored in told for job_id in stored.decision.co_residents}
    beside = {job_id for past in pasts.values() for ids in past.beside.values() for job_id in ids}
    own = {each.record.job.job_id: each.record for each in found}
    others = {**store.past.records((named | beside) - own.keys()), **own}
    nodes = store.past.nodes()
    gpus = {gpu.uuid: gpu for node in nodes for gpu in node.gpus}
    around = _Around(
        now_s,
        nodes,
        gpus,
        {uuid: gpu.model for uuid, gpu in gpus.items()},
        store.profiles.book(),
        pasts,
        others,
        JobNames(user, others.values(), with_runs=True),
    )
    return [_story(each, around) for each in found]


def _story(found: JobStory, around: _Around) -> Story:
    record, names = found.record, around.names
    past = around.pasts[record.job.job_id]
    told = explain_story(found, around.now_s, around.nodes, around.book)
    placement = past.spans[-1].placement if past.spans else None
    pace = pace_of(record, placement, around.model_of, around.book)
    return Story(
        **names.name(record).model_dump(),
        **_standing(told),
        **_run(record),
        slowdown=pace.slowdown,
        stretch=pace.stretch,
        now_s=around.now_s,
        energy=told.energy,
        energy_record=None
        if told.energy_record is None
        else EnergyRecordShown.model_validate(dict(told.energy_record)),
        stays=[_stay(span, past, around) for span in past.spans],
        events=[HappenedShown(at_s=each.at_s, event=each.event, text=each.text) for each in told.story],
        decisions=[
            shown_decision(each, around.others, names, hides_kinds=False)
            for each in reversed(found.decisions[-MAX_DECISIONS:])
        ],
    )


def _standing(told: Explanation) -> dict[str, Any]:
    place = told.place
    reasons = (*(() if told.reason is None else (told.reason,)), *told.also)
    return {
        "state": told.state,
        "waited_s": told.waited_s,
        "pool": None if place is None else place.pool,
        "position": None if place is None else place.position,
        "of": None if place is None else place.of,
        "since_s": told.since_s,
        "reasons": shown_reasons(reasons, hidden=False),
    }


def _run(record: JobRecord) -> dict[str, Any]:
    job, progress = record.job, record.job.progress
    return {
        "on_hold": job.on_hold,
        "request": shown_request(job.request),
        "airflow_pool": job.pool,
        "queued_s": job.queued_s,
        "started_s": record.started_s,
        "ended_s": record.ended_s,
        "units_done": progress.units_done,
        "units_total": progress.units_total,
        "max_stretch": job.request.max_stretch,
    }


def _stay(span: LeaseSpan, past: JobPast, around: _Around) -> Stay:
    own = [row for row in past.energy if row.token == span.token]
    known = [row for row in own if row.energy_j is not None]
    joules = sum(row.energy_j or 0.0 for row in known) if known else None
    # All GPUs of a lease are held together, so the time is that of one of them.
    seconds = max((row.seconds for row in known), default=0.0)
    beside = [around.others[each] for each in past.beside[span.token] if each in around.others]
    return Stay(
        token=span.token,
        node=span.placement.node,
        gpus=sorted(around.gpus[uuid].index for uuid in span.placement.gpu_uuids if uuid in around.gpus),
        from_s=span.granted_s,
        until_s=span.released_s,
        beside=[around.names.name(other) for other in beside],
        energy_j=joules,
        mean_w=joules / seconds if joules is not None and seconds > 0 else None,
        watts=[
            WattsShown(from_s=w.from_s, until_s=w.until_s, mean_w=w.mean_w) for w in past.watts[span.token]
        ],
    )
