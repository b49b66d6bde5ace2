"""The ledger as those who report see it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.simulator.memory_store import MemoryLedger


class Reporters:
    """What concerns these jobs; a look at all others would cost more than their reports."""

    def __init__(self, ledger: MemoryLedger, job_ids: Sequence[str]) -> None:
        self._ledger = ledger
        self._job_ids = job_ids

    def view(self) -> LedgerView:
        return self._ledger.view_of(self._job_ids)

    def save_progress(self, job_id: str, progress: Progress, observation: Observation | None) -> None:
        self._ledger.save_progress(job_id, progress, observation)
