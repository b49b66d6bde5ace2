"""The decision log in memory, for virtual time and for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import JobKind
from airflow_provider_eaco.core.ports import Explain

_Standing = tuple[JobKind | tuple[str, ...], tuple[object, ...]]


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
        self._present: dict[str, set[_Standing]] = {}
        self.decisions: list[DecisionRow] = []
        self.events: list[EventRow] = []

    def record(self, plan: Plan, _explain: Explain | None = None) -> Sequence[KindDecision]:
        """Store what changed since the pool's last plan and return exactly that; explain nothing."""
        with self._mutex:
            before = self._present.get(plan.pool, set())
            present: set[_Standing] = set()
            changed = []
            for item in plan.decisions:
                standing = _subject(item), item.answer
                if standing not in before and standing not in present:
                    changed.append(item)
                present.add(standing)
            self._present[plan.pool] = present
            self.decisions.extend(DecisionRow(plan.pool, plan.now_s, item) for item in changed)
            return changed

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        """Store what happened to one job."""
        with self._mutex:
            self.events.append(EventRow(job_id, event, text, at_s))


def _subject(item: KindDecision) -> JobKind | tuple[str, ...]:
    """Jobs that wait share their kind's answers; each admitted job has a placement of its own."""
    return item.job_ids if item.decision.verdict is Verdict.ADMIT else item.kind
