"""Tasks without a GPU, callbacks and connection tests: started at once, as many as ``[core] parallelism``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.core.ports import Dispatcher, LaunchOrder
from airflow_provider_eaco.dispatch.environment import LOG_FILE_VARIABLE, environment_without_gpu
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.groups import EndedGroup, GroupTable
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.running import Event, RunningGroup, ending_of
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.provider.workloads import ENTRY_POINT

log = logging.getLogger(__name__)

NO_LEASE = 0


class PlainLane:
    """Runs workloads like LocalExecutor does, each in a fresh process that sees no GPU.

    Tasks of pools that are switched off pass through here with their environment untouched.
    """

    def __init__(
        self, host: ExecutorHost, dispatcher: Dispatcher, parallelism: int, kill_grace_s: float
    ) -> None:
        self._host = host
        self._dispatcher = dispatcher
        self._parallelism = parallelism
        self._passing_through: set[str] = set()
        self.groups = GroupTable(dispatcher, kill_grace_s)

    @property
    def room(self) -> int:
        """How many more may run now."""
        return max(0, self._parallelism - len(self.groups))

    def pass_through(self, job_id: str) -> None:
        """Let the task of this id run with whatever GPUs the machine shows it."""
        self._passing_through.add(job_id)

    def passes(self, job_id: str) -> bool:
        return job_id in self._passing_through

    def start(self, workload: Any) -> bool:
        """Start the workload; return whether it was, after failing it with the cause if it cannot be.

        A task that was queued again while its former process is still leaving waits for that; all wait while
        the dispatcher is not ready.
        """
        job_id = job_id_of(workload)
        if self.groups.of_job(job_id) is not None:
            return False
        is_task = hasattr(workload, "ti")
        try:
            reference = self._dispatcher.start(self._order(workload, job_id, is_task))
        except NotReadyError as error:
            log.debug("A workload waits for the next heartbeat: job_id=%s reason=%s", job_id, error)
            return False
        except (LaunchError, OSError) as error:
            log.warning("A workload could not be started: job_id=%s error=%s", job_id, error)
            self._fail(workload, is_task, error)
            return False
        self.groups.add(RunningGroup(workload.key, job_id, reference, NO_LEASE, is_task=is_task))
        self._host.note_running(workload.key, reference)
        return True

    def adopt(self, key: Any, job_id: str, reference: str) -> None:
        """Take over a process that another executor started."""
        self.groups.add(RunningGroup(key, job_id, reference, NO_LEASE))

    def finish(self, ended: Iterable[EndedGroup], facts: Mapping[str, TaskFacts]) -> None:
        """Report groups that are gone; ``facts`` are those of their task instances that still exist."""
        for each in ended:
            group = each.group
            event = Event.SUCCESS if each.exit_code == 0 else Event.FAILURE
            if group.is_task:
                own = facts.get(group.job_id)
                event = ending_of(
                    None if own is None else own.state,
                    known=own is not None,
                    exit_code=each.exit_code,
                    requeued=group.key in self._host.queue(),
                ).event
            self.groups.remove(group)
            self._passing_through.discard(group.job_id)
            self._host.note_ended(group.key, event, failure_text(each.exit_code))

    def _order(self, workload: Any, job_id: str, is_task: bool) -> LaunchOrder:
        environment = {} if self.passes(job_id) else environment_without_gpu()
        log_path = getattr(workload, "log_path", None)
        if log_path:
            environment[LOG_FILE_VARIABLE] = str(task_log.prepare(log_path))
        current = self._host.renew_token(workload) if is_task else workload
        return LaunchOrder(job_id, NO_LEASE, ENTRY_POINT, current.model_dump_json(), environment)

    def _fail(self, workload: Any, is_task: bool, error: Exception) -> None:
        if is_task:
            self._host.fail_queued(workload, f"the task's process could not be started: {error}")
        else:
            self._host.fail_unstarted(workload.key, f"its process could not be started: {error}")


def job_id_of(workload: Any) -> str:
    """Return the id under which a workload's process is known."""
    return str(workload.ti.id) if hasattr(workload, "ti") else str(workload.key.id)


def failure_text(exit_code: int | None) -> str:
    """Return what is known of a process that left without telling Airflow how it ended."""
    if exit_code is None:
        return "the task's processes are gone; nobody could collect their exit code"
    return f"the task's process left with exit code {exit_code}; its log has the cause"
