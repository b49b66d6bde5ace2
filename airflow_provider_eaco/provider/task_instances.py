"""What Airflow's database says of task instances, by their id. All reads and the one keep-alive write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.models.dag import DagTag
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.state import DagRunState, State, TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import aliased

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Below the number of variables that every supported database takes in one statement.
_CHUNK = 500
# So much later than the instant in its row may the end of a task be seen by others, on a busy API server.
_COMMIT_TIME = timedelta(seconds=0.5)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task instance as the database has it now. ``run_after_s``: seconds since the epoch.

    ``is_backfill`` tells whether its run belongs to a backfill.
    """

    job_id: str
    key: TaskInstanceKey
    state: str | None
    pool: str
    pool_slots: int
    priority: int
    run_after_s: float
    dag_run_id: int
    is_backfill: bool = False

    def ranked(self, backfill_priority: int) -> TaskFacts:
        """Return the facts with the priority that decides who is next: a backfill's task has so much more."""
        return replace(self, priority=self.priority + backfill_priority) if self.is_backfill else self


@dataclass(frozen=True, slots=True)
class SlotlessTask:
    """A task that Airflow cannot hand over, with its configuration; its Airflow pool is missing or closed."""

    facts: TaskFacts
    config: Mapping[str, Any] | None
    pool_exists: bool


@dataclass(frozen=True, slots=True)
class StartedTask:
    """A task instance with what tells how it was started, and by which rule it would get a GPU request.

    ``pid`` is that of its process as Airflow knows it, ``queued_s`` since the epoch; ``None`` is unknown.
    ``executor`` is ``None`` for Airflow's default one.
    """

    facts: TaskFacts
    config: Mapping[str, Any] | None
    pid: int | None
    queued_s: float | None
    executor: str | None
    queue: str
    operator: str
    tags: frozenset[str] = frozenset()


def started_tasks(session: Session, job_ids: Iterable[str]) -> dict[str, StartedTask]:
    """Return, by id, the task instances that still have one of these ids."""
    more = (
        TaskInstance.executor_config,
        TaskInstance.pid,
        TaskInstance.queued_dttm,
        TaskInstance.executor,
        TaskInstance.queue,
        TaskInstance.operator,
    )
    found: dict[str, StartedTask] = {}
    for ids in _chunks(job_ids):
        for row in session.execute(_facts_query(*more).where(TaskInstance.id.in_(ids))):
            queued_s = None if row.queued_dttm is None else row.queued_dttm.timestamp()
            named = row.executor, row.queue or "", row.operator or ""
            found[str(row.id)] = StartedTask(_facts(row), row.executor_config, row.pid, queued_s, *named)
    dag_ids = sorted({task.facts.key.dag_id for task in found.values()})
    tags: dict[str, set[str]] = {dag_id: set() for dag_id in dag_ids}
    for dag_id, name in session.execute(
        select(DagTag.dag_id, DagTag.name).where(DagTag.dag_id.in_(dag_ids[:_CHUNK]))
    ):
        tags[dag_id].add(name)
    return {
        job_id: replace(task, tags=frozenset(tags[task.facts.key.dag_id])) for job_id, task in found.items()
    }


def facts_of(session: Session, job_ids: Iterable[str]) -> dict[str, TaskFacts]:
    """Return the facts of every task instance that still has one of these ids.

    A cleared task gets a new id, so a missing one tells that this try is over.
    """
    found: dict[str, TaskFacts] = {}
    for ids in _chunks(job_ids):
        for row in session.execute(_facts_query().where(TaskInstance.id.in_(ids))):
            facts = _facts(row)
            found[facts.job_id] = facts
    return found


def keep_alive(session: Session, job_ids: Iterable[str], now: Any) -> None:
    """Tell Airflow that these queued tasks are not stuck: their queue time starts anew."""
    for ids in _chunks(job_ids):
        session.execute(
            update(TaskInstance)
            .where(TaskInstance.id.in_(ids), TaskInstance.state == TaskInstanceState.QUEUED)
            .values(queued_dttm=now)
            .execution_options(synchronize_session=False)
        )


def without_slots(
    session: Session, executor_names: Sequence[str], is_default: bool
) -> dict[str, SlotlessTask]:
    """Return, by job id, the scheduled tasks of these executors whose Airflow pool is missing or has 0 slots.

    Airflow never hands them over, and says so only in the scheduler's log.
    """
    ours = TaskInstance.executor.in_(executor_names)
    query = (
        _facts_query(TaskInstance.executor_config, Pool.slots)
        .outerjoin(Pool, Pool.pool == TaskInstance.pool)
        .where(
            TaskInstance.state == TaskInstanceState.SCHEDULED,
            DagRun.state == DagRunState.RUNNING,
            or_(ours, TaskInstance.executor.is_(None)) if is_default else ours,
            or_(Pool.slots.is_(None), Pool.slots == 0),
        )
        .limit(_CHUNK)
    )
    return {
        str(row.id): SlotlessTask(_facts(row), row.executor_config, row.slots is not None)
        for row in session.execute(query)
    }


