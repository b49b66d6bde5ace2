"""Both lanes of one executor, wired, and the steps of its heartbeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_eaco.core.model.decision import Finding, Reason
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.job import GpuRequest
from airflow_provider_eaco.core.ports import Dispatcher
from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.adoption import adoption_of
from airflow_provider_eaco.provider.audit import ReasonLog
from airflow_provider_eaco.provider.compat import make_workload, metrics_client, own_session
from airflow_provider_eaco.provider.gpu_lane import GpuLane
from airflow_provider_eaco.provider.holding import HeldTask, HoldingArea
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.housekeeping import Housekeeper
from airflow_provider_eaco.provider.metrics import Metrics
from airflow_provider_eaco.provider.node_settings import DispatchChoice
from airflow_provider_eaco.provider.plain_lane import NO_LEASE, PlainLane
from airflow_provider_eaco.provider.pools import pool_states
from airflow_provider_eaco.provider.services import NoWorkers, Workers
from airflow_provider_eaco.provider.settings import EacoSettings, load_settings
from airflow_provider_eaco.provider.slotless import SlotlessTasks

if TYPE_CHECKING:
    from airflow.executors.base_executor import BaseExecutor
    from sqlalchemy.orm import Session

    from airflow_provider_eaco.dispatch.local import LocalDispatcher
    from airflow_provider_eaco.provider.node_sleep import NodeSleeper

log = logging.getLogger(__name__)

SLOTLESS_INTERVAL_S = 2.0
UNWANTED_INTERVAL_S = 3.0
MEMORY_INTERVAL_S = 2.0
METRICS_INTERVAL_S = 10.0
SLEEP_INTERVAL_S = 5.0
HOUSEKEEPING_INTERVAL_S = 15.0
# Airflow fails a task that stays queued for task_queued_timeout; held ones are refreshed often within it.
_KEEP_ALIVE_PART = 4
_LONGEST_KEEP_ALIVE_S = 30.0


class Every:
    """Tells whether a step that need not run in every heartbeat is due."""

    def __init__(self, interval_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._next_s = float("-inf")

    def due(self) -> bool:
        """Return whether the interval has passed; then the next one begins."""
        if self._monotonic() < self._next_s:
            return False
        self._next_s = self._monotonic() + self._interval_s
        return True


class Lanes:
    """The plain lane, and the GPU lane unless our configuration is broken.

    With a broken one GPU tasks are held with ``misconfigured`` and everything else goes on.
    """

    def __init__(
        self,
        host: ExecutorHost,
        executor: BaseExecutor,
        dispatcher: LocalDispatcher,
        problem: Exception | None,
    ) -> None:
        self._host = host
        self._executor = executor
        self.dispatcher = dispatcher
        self.problem = problem
        self.settings: EacoSettings | None = None
        self.gpu: GpuLane | None = None
        self.slotless: SlotlessTasks | None = None
        self.plain = PlainLane(host, dispatcher, executor.parallelism, EacoSettings().kill_grace_s)
        # Without a GPU lane its tasks wait here, unwritten.
        self._stranded = HoldingArea()
        self._reasons = ReasonLog(host)
        timeout_s = executor.conf.get("scheduler", "task_queued_timeout") or "600"
        self._keep_alive = Every(min(_LONGEST_KEEP_ALIVE_S, float(timeout_s) / _KEEP_ALIVE_PART))
        self._slotless_due = Every(SLOTLESS_INTERVAL_S)
        self._unwanted_due = Every(UNWANTED_INTERVAL_S)
        self._memory_due = Every(MEMORY_INTERVAL_S)
        self._metrics_due = Every(METRICS_INTERVAL_S)
        self._sleep_due = Every(SLEEP_INTERVAL_S)
        self._metrics = Metrics(metrics_client())
        self._housekeeping_due = Every(HOUSEKEEPING_INTERVAL_S)
        self._housekeeper: Housekeeper | None = None

    @classmethod
    def make(cls, host: ExecutorHost, executor: BaseExecutor) -> Lanes:
        """Return the lanes of an executor, from this process' configuration."""
        from airflow_provider_eaco.provider.wiring import make_dispatcher, make_services

        dispatcher = make_dispatcher()
        try:
            settings = load_settings()
            services = make_services(settings, host.owner, dispatcher)
        except Exception as error:
            # Settings, files and packages that users bring: nothing of it may end Airflow's scheduler.
            log.exception("GPU tasks are held until the configuration is corrected")
            return cls(host, executor, dispatcher, error)
        lanes = cls(host, executor, dispatcher, None)
        lanes.settings = settings
        admission = lanes._metrics.metered(services.admission, lambda pool: settings.pool_for(pool).name)
        services = replace(services, admission=admission)
        lanes.gpu = GpuLane(host, services, lanes.plain)
        lanes.slotless = SlotlessTasks(host, services, *_names_of(executor))
        lanes.gpu.also_shown = lanes.slotless
        lanes._housekeeper = Housekeeper(
            services.ledger, services.dispatcher, settings.kill_grace_s, services.workers
        )
        return lanes

    def warm_up(self) -> None:
        """Prepare for the first task, so that it does not wait for imports.

        Where GPU tasks are sent to other machines there may never be one: then its start prepares.
        """
        if self.settings is None or self.settings.dispatch is DispatchChoice.LOCAL:
            self.dispatcher.warm_up()

    def close(self, timeout_s: float) -> None:
        """Lift power limits, close energy records, stop measuring and give the dispatcher's parts back;
        running tasks are left alone.
        """
        limits = None if self.gpu is None else self.gpu.services.limits
        if limits is not None:
            limits.close(timeout_s / 2)
        if self.gpu is not None and timeout_s > 0:
            try:
                self.gpu.energy.close(at_once=True)
            except StoreUnavailableError as error:
                log.warning("What tasks have used is not stored to its last second: error=%s", error)
        for meter in () if self.gpu is None else self.gpu.services.meters:
            if meter.live is not None:
                meter.live.close()
        self.dispatcher.close(timeout_s)

    def accept(self, workload: Any, request: GpuRequest, session: Session | None) -> None:
        """Hold a workload that asks for GPUs."""
        if self.gpu is None:
            self._stranded.add(HeldTask(workload, request, time.time()))
        else:
            self.gpu.accept(workload, request, time.time(), session)

    def holds(self, key: Any) -> bool:
        """Tell whether the workload of this key waits for GPUs."""
        return self._stranded.holds_key(key) or (self.gpu is not None and self.gpu.holding.holds_key(key))

    @property
    def held(self) -> int:
        """How many workloads wait for GPUs."""
        return len(self._stranded) + (0 if self.gpu is None else len(self.gpu.holding))

    def finish_plain(self) -> None:
        """Report the plain groups that are gone."""
        ended = self.plain.groups.ended()
        if not ended:
            return
        with own_session() as session:
            job_ids = [each.group.job_id for each in ended if each.group.is_task]
            facts = task_instances.facts_of(session, job_ids)
        self.plain.finish(ended, facts)

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the steps of a heartbeat in the order of decision 7, those that are due."""
        if self.gpu is None:
            yield "reasons", self._tell_misconfigured
        else:
            yield "ends", self.gpu.end
            yield "progress", self.gpu.progress
            yield "inventory", self.gpu.report_nodes
            yield "Airflow pools", self.gpu.size_pools
            if self._unwanted_due.due():
                yield "taken back", partial(self._take_back, self.gpu)
            yield "holding", self.gpu.hold
            if self.slotless is not None and self._slotless_due.due():
                yield "tasks without a slot", self._look_for_slotless
            sleeper = self.gpu.services.sleeper
            if sleeper is not None and sleeper.is_needed and self._sleep_due.due():
                yield "node sleep", partial(self._sleep_nodes, self.gpu, sleeper)
            yield "admission", self.gpu.admit
            yield "launch", self.gpu.launch
            yield "occupancy", self.gpu.occupy
            yield "power limits", partial(self._limit_power, self.gpu)
            yield "instructions", self.gpu.instruct
            if self._memory_due.due():
                yield "memory", partial(self.gpu.show, self.gpu.memory.look)
            yield "energy", partial(self.gpu.show, self.gpu.energy.tell)
            if self._metrics_due.due():
                yield "metrics", self._tell_metrics
        if self._keep_alive.due():
            yield "keep-alive", self._refresh
        if self._housekeeper is not None and self._housekeeping_due.due():
            yield "housekeeping", self._tidy

    def adopt(self, tis: Sequence[Any]) -> list[Any]:
        """Take over task instances of a scheduler that died; return those that have to start anew."""
        records, leases = {}, {}
        dispatcher: Dispatcher = self.dispatcher
        workers: Workers = NoWorkers()
        if self.gpu is not None:
            dispatcher, workers = self.gpu.services.dispatcher, self.gpu.services.workers
            view = self.gpu.services.ledger.view()
            records = {record.job.job_id: record for record in view.jobs}
            leases = {lease.job_id: lease for lease in view.leases}
        left = []
        for ti in tis:
            adoption = adoption_of(ti, records, leases, dispatcher, workers)
            if adoption.group is not None:
                log.info("Adopted a running task: %s reference=%s", ti.key, adoption.group.reference)
                adoption.group.log_path = self._log_path_of(ti)
                in_gpu_lane = adoption.group.token != NO_LEASE and self.gpu is not None
                (self.gpu.groups if in_gpu_lane and self.gpu else self.plain.groups).add(adoption.group)
                if adoption.group.announced and not adoption.hold:
                    self._executor.running.add(ti.key)
            if adoption.hold:
                log.info("Adopted a waiting task: %s", ti.key)
                self._executor.queue_workload(make_workload(ti, self._executor), session=None)  # type: ignore[arg-type]  # nothing is written
            elif adoption.group is None:
                left.append(ti)
        return left

    def revoke(self, job_id: str) -> None:
        """Drop a held task and end a running one of this id, at the next chance to write."""
        self._stranded.remove(job_id)
        if self.gpu is not None:
            self.gpu.revoke(job_id)
        group = self.plain.groups.of_job(job_id)
        if group is not None:
            self.plain.groups.kill(group)

    def note_unavailable(self, text: str) -> None:
        """Tell held tasks that our tables are out of reach."""
        if self.gpu is not None:
            problem = f"GPU tasks wait until the provider's tables can be used: {text}"
            self.gpu.note_trouble(Finding(Reason.MISCONFIGURED, {"problem": problem}))

    def summary(self) -> str:
        """Return what is in memory, in one line."""
        granted = 0 if self.gpu is None else len(self.gpu.groups)
        return f"held={self.held} running_gpu={granted} running_plain={len(self.plain.groups)}"

    def _take_back(self, gpu: GpuLane) -> None:
        """Forget what Airflow has taken back; take what it believes to have handed over under a new id."""
        keys = gpu.drop_unwanted()
        if not keys:
            return
        known = gpu.known_ids() | {str(workload.ti.id) for workload in self._host.queue().values()}
        with own_session() as session:
            queued = task_instances.queued_anew(session, keys, self._executor.job_id)
            self.adopt([ti for ti in queued if str(ti.id) not in known])

    def _tell_metrics(self) -> None:
        if self.gpu is None:
            return
        services = self.gpu.services
        with own_session() as session:
            states = pool_states(session, services.settings.pools)
        readings = {each.uuid: each for meter in services.meters for each in meter.telemetry.read()}
        self._metrics.tell(services.ledger.view(), states, readings, services.energy_by_pool())

    def _limit_power(self, gpu: GpuLane) -> None:
        limits = gpu.services.limits
        if limits is None or limits.is_idle:
            return
        own = frozenset(group.token for group in gpu.groups)
        if own:
            gpu.show(lambda view: limits.step(view, own))
        else:
            limits.step(gpu.services.ledger.view(), own)

    @staticmethod
    def _sleep_nodes(gpu: GpuLane, sleeper: NodeSleeper) -> None:
        sleeper.step(gpu.services.ledger.view())

    def _log_path_of(self, ti: Any) -> str | None:
        try:
            return make_workload(ti, self._executor).log_path
        except Exception:
            log.debug("The log of an adopted task is not known: %s", ti.key, exc_info=True)
            return None

    def _tell_misconfigured(self) -> None:
        problem = (
            "GPU tasks wait until the provider's configuration is corrected and the scheduler is started "
            f"again: {self.problem}"
        )
        finding = Finding(Reason.MISCONFIGURED, {"problem": problem})
        self._reasons.note_finding([(task.job_id, task.key) for task in self._stranded], finding)
        self._reasons.flush()

    def _look_for_slotless(self) -> None:
        if self.slotless is not None:
            self.slotless.look(time.time())

    def _refresh(self) -> None:
        queued = [str(workload.ti.id) for workload in self._host.queue().values()]
        # A started one may stay queued in Airflow while the API server is slow; it is not lost, it lives.
        started = [group.job_id for group in self.plain.groups if group.is_task]
        if self.gpu is not None:
            started += [group.job_id for group in self.gpu.groups]
        with own_session() as session:
            task_instances.keep_alive(session, [*queued, *started], datetime.now(tz=UTC))

    def _tidy(self) -> None:
        gpu, housekeeper = self.gpu, self._housekeeper
        if gpu is None or housekeeper is None:
            return
        view, sleeper = gpu.services.ledger.view(), gpu.services.sleeper
        housekeeper.forget_nodes(view if sleeper is None else sleeper.seen(view))
        threshold_s = int(self._executor.conf.get("scheduler", "scheduler_health_check_threshold") or 30)
        known = gpu.known_ids()
        with own_session() as session:
            living = task_instances.living_owners(
                session, datetime.now(tz=UTC) - timedelta(seconds=threshold_s)
            )
            orphans = [
                record.job.job_id
                for record in view.jobs
                if record.job.job_id not in known
                and (record.owner == self._host.owner or record.owner.split("@")[0] not in living)
            ]
            facts = task_instances.facts_of(session, orphans)
        if orphans:
            housekeeper.tidy(view, frozenset(orphans), facts)


def _names_of(executor: BaseExecutor) -> tuple[list[str], bool]:
    """Return the names under which tasks ask for this executor, and whether it is Airflow's default."""
    from airflow.executors.executor_loader import ExecutorLoader

    name = executor.name
    if name is None:
        return [type(executor).__name__], False
    names = [text for text in (name.alias, name.module_path, name.module_path.split(".")[-1]) if text]
    return names, ExecutorLoader.get_default_executor_name() == name
