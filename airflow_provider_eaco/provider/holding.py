"""The tasks that wait for GPUs in this executor's memory, and their rows in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.provider.task_instances import TaskFacts

# The pool of a job of which Airflow's database was not asked yet. No Airflow pool has this name, so the job
# can be seen in the queue and cannot be granted anything.
POOL_NOT_LOOKED_UP = ""


@dataclass(slots=True)
class HeldTask:
    """One workload in memory. ``facts`` are ``None`` until the heartbeat has looked them up."""

    workload: Any
    request: GpuRequest
    queued_s: float
    facts: TaskFacts | None = None

    @property
    def job_id(self) -> str:
        return str(self.workload.ti.id)

    @property
    def key(self) -> Any:
        return self.workload.key

    def job(self) -> Job:
        """Return the job as far as it is known now."""
        ti = self.workload.ti
        facts = self.facts
        return Job(
            job_id=self.job_id,
            request=self.request,
            pool=POOL_NOT_LOOKED_UP if facts is None else facts.pool,
            queued_s=self.queued_s,
            order=OrderKey(
                run_after_s=self.queued_s if facts is None else facts.run_after_s,
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                map_index=ti.map_index,
                job_id=self.job_id,
            ),
            priority=ti.priority_weight if facts is None else facts.priority,
            pool_slots=ti.pool_slots if facts is None else facts.pool_slots,
            bundle=self.workload.bundle_info.name,
        )


class HoldingArea:
    """Held tasks by job id. A workload lives here from its hand-over until its launch or its removal.

    :param backfill_priority: what the tasks of a backfill have more of priority than Airflow gives them.
    """

    def __init__(self, backfill_priority: int = 0) -> None:
        self._backfill_priority = backfill_priority
        self._tasks: dict[str, HeldTask] = {}
        self._id_of: dict[Any, str] = {}
        self._superseded: set[str] = set()
        #: Whether a task came, or was looked up, since its row was last compared with the ledger.
        self.has_news = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[HeldTask]:
        return iter(list(self._tasks.values()))

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._tasks

    def get(self, job_id: str) -> HeldTask | None:
        return self._tasks.get(job_id)

    def add(self, task: HeldTask) -> None:
        """Keep a workload; one of an earlier id of the same try (it was cleared) is dropped."""
        before = self._id_of.get(task.key)
        if before is not None and before != task.job_id:
            self._superseded.add(before)
            del self._tasks[before]
        self._tasks[task.job_id] = task
        self._id_of[task.key] = task.job_id
        self.has_news = True

    def remove(self, job_id: str) -> HeldTask | None:
        """Forget the workload of this job and return it, if there is one."""
        task = self._tasks.pop(job_id, None)
        if task is not None:
            del self._id_of[task.key]
        return task

    def holds_key(self, key: Any) -> bool:
        """Tell whether the workload of this key waits for GPUs here."""
        return key in self._id_of

    def take_superseded(self) -> set[str]:
        """Return the ids of dropped workloads whose rows have to go, once."""
        taken, self._superseded = self._superseded, set()
        return taken

    def complete(self, look_up: Callable[[Iterable[str]], Mapping[str, TaskFacts]]) -> None:
        """Look up what the workloads do not carry: pool, run date, present priority."""
        unknown = [task.job_id for task in self if task.facts is None]
        if not unknown:
            return
        found = look_up(unknown)
        for job_id in unknown:
            if job_id in found:
                self._tasks[job_id].facts = found[job_id].ranked(self._backfill_priority)
                self.has_news = True

    def unsaved(self, records: Mapping[str, JobRecord], owner: str) -> list[Job]:
        """Return every held job whose row is missing, incomplete or signed by another executor."""
        return [
            task.job()
            for task in self
            if task.facts is not None and not _is_current(records.get(task.job_id), task, owner)
        ]


def _is_current(record: JobRecord | None, task: HeldTask, owner: str) -> bool:
    if record is None:
        return False
    if record.phase in {JobPhase.LEASED, JobPhase.RUNNING}:
        return True
    facts = task.facts
    return (
        facts is not None
        and record.phase is JobPhase.WAITING
        and record.owner == owner
        and (record.job.pool, record.job.priority, record.job.pool_slots)
        == (facts.pool, facts.priority, facts.pool_slots)
    )