def queued_anew(
    session: Session, keys: Iterable[TaskInstanceKey], scheduler_job_id: Any
) -> list[TaskInstance]:
    """Return the task instances of these tasks that count as queued by this scheduler, whatever their id.

    A clear that meets the scheduler in the middle of a hand-over gives the row a new id and leaves its state
    queued: Airflow then waits for an executor that was never told of that id.
    """
    found: list[TaskInstance] = []
    for key in keys:
        found += session.scalars(
            select(TaskInstance).where(
                TaskInstance.dag_id == key.dag_id,
                TaskInstance.run_id == key.run_id,
                TaskInstance.task_id == key.task_id,
                TaskInstance.map_index == key.map_index,
                TaskInstance.state == TaskInstanceState.QUEUED,
                TaskInstance.queued_by_job_id == scheduler_job_id,
            )
        )
    return found


def awaiting_follow_ups(session: Session, job_ids: Iterable[str]) -> set[str]:
    """Return those of these ended tasks whose run Airflow has not looked at since, though it is not over.

    Only runs that have task instances without a state yet count: these may be handed over next. Airflow's
    clocks are compared, that of who wrote the end with that of its scheduler.
    """
    other = aliased(TaskInstance)
    unscheduled = exists().where(
        other.dag_id == TaskInstance.dag_id, other.run_id == TaskInstance.run_id, other.state.is_(None)
    )
    found: set[str] = set()
    for ids in _chunks(job_ids):
        query = (
            select(TaskInstance.id, TaskInstance.updated_at, DagRun.last_scheduling_decision)
            .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
            .where(
                TaskInstance.id.in_(ids),
                TaskInstance.state.in_(State.finished),
                DagRun.state == DagRunState.RUNNING,
                unscheduled,
            )
        )
        for job_id, ended_at, looked_at in session.execute(query):
            if ended_at is not None and looked_at is not None and looked_at < ended_at + _COMMIT_TIME:
                found.add(str(job_id))
    return found


@dataclass(frozen=True, slots=True)
class PoolCount:
    """How many tasks of an Airflow pool are ready and not handed over; how many are ``active``, handed over
    and not over; and the most slots that one of them takes.
    """

    ready: int = 0
    active: int = 0
    widest: int = 1


def counts_by_pool(session: Session, pools: Sequence[str]) -> dict[str, PoolCount]:
    """Return the tasks of each of these Airflow pools that has any."""
    states = (TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)
    query = (
        select(TaskInstance.pool, TaskInstance.state, func.count(), func.max(TaskInstance.pool_slots))
        .where(TaskInstance.state.in_(states), TaskInstance.pool.in_(pools))
        .group_by(TaskInstance.pool, TaskInstance.state)
    )
    found: dict[str, PoolCount] = {}
    for pool, state, count, widest in session.execute(query):
        before = found.get(pool, PoolCount())
        ready = count if state == TaskInstanceState.SCHEDULED else 0
        found[pool] = PoolCount(
            before.ready + ready, before.active + count - ready, max(before.widest, widest)
        )
    return found


def living_owners(session: Session, threshold: Any) -> set[str]:
    """Return the ids of scheduler jobs that are running and have reported since ``threshold``."""
    from airflow.jobs.job import Job, JobState

    rows = session.scalars(
        select(Job.id).where(
            Job.job_type == "SchedulerJob", Job.state == JobState.RUNNING, Job.latest_heartbeat >= threshold
        )
    )
    return {str(job_id) for job_id in rows}


def _facts_query(*more: Any) -> Any:
    return select(
        TaskInstance.id,
        TaskInstance.dag_id,
        TaskInstance.task_id,
        TaskInstance.run_id,
        TaskInstance.try_number,
        TaskInstance.map_index,
        TaskInstance.state,
        TaskInstance.pool,
        TaskInstance.pool_slots,
        TaskInstance.priority_weight,
        DagRun.run_after,
        DagRun.id.label("dag_run_id"),
        DagRun.run_type,
        *more,
    ).join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))


def _facts(row: Any) -> TaskFacts:
    return TaskFacts(
        job_id=str(row.id),
        key=TaskInstanceKey(row.dag_id, row.task_id, row.run_id, row.try_number, row.map_index),
        state=None if row.state is None else str(row.state),
        pool=row.pool,
        pool_slots=row.pool_slots,
        priority=row.priority_weight,
        run_after_s=row.run_after.timestamp(),
        dag_run_id=row.dag_run_id,
        is_backfill=row.run_type == DagRunType.BACKFILL_JOB,
    )


def _chunks(job_ids: Iterable[str]) -> Iterator[list[UUID]]:
    ids = iter(job_ids)
    while chunk := [UUID(each) for each in islice(ids, _CHUNK)]:
        yield chunk
