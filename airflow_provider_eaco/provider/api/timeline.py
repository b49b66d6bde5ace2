"""``/timeline``: who held which GPUs when, and what was a trial."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from airflow_provider_eaco.provider.api.access import CanSee, User
from airflow_provider_eaco.provider.api.jobs_shown import JobName, JobNames
from airflow_provider_eaco.provider.api.stored import the_store
from airflow_provider_eaco.provider.api.trials import Trial, trials_of
from airflow_provider_eaco.provider.cli.facts import read_facts
from airflow_provider_eaco.provider.cli.rows import node_state

if TYPE_CHECKING:
    from airflow_provider_eaco.store.past import LeasesOverTime

router = APIRouter(tags=["timeline"], dependencies=[CanSee])

MAX_SPANS = 4000
MAX_HOURS = 24.0 * 92


class Lane(BaseModel):
    """One GPU. While its node is ``unavailable``, ``asleep`` or ``waking`` nobody knows what it does."""

    uuid: str
    node: str
    index: int
    model: str
    state: str
    last_report_s: float | None


class Span(BaseModel):
    """One job on some GPUs; ``until_s`` is ``null`` while it is there."""

    job_id: str
    token: int
    gpu_uuids: list[str]
    from_s: float
    until_s: float | None
    trials: list[Trial]


class Timeline(BaseModel):
    """GPUs by time. ``jobs`` names the jobs of the spans, those that are still stored."""

    now_s: float
    from_s: float
    until_s: float
    is_cut: bool = Field(description="there were more spans; the oldest are left out")
    lanes: list[Lane]
    spans: list[Span]
    jobs: dict[str, JobName]


@router.get("/timeline", response_model=Timeline)
def timeline(
    user: User,
    hours: Annotated[float, Query(gt=0, le=MAX_HOURS, description="how far it goes back from now")] = 1.0,
) -> Timeline:
    """Return who held which GPUs in the last hours."""
    facts = read_facts()
    from_s, until_s = facts.view.now_s - hours * 3600, facts.view.now_s
    found = the_store().past.leases_between(from_s, until_s + 1, MAX_SPANS)
    names = JobNames(user, found.records.values())
    return Timeline(
        now_s=facts.view.now_s,
        from_s=from_s,
        until_s=until_s,
        is_cut=found.is_cut,
        lanes=[
            Lane(
                uuid=gpu.uuid,
                node=node.name,
                index=gpu.index,
                model=gpu.model,
                state=node_state(node, facts.sleeping.get(node.name)),
                last_report_s=node.last_report_s,
            )
            for node in sorted(facts.view.nodes, key=lambda node: node.name)
            for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)
        ],
        spans=_spans(found),
        jobs={job_id: names.name(record) for job_id, record in found.records.items()},
    )


def _spans(found: LeasesOverTime) -> list[Span]:
    events: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for event in found.events:
        events[event.job_id].append((event.at_s, event.event))
    left_s: dict[str, float] = {}
    spans = []
    for span in found.spans:
        after_s = left_s.get(span.job_id, 0.0)
        trials = trials_of(events[span.job_id], after_s, span.granted_s, span.released_s)
        left_s[span.job_id] = span.released_s or found.now_s
        spans.append(
            Span(
                job_id=span.job_id,
                token=span.token,
                gpu_uuids=list(span.placement.gpu_uuids),
                from_s=span.granted_s,
                until_s=span.released_s,
                trials=trials,
            )
        )
    return spans
