"""Why a task waits, in Airflow's audit log: a line whenever the reason or a number in it changes, none while
all stays.

The log keeps its lines until somebody cleans the database, so that a task whose numbers change all the time
must not fill it: its lines become rarer the longer its reason stands (:data:`RENEWAL_SHARE`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Verdict
from airflow_provider_eaco.provider.explain import ShownReason
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.shown import counted

log = logging.getLogger(__name__)

EVENT_HOLD = "eaco hold"
EVENT_REJECT = "eaco reject"
EVENT_ADMIT = "eaco admit"
_EVENTS = {Verdict.HOLD: EVENT_HOLD, Verdict.REJECT: EVENT_REJECT, Verdict.ADMIT: EVENT_ADMIT}
# A scheduler loop writes its lines in one transaction; a queue of a thousand gets its reasons over a few.
LINES_PER_HEARTBEAT = 200
# A sentence with new numbers is told when the last one is older than this part of the time for which its
# reason has stood. The log is behind by no more than that, and the lines of one reason grow with the
# logarithm of its time: about a hundred in a day in which a number changes every second.
RENEWAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Line:
    """A line for one job. ``code`` is the verdict with the most severe reason."""

    key: Any
    code: str
    event: str
    text: str


@dataclass(slots=True)
class _Told:
    """What was told last of one job, when, and since when its reason stands, by a monotonic clock in s."""

    code: str
    text: str
    told_s: float
    since_s: float


class ReasonLog:
    """Remembers what was told last of each job of this executor."""

    def __init__(self, host: ExecutorHost, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._monotonic = monotonic
        self._told: dict[str, _Told] = {}
        self._untold: dict[str, _Line] = {}

    def note(self, keys: Iterable[tuple[str, Any]], decision: AdmissionDecision) -> None:
        """Remember the decision about jobs, given with their tasks' keys; :meth:`flush` tells what is new."""
        code = f"{decision.verdict}:{decision.reason.code if decision.reason else ''}"
        text = text_of(decision)
        for job_id, key in keys:
            told = self._told.get(job_id)
            if told is not None and (told.code, told.text) == (code, text):
                self._untold.pop(job_id, None)
                continue
            if told is None or told.code != code:
                for note in decision.notes:
                    log.warning("A task starts all the same: job_id=%s %s", job_id, note.text)
            self._untold[job_id] = _Line(key, code, _EVENTS[decision.verdict], text)

    def note_finding(self, keys: Iterable[tuple[str, Any]], finding: Finding) -> None:
        """Remember a reason to hold that no policy gave."""
        self.note(keys, AdmissionDecision(Verdict.HOLD, (finding,)))

    def flush(self) -> None:
        """Tell at most :data:`LINES_PER_HEARTBEAT` lines, new reasons before new numbers whose turn it is.

        The rest follows next time.
        """
        now_s = self._monotonic()
        new = [job_id for job_id, line in self._untold.items() if not self._renews(job_id, line)]
        renewed = [job_id for job_id in self._untold if self._is_due(job_id, now_s)]
        for job_id in [*new, *renewed][:LINES_PER_HEARTBEAT]:
            line = self._untold.pop(job_id)
            since_s = self._told[job_id].since_s if self._renews(job_id, line) else now_s
            self._told[job_id] = _Told(line.code, line.text, now_s, since_s)
            self._host.tell(line.key, line.event, line.text)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop what is remembered of jobs that are gone."""
        for job_id in job_ids:
            self._told.pop(job_id, None)
            self._untold.pop(job_id, None)

    def _renews(self, job_id: str, line: _Line) -> bool:
        told = self._told.get(job_id)
        return told is not None and told.code == line.code

    def _is_due(self, job_id: str, now_s: float) -> bool:
        told = self._told.get(job_id)
        if told is None or not self._renews(job_id, self._untold[job_id]):
            return False
        return now_s - told.told_s >= RENEWAL_SHARE * (now_s - told.since_s)


def text_of(decision: AdmissionDecision) -> str:
    """Return the decision in one line: code and sentence of each reason, most severe first, or the place."""
    if decision.findings:
        return "; ".join(ShownReason.of(finding).line for finding in decision.findings)
    if decision.placement is None:
        return str(decision.verdict)
    gpus = counted(len(decision.placement.gpu_uuids), "GPU")
    others = counted(len(decision.co_residents), "other job")
    company = f"with {others}" if decision.co_residents else "alone"
    why = f": {decision.choice}" if decision.choice else ""
    notes = "".join(f"; {ShownReason.of(note).line}" for note in decision.notes)
    return f"{gpus} on {decision.placement.node}, {company}{why}{notes}"
