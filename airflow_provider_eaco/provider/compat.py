"""Where Airflow's interfaces are likely to move between versions, each with the reason.

Checked against 3.3.2; 3.4.0b2 was read.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor
    from airflow.executors.workloads import ExecuteTask
    from sqlalchemy.orm import Session

END_POLL_S = 0.02


def task_queue(executor: BaseExecutor) -> MutableMapping[Any, ExecuteTask]:
    """Return the executor's queued tasks by key; 3.4 moves them into ``executor_queues``."""
    queues = getattr(executor, "executor_queues", None)
    if queues is None:
        return executor.queued_tasks
    from airflow.executors import workloads

    for name, queue in queues.items():
        if getattr(name, "value", name) in {"ExecuteTask", workloads.ExecuteTask.__name__}:
            found: MutableMapping[Any, ExecuteTask] = queue
            return found
    raise LookupError(f"this Airflow keeps no queue of tasks; it has {', '.join(map(str, queues))}")


def renew_token(workload: ExecuteTask, executor: BaseExecutor) -> ExecuteTask:
    """Return the workload with a token minted now; the first lives ``task_queued_timeout`` seconds."""
    from airflow.executors.workloads.base import BaseWorkloadSchema

    token = BaseWorkloadSchema.generate_token(str(workload.ti.id), executor.jwt_generator)
    return workload.model_copy(update={"token": token})


def make_workload(ti: Any, executor: BaseExecutor) -> ExecuteTask:
    """Return a new workload for a task instance, as the scheduler makes it."""
    from airflow.executors.workloads import ExecuteTask

    return ExecuteTask.make(ti, generator=executor.jwt_generator)


def decode_workload(text: str) -> Any:
    """Return the workload whose JSON this is: a task, a callback or a connection test."""
    from airflow.executors import workloads
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(workloads.ExecutorWorkload)
    return adapter.validate_json(text)


def notice_ends_at_once() -> None:
    """Let Airflow's supervisor in this process see the end of its task within :data:`END_POLL_S` seconds.

    In 3.3.2 it waits for the task's sockets and looks at the process after each event. When the last socket
    closes a moment before the process is gone, nothing is left to wait for, and it sleeps ``[workers]
    min_heartbeat_interval`` (5 s) while an ended task keeps its GPUs. Where that method is no more, nothing
    is changed.
    """
    from airflow.sdk.execution_time.supervisor import WatchedSubprocess

    original = getattr(WatchedSubprocess, "_service_subprocess", None)
    if original is None:
        return

    @wraps(original)
    def service(self: Any, max_wait_time: float, *arguments: Any, **named: Any) -> Any:
        wait_s = max_wait_time if self.selector.get_map() else min(max_wait_time, END_POLL_S)
        return original(self, wait_s, *arguments, **named)

    setattr(WatchedSubprocess, original.__name__, service)


def metrics_client() -> Any:
    """Return Airflow's metrics of this process; the scheduler has set them up by its configuration."""
    from airflow.observability import stats

    return stats


@contextmanager
def own_session() -> Iterator[Session]:
    """Open a database session of our own and commit it at the end.

    Not Airflow's ``create_session()``: its default is the thread's one session, which inside the scheduler is
    the scheduler's, and committing that breaks its row locks.
    """
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        yield session
