"""Traces from where jobs really ran: an Airflow database's own task instances.

The simulator speaks no SQL. What does is named by the entry point ``airflow`` of the group
``airflow_provider_eaco.trace_sources`` and loaded only when it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Protocol

from airflow_provider_eaco.core.model.errors import EacoError, InvalidSettingError, StoreUnavailableError
from airflow_provider_eaco.simulator.trace import Trace, TraceError, TraceJob, in_order

GROUP = "airflow_provider_eaco.trace_sources"
AIRFLOW = "airflow"


class SourceMissingError(EacoError):
    """No package on this machine can read that source."""


class HistoricTask(Protocol):
    """One try of a task as Airflow remembers it; instants are seconds since the Unix epoch.

    ``gpus`` and ``family`` are known where our provider ran it.
    """

    @property
    def job_id(self) -> str: ...
    @property
    def dag_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def pool_slots(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def queued_s(self) -> float | None: ...
    @property
    def started_s(self) -> float: ...
    @property
    def ended_s(self) -> float: ...
    @property
    def gpus(self) -> int | None: ...
    @property
    def family(self) -> str | None: ...


ReadHistory = Callable[[str], Sequence[HistoricTask]]


@dataclass(frozen=True, slots=True)
class HistoryChoices:
    """Which tasks of a history are meant; empty names mean all."""

    pools: frozenset[str] = frozenset()
    dags: frozenset[str] = frozenset()
    since_s: float | None = None
    gpus_per_slot: int = 1

    @classmethod
    def checked(
        cls,
        pools: Sequence[str] | None,
        dags: Sequence[str] | None,
        since: str | None,
        gpus_per_slot: int,
    ) -> HistoryChoices:
        """Return the choices from what a user wrote.

        :raises InvalidSettingError: naming the option and what is allowed.
        """
        if gpus_per_slot < 1:
            raise InvalidSettingError("--gpus-per-slot", f"{gpus_per_slot} must be at least 1")
        return cls(frozenset(pools or ()), frozenset(dags or ()), _instant(since), gpus_per_slot)

    def wants(self, task: HistoricTask, submit_s: float) -> bool:
        return (
            (not self.pools or task.pool in self.pools)
            and (not self.dags or task.dag_id in self.dags)
            and (self.since_s is None or submit_s >= self.since_s)
        )


def airflow_trace(url: str, choices: HistoryChoices) -> Trace:
    """Return the trace of the tasks that ran, by the instant at which they were queued.

    Each try is a job of its own: it held GPUs. GPUs are what our provider gave it, else pool slots times
    ``gpus_per_slot``; the family is that of the provider, else DAG and task.

    :raises TraceError: if no task is left.
    :raises StoreUnavailableError: if the database or Airflow's tables are out of reach.
    """
    return trace_of_history(_reader()(url), choices)


def trace_of_history(tasks: Sequence[HistoricTask], choices: HistoryChoices) -> Trace:
    """Return the trace of these tasks; see :func:`airflow_trace`."""
    skipped = Counter[str]()
    numbered: list[tuple[str, TraceJob]] = []
    for task in tasks:
        submit_s = task.started_s if task.queued_s is None else min(task.queued_s, task.started_s)
        if not choices.wants(task, submit_s):
            skipped["not asked for"] += 1
        elif task.ended_s <= task.started_s:
            skipped["did not run"] += 1
        else:
            numbered.append((f"task {task.dag_id}.{task.task_id}", _job(task, submit_s, choices)))
    if not numbered:
        found = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "none has ended"
        raise TraceError("the Airflow database", f"no task is left ({found})")
    numbered.sort(key=lambda item: (item[1].submit_s, item[1].job_id))
    return in_order("the Airflow database", numbered, skipped)


def _job(task: HistoricTask, submit_s: float, choices: HistoryChoices) -> TraceJob:
    return TraceJob(
        job_id=task.job_id,
        family=task.family or f"{task.dag_id}.{task.task_id}",
        gpus=task.gpus or max(1, task.pool_slots) * choices.gpus_per_slot,
        submit_s=submit_s,
        work_s=task.ended_s - task.started_s,
        priority=task.priority,
        pool=task.pool,
        queue=task.queue,
        dag_id=task.dag_id,
        wait_s=None if task.queued_s is None else task.started_s - submit_s,
    )


def _reader() -> ReadHistory:
    found = entry_points(group=GROUP, name=AIRFLOW)
    if not found:
        raise SourceMissingError(f"no entry point {AIRFLOW!r} in {GROUP!r}; install the package again")
    try:
        reader: ReadHistory = next(iter(found)).load()
    except ImportError as error:
        raise StoreUnavailableError(f"the store cannot be used: {error}") from error
    return reader


def _instant(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        problem = f"{text!r} is no instant; write 2026-11-30 or 2026-11-30T12:00:00+00:00"
        raise InvalidSettingError("--since", problem) from None
    return instant.replace(tzinfo=instant.tzinfo or UTC).timestamp()
