"""Why a task waits, in Airflow's audit log: one line whenever the reason changes, none while it stays."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Verdict
from airflow_provider_eaco.provider.explain import ShownReason
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.shown import counted

log = logging.getLogger(__name__)

EVENT_HOLD = "eaco hold"
EVENT_REJECT = "eaco reject"
EVENT_ADMIT = "eaco admit"
# A scheduler loop writes its lines in one transaction; a queue of a thousand gets its reasons over a few.
LINES_PER_HEARTBEAT = 200


class ReasonLog:
    """Remembers the last reason told for each job of this executor."""

    def __init__(self, host: ExecutorHost) -> None:
        self._host = host
        self._told: dict[str, str] = {}
        self._untold: dict[str, tuple[Any, str, str, str]] = {}

    def note(self, job_id: str, key: Any, decision: AdmissionDecision) -> None:
        """Remember a decision; :meth:`flush` tells it if its verdict or most severe reason is a new one."""
        code = f"{decision.verdict}:{decision.reason.code if decision.reason else ''}"
        if self._told.get(job_id) == code:
            self._untold.pop(job_id, None)
            return
        for note in decision.notes:
            log.warning("A task starts all the same: job_id=%s %s", job_id, note.text)
        event = {Verdict.HOLD: EVENT_HOLD, Verdict.REJECT: EVENT_REJECT, Verdict.ADMIT: EVENT_ADMIT}
        self._untold[job_id] = (key, code, event[decision.verdict], text_of(decision))

    def note_finding(self, job_id: str, key: Any, finding: Finding) -> None:
        """Remember a reason to hold that no policy gave."""
        self.note(job_id, key, AdmissionDecision(Verdict.HOLD, (finding,)))

    def flush(self) -> None:
        """Tell what changed, at most :data:`LINES_PER_HEARTBEAT` lines; the rest follows next time."""
        for job_id in list(self._untold)[:LINES_PER_HEARTBEAT]:
            key, code, event, text = self._untold.pop(job_id)
            self._told[job_id] = code
            self._host.tell(key, event, text)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop what is remembered of jobs that are gone."""
        for job_id in job_ids:
            self._told.pop(job_id, None)
            self._untold.pop(job_id, None)


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
