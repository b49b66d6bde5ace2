"""Tasks that Airflow cannot hand over: their Airflow pool does not exist (C10) or has no slots (C12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.errors import shortened
from airflow_provider_eaco.core.model.job import Job, OrderKey
from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.audit import EVENT_HOLD, text_of
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.request import parse_executor_config
from airflow_provider_eaco.provider.services import Services
from airflow_provider_eaco.provider.task_instances import SlotlessTask

# Room for a sentence of ours with the value in it; other errors may quote any amount.
_MAX_ERROR = 400


class SlotlessTasks:
    """Finds them and shows each as a waiting job, which is held with ``pool_unknown`` or ``pool_closed``.

    A task without a GPU request has no job; where its pool does not exist, it gets its line in the audit log.
    That a pool of 0 slots starts nothing is what its user wanted, and nothing of ours.
    """

    def __init__(
        self, host: ExecutorHost, services: Services, executor_names: Sequence[str], is_default: bool
    ) -> None:
        self._host = host
        self._services = services
        self._names = tuple(executor_names)
        self._is_default = is_default
        self._told: set[str] = set()
        self._jobs: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def key_of(self, job_id: str) -> Any | None:
        """Return Airflow's key of a task that is shown as a job, ``None`` for any other."""
        return self._jobs.get(job_id)

    def look(self, now_s: float) -> None:
        """Show those that are new, and take back those whose pool has slots now or that are gone."""
        with self._services.session() as session:
            found = task_instances.without_slots(session, self._names, self._is_default)
        for job_id in [known for known in self._jobs if known not in found]:
            # Before Airflow hands it over: with its row gone, nothing can be granted to it until then.
            self._services.ledger.finish_waiting(job_id, JobPhase.REMOVED)
            del self._jobs[job_id]
        self._told &= found.keys()
        for job_id, task in found.items():
            if job_id not in self._told:
                self._show(task, now_s)
                self._told.add(job_id)

    def _show(self, task: SlotlessTask, now_s: float) -> None:
        facts, key = task.facts.ranked(self._services.settings.backfill_priority), task.facts.key
        try:
            request = parse_executor_config(
                task.config,
                default_family=f"{key.dag_id}.{key.task_id}",
                default_max_stretch=self._services.settings.default_max_stretch,
            )
        except Exception as error:  # noqa: BLE001 - one task must not keep the others from being shown
            # It is not handed over, so nothing else would say that its request is wrong too.
            self._tell(task, f"; its GPU request cannot be read: {shortened(str(error), _MAX_ERROR)}")
            return
        if request is None:
            self._tell(task)
            return
        order = OrderKey(facts.run_after_s, key.dag_id, key.task_id, key.map_index, facts.job_id)
        job = Job(facts.job_id, request, facts.pool, now_s, order, facts.priority, facts.pool_slots)
        self._services.ledger.add_waiting(job, self._host.owner)
        self._jobs[facts.job_id] = key

    def _tell(self, task: SlotlessTask, more: str = "") -> None:
        pool = task.facts.pool
        if not task.pool_exists:
            finding = Finding(Reason.POOL_UNKNOWN, {"pool": pool})
        elif more:
            finding = Finding(Reason.POOL_CLOSED, {"pool": pool, "slots": 0, "used": 0})
        else:
            return
        self._host.tell(task.facts.key, EVENT_HOLD, text_of(hold(finding)) + more)
