"""The decision log in memory, for virtual time and for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, Verdict
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import JobKind
from airflow_provider_eaco.core.model.placement import Placement

_Subject = JobKind | tuple[str, ...]
_Answer = tuple[Verdict, Reason | None, Placement | None]


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One stored decision of one pool."""

    pool: str
    at_s: float
    decision: KindDecision


@dataclass(frozen=True, slots=True)
class EventRow:
    """One stored event of one job."""

    job_id: str
    event: str
    text: str
    at_s: float


class MemoryDecisionLog:
    """Decisions and events as lists, in the order in which they were stored."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._present: dict[str, dict[_Subject, _Answer]] = {}
        self.decisions: list[DecisionRow] = []
        self.events: list[EventRow] = []

    def record(self, plan: Plan) -> Sequence[KindDecision]:
        """Store what changed since the pool's last plan and return exactly that."""
        with self._mutex:
            before = self._present.get(plan.pool, {})
            present: dict[_Subject, _Answer] = {}
            changed = []
            for item in plan.decisions:
                subject, answer = _subject(item), _answer(item.decision)
                present[subject] = answer
                if before.get(subject) != answer:
                    changed.append(item)
            self._present[plan.pool] = present
            self.decisions.extend(DecisionRow(plan.pool, plan.now_s, item) for item in changed)
            return changed

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        """Store what happened to one job."""
        with self._mutex:
            self.events.append(EventRow(job_id, event, text, at_s))


def _subject(item: KindDecision) -> _Subject:
    """Jobs that wait share their kind's answer; each admitted job has a placement of its own."""
    return item.job_ids if item.decision.verdict is Verdict.ADMIT else item.kind


def _answer(decision: AdmissionDecision) -> _Answer:
    return decision.verdict, decision.reason, decision.placement
