"""EacoExecutor: Airflow's side of the provider. It holds, starts, watches and adopts; the engine decides.

Alone (``[core] executor = airflow_provider_eaco.EacoExecutor``) or beside others. Two lanes: tasks without a
GPU request run at once like under LocalExecutor, as many as ``[core] parallelism``; tasks with one wait in
the hold window until the engine has granted them GPUs, and take nothing of ``parallelism``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.executors.base_executor import BaseExecutor

from airflow_provider_eaco.core.model.decision import Finding, Reason, reject
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.audit import EVENT_REJECT, text_of
from airflow_provider_eaco.provider.compat import renew_token, task_queue
from airflow_provider_eaco.provider.request import has_request, parse_executor_config
from airflow_provider_eaco.provider.running import Event
from airflow_provider_eaco.provider.settings import EacoSettings

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

    from airflow_provider_eaco.provider.lanes import Lanes

# A failure that comes back in every loop is logged in full once in this time.
_LOG_AGAIN_S = 60.0
_END_TIMEOUT_S = 10.0


class EacoExecutor(BaseExecutor):
    """Runs tasks on this machine; those that ask for GPUs when and where the engine admits them.

    It reports to the scheduler as LocalExecutor does. ``core.parallelism`` bounds the tasks without a GPU
    request; GPUs bound the others, so ``slots_occupied`` counts only the former: neither held nor running GPU
    tasks keep a CPU task of any executor from being handed over.
    """

    is_local = True
    serve_logs = True
    supports_callbacks = True
    supports_connection_test = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lanes: Lanes | None = None
        self._unreadable: dict[Any, tuple[Any, str]] = {}
        self._failed_steps: dict[str, float] = {}
        self._unsaved_logs: list[Any] = []

    # -- What the scheduler asks before it hands tasks over

    @property
    def slots_available(self) -> int:
        """How many more workloads may be handed over: the hold window less what is queued.

        Where held tasks fill the window, what is left of parallelism for those that ask for no GPU.
        """
        queued = len(task_queue(self)) + len(self.queued_callbacks) + len(self.queued_connection_tests)
        held = 0 if self._lanes is None else self._lanes.held
        return max(self._window - queued, self.parallelism - self.slots_occupied - (queued - held))

    @property
    def slots_occupied(self) -> int:
        """How much of ``[core] parallelism`` is taken: running workloads without a lease."""
        return 0 if self._lanes is None else len(self._lanes.plain.groups)

    def queue_workload(self, workload: Any, session: Session) -> None:
        """Keep the workload; one with a GPU request is also written as a waiting job, through ``session``."""
        super().queue_workload(workload, session)
        if hasattr(workload, "ti"):
            self._fenced("queue", lambda: self._accept(workload, session))

    # -- Life

    def start(self) -> None:
        """Get the parts ready. A broken configuration of ours holds GPU tasks and nothing else."""
        # Here and not above: every Airflow command imports executors for their commands.
        from airflow_provider_eaco.provider.lanes import Lanes

        self._lanes = Lanes.make(self, self)
        self._fenced("warm up", self._lanes.warm_up)

    def end(self) -> None:
        """Report what has ended and leave; running tasks go on and are adopted by the next scheduler."""
        if self._lanes is None:
            return
        self._fenced("last look", self.sync)
        self._fenced("close", lambda: self._need_lanes().close(_END_TIMEOUT_S))

    def terminate(self) -> None:
        """Leave at once; running tasks go on."""
        if self._lanes is not None:
            self._fenced("close", lambda: self._need_lanes().close(0.0))

    # -- Heartbeat

    def _get_workloads_to_schedule(self, open_slots: int) -> list[tuple[Any, Any]]:
        lanes = self._need_lanes()
        self._fenced("plain ends", lanes.finish_plain)
        chosen: list[tuple[Any, Any]] = list(self.queued_callbacks.items())[: lanes.plain.room]
        waiting = [
            (key, workload)
            for key, workload in task_queue(self).items()
            if key not in self._unreadable and not lanes.holds(key)
        ]
        waiting.sort(key=lambda item: -item[1].ti.priority_weight)
        return [*chosen, *waiting][: lanes.plain.room]

    def trigger_connection_tests(self) -> None:
        """Start queued connection tests as far as ``[core] parallelism`` has room; the others stay queued.

        Airflow bounds them by ``slots_available``, which is our hold window: that says nothing of processes.
        """
        tests = list(self.queued_connection_tests.values())[: self._need_lanes().plain.room]
        if tests:
            self._process_workloads(tests)

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        for workload in workload_items:
            self._fenced("start", partial(self._start_plain, workload))

    def sync(self) -> None:
        """Everything about GPU tasks, each step fenced by itself, in the order of decision 7."""
        lanes = self._need_lanes()
        if not self._task_event_logs:
            self._unsaved_logs.clear()
        self._fenced("plain ends", lanes.finish_plain)
        self._fenced("unreadable requests", self._fail_unreadable)
        for name, step in lanes.steps():
            self._fenced(name, step)

    # -- What the scheduler does to single tasks

    def revoke_task(self, *, ti: TaskInstance) -> None:
        """Forget a queued task and end the processes of a started one; the state in Airflow is not ours."""
        self._fenced("revoke", lambda: self._revoke(ti))

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Take over the tasks of a scheduler that died; return those that have to start anew."""
        try:
            return self._need_lanes().adopt(tis)
        except Exception:
            self.log.exception("Tasks of another scheduler could not be adopted")
            return tis

    # -- Seeing

    def get_task_log(self, ti: TaskInstance, try_number: int) -> tuple[list[str], list[str]]:
        """Return nothing: the log of a task is a file, which Airflow reads by itself."""
        return [], []

    def debug_dump(self) -> None:
        """Log what is in memory, on SIGUSR2."""
        super().debug_dump()  # type: ignore[no-untyped-call]  # Airflow's
        if self._lanes is not None:
            self.log.info("eaco: %s", self._lanes.summary())

    @staticmethod
    def get_cli_commands() -> list[Any]:
        """Return ``airflow eaco ...``; it is offered where the executor is configured."""
        from airflow_provider_eaco.provider.cli import get_eaco_cli_commands

        return list(get_eaco_cli_commands())

    # -- ExecutorHost

    @property
    def owner(self) -> str:
        """How this executor signs its rows: the scheduler's job id and the machine."""
        return f"{self.job_id or f'pid-{os.getpid()}'}@{socket.gethostname()}"

    def queue(self) -> MutableMapping[Any, Any]:
        return task_queue(self)

    def renew_token(self, workload: Any) -> Any:
        return renew_token(workload, self)

    def note_running(self, key: Any, reference: str) -> None:
        self.running.add(key)
        self.running_state(key, reference)

    def note_ended(self, key: Any, event: Event, info: str | None = None) -> None:
        if event is Event.SUCCESS:
            self.success(key)
        elif event is Event.FAILURE:
            self.fail(key, info)
        else:
            self.running.discard(key)

    def fail_queued(self, workload: Any, text: str) -> None:
        key = workload.key
        task_queue(self).pop(key, None)
        try:
            task_log.append(workload.log_path, text)
        except OSError as error:
            self.log.warning("The reason could not be written to the task's log: %s error=%s", key, error)
        self.tell(key, EVENT_REJECT, text)
        self.fail(key, text)

    def fail_unstarted(self, key: Any, text: str) -> None:
        # First out of the queue: what was reported as failed must not run at a later heartbeat.
        self._drop_unheld(key)
        self.fail(key, text)

    def tell(self, key: Any, event: str, text: str) -> None:
        self.log_task_event(event=event, extra=text, ti_key=key)
        # 3.3.2 saves these from a generator, and SQLAlchemy holds objects by weak references only: a row
        # whose object has no other owner is gone before it is written, and the whole batch fails.
        self._unsaved_logs.extend(list(self._task_event_logs)[-1:])

    # -- Private

    @property
    def _window(self) -> int:
        settings = None if self._lanes is None else self._lanes.settings
        return (settings or EacoSettings()).hold_window

    def _need_lanes(self) -> Lanes:
        if self._lanes is None:
            raise RuntimeError("the executor was not started")
        return self._lanes

    def _accept(self, workload: Any, session: Session | None) -> None:
        ti = workload.ti
        if not has_request(ti.executor_config):
            return
        lanes = self._need_lanes()
        try:
            request = parse_executor_config(
                ti.executor_config,
                default_family=f"{ti.dag_id}.{ti.task_id}",
                default_max_stretch=(lanes.settings or EacoSettings()).default_max_stretch,
            )
        except Exception as error:  # noqa: BLE001 - what nobody can read must not run without its GPUs
            # Failed at the next heartbeat: here the scheduler is still handing over.
            problem = f"the task's GPU request cannot be used: {error}; correct it and clear the task"
            finding = Finding(Reason.MISCONFIGURED, {"problem": problem})
            self._unreadable[workload.key] = (workload, text_of(reject(finding)))
            return
        if request is not None:
            lanes.accept(workload, request, session)

    def _start_plain(self, workload: Any) -> None:
        if self._need_lanes().plain.start(workload):
            task_queue(self).pop(workload.key, None)
            self._drop_unheld(workload.key)

    def _drop_unheld(self, key: Any) -> None:
        self.queued_callbacks.pop(key, None)
        self.queued_connection_tests.pop(key, None)

    def _fail_unreadable(self) -> None:
        for key in list(self._unreadable):
            workload, text = self._unreadable.pop(key)
            if key in task_queue(self):
                self.fail_queued(workload, text)

    def _revoke(self, ti: TaskInstance) -> None:
        task_queue(self).pop(ti.key, None)
        self._unreadable.pop(ti.key, None)
        self.running.discard(ti.key)
        if self._lanes is not None:
            self._lanes.revoke(str(ti.id))

    def _fenced(self, name: str, step: Callable[[], object]) -> None:
        """Run a step; whatever it raises stays here, since an executor's error ends Airflow's scheduler."""
        try:
            step()
        except Exception as error:
            last_s = self._failed_steps.get(name, float("-inf"))
            if time.monotonic() - last_s >= _LOG_AGAIN_S:
                self._failed_steps[name] = time.monotonic()
                self.log.exception("eaco, %s failed and is tried again", name)
            if isinstance(error, StoreUnavailableError) and self._lanes is not None:
                self._lanes.note_unavailable(str(error))
        else:
            self._failed_steps.pop(name, None)
