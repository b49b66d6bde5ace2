"""Why a job waits or what has become of it, as one value: every surface shows this and adds nothing.

The sentences are those of the stored decision (:class:`~airflow_provider_eaco.core.model.decision.Finding`);
here they are joined with since when, the place in the queue, and what would change the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Verdict
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.shown import UNKNOWN, shown_duration, shown_instant

NOT_DECIDED = "no scheduler has looked at it since it was queued"
NOT_DECIDED_REMEDY = "a running scheduler with the executor decides within one heartbeat"


@dataclass(frozen=True, slots=True)
class StandingDecision:
    """The last stored decision about a job, and the instant from which it has stood unchanged."""

    decision: AdmissionDecision
    since_s: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting job stands in the planned order of its GPU pool; the first is 1."""

    position: int
    of: int
    pool: str


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a job."""

    at_s: float
    event: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownReason:
    """One reason as it is shown: code, sentence with the numbers of this case, what would change it."""

    code: str
    sentence: str
    remedy: str

    @classmethod
    def of(cls, finding: Finding) -> ShownReason:
        return cls(finding.reason.code, finding.text, finding.reason.remedy)

    @property
    def line(self) -> str:
        """Code and sentence, as one line."""
        return f"{self.code}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that there is to say about one job.

    ``reason`` is the most severe one while the job waits or after it was rejected, else ``None``; ``also``
    are the others, most severe first. ``pool`` is the Airflow pool of the task. ``energy`` says how it was
    found, and ``unknown`` where it was not; ``energy_record`` is the same for programs. ``alternatives`` are
    those of the standing decision as it was first given, ``choice`` why its place was taken before others,
    ``notes`` what is to be known of an admission all the same.
    """

    job_id: str
    task: str
    pool: str
    family: str
    state: str
    queued_s: float
    waited_s: float | None
    reason: ShownReason | None = None
    since_s: float | None = None
    place: Place | None = None
    also: tuple[ShownReason, ...] = ()
    story: tuple[Event, ...] = ()
    energy: str = UNKNOWN
    energy_record: Mapping[str, Any] | None = None
    choice: str = ""
    notes: tuple[ShownReason, ...] = ()
    alternatives: tuple[Alternative, ...] = ()


def state_of(record: JobRecord) -> str:
    """Return the job's phase in the words of the product."""
    if record.phase is JobPhase.WAITING and record.job.on_hold:
        return "waiting, held by a user"
    return str(record.phase.value)


def reasons_of(standing: StandingDecision | None) -> tuple[ShownReason, ...]:
    """Return the reasons of a hold or a rejection, most severe first; none of an admission."""
    if standing is None or standing.decision.verdict is Verdict.ADMIT:
        return ()
    return tuple(ShownReason.of(finding) for finding in standing.decision.findings)


def explain(
    record: JobRecord,
    standing: StandingDecision | None,
    place: Place | None,
    now_s: float,
    *,
    story: Sequence[Event] = (),
    energy: str = UNKNOWN,
    energy_record: Mapping[str, Any] | None = None,
) -> Explanation:
    """Return what every surface says about this job at ``now_s``.

    A waiting job always has a reason: one about which nothing is stored yet says so.
    """
    waits = record.phase is JobPhase.WAITING
    told = reasons_of(standing) if waits or record.phase is JobPhase.REJECTED else ()
    if waits and not told:
        told = (ShownReason(UNKNOWN, NOT_DECIDED, NOT_DECIDED_REMEDY),)
        standing = None
    return Explanation(
        job_id=record.job.job_id,
        task=record.job.label,
        pool=record.job.pool,
        family=record.job.request.family,
        state=state_of(record),
        queued_s=record.job.queued_s,
        waited_s=_waited_s(record, now_s),
        reason=told[0] if told else None,
        since_s=standing.since_s if told and standing is not None else None,
        place=place if waits else None,
        also=told[1:],
        story=tuple(sorted(story, key=lambda event: event.at_s)),
        energy=energy,
        energy_record=energy_record,
        choice="" if standing is None else standing.decision.choice,
        notes=() if standing is None else tuple(map(ShownReason.of, standing.decision.notes)),
        alternatives=() if standing is None else standing.decision.alternatives,
    )


def in_words(explanation: Explanation, now_s: float) -> list[str]:
    """Return the explanation as lines for a person."""
    lines = [f"{explanation.task} (job {explanation.job_id}, family {explanation.family})"]
    lines.append(f"  state: {_state_line(explanation)}")
    if explanation.reason is not None:
        since = _since(explanation.since_s, now_s)
        lines.append(f"  reason: {explanation.reason.code}, {since}: {explanation.reason.sentence}")
        lines.append(f"  what would change it: {explanation.reason.remedy}")
    lines += [f"  also: {r.line} (to change it: {r.remedy})" for r in explanation.also]
    lines += [f"  started all the same: {note.line}" for note in explanation.notes]
    if explanation.choice:
        lines.append(f"  why there: {explanation.choice}")
    if explanation.alternatives:
        lines.append("  where it could have run:")
        lines += [f"    - {alternative.text}" for alternative in explanation.alternatives]
    lines += [f"  {shown_instant(event.at_s)}  {event.event}: {event.text}" for event in explanation.story]
    if explanation.state != JobPhase.WAITING and explanation.reason is None:
        lines.append(f"  energy: {explanation.energy}")
    return lines


def _waited_s(record: JobRecord, now_s: float) -> float | None:
    """Seconds in the queue so far, or until the first start; ``None`` for one that ended without a start."""
    if record.started_s is not None:
        return max(0.0, record.started_s - record.job.queued_s)
    return max(0.0, now_s - record.job.queued_s) if record.ended_s is None else None


def _state_line(explanation: Explanation) -> str:
    queued = f"queued {shown_instant(explanation.queued_s)}, waited {shown_duration(explanation.waited_s)}"
    if explanation.place is None:
        return f"{explanation.state}; {queued}; Airflow pool {explanation.pool or UNKNOWN}"
    place = explanation.place
    return f"{explanation.state}; {queued}; position {place.position} of {place.of} in pool {place.pool}"


def _since(since_s: float | None, now_s: float) -> str:
    if since_s is None:
        return f"since {UNKNOWN}"
    return f"since {shown_instant(since_s)} ({shown_duration(max(0.0, now_s - since_s))})"
