"""The composition root of observing: a sampler on its machine, and what takes in its reports."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.model.decision import AdmissionDecision
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.observed import seen_with_observed
from airflow_provider_eaco.core.ports import LedgerView, Telemetry
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.dispatch.process_owner import ProcessOwners
from airflow_provider_eaco.dispatch.task_processes import TaskProcesses
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.progress import InvalidReportError, Report, parse_report
from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.compat import own_session
from airflow_provider_eaco.provider.instructions import read_progress
from airflow_provider_eaco.provider.observer import AirflowSide, Around, Observer
from airflow_provider_eaco.provider.options import DEFAULTS, SECTION
from airflow_provider_eaco.provider.rules import Rule, configured_rules
from airflow_provider_eaco.provider.sampler import Api, Sampler, Site
from airflow_provider_eaco.provider.sampler_api import SamplerApi
from airflow_provider_eaco.provider.sampler_tasks import SETTLE_S, TaskTable
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.task_instances import StartedTask
from airflow_provider_eaco.provider.worker_register import RunRegister
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_use import SqlEnergyUse
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.observed import SqlObservedTasks
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.session import Database
from airflow_provider_eaco.telemetry.nvml_feed import Deliver, SampleSource, SamplingProcess
from airflow_provider_eaco.telemetry.nvml_sample import MachineSample, ProcessUse

log = logging.getLogger(__name__)

# The lock on planning is held for milliseconds; who comes in between is not turned away at once.
_TRIES = 10
_TRY_AGAIN_S = 0.1


def make_observer(
    settings: EacoSettings,
    database: Database,
    pools: Callable[[], Sequence[PoolState]],
    airflow: AirflowSide | None = None,
) -> Observer:
    """Return what takes samplers' reports in.

    :param pools: the declared GPU pools with what Airflow says of them now.
    :param airflow: what Airflow knows, read from its database unless another source is named.
    """
    store = SqlObservedTasks(database, settings.node_timeout_s)
    profiles, decisions = SqlProfileStore(database, built_in_book()), SqlDecisionLog(database)
    ledger = SqlLedger(database)
    return Observer(
        Around(
            settings=settings,
            store=store,
            airflow=airflow or AirflowSide(_started, _reported, _rules),
            decide=WouldBe(settings, database, store, profiles, pools).decide,
            view=ledger.view,
            record_of=ledger.record_of,
            energy_of=SqlEnergyLog(database).job_energy,
            profiles=profiles,
            tell=decisions.record_event,
            save_progress=ledger.save_progress,
        )
    )


class _ObservedLedger(SqlLedger):
    """The ledger as if one observed job waited, beside the observed ones that were there before it."""

    def __init__(self, database: Database, store: SqlObservedTasks) -> None:
        super().__init__(database)
        self._store = store
        self.job_id = ""

    def view(self) -> LedgerView:
        return self.seen()[0]

    def seen(self) -> tuple[LedgerView, frozenset[str]]:
        """Return the view and the GPUs that are nobody's to place on."""
        present = self._store.present()
        observed = present.leases, present.jobs, present.nodes
        return seen_with_observed(super().view(), *observed, self.job_id)


class WouldBe:
    """Decides about observed jobs as the schedulers' planner would, and records it; acts on nothing."""

    def __init__(
        self,
        settings: EacoSettings,
        database: Database,
        store: SqlObservedTasks,
        profiles: SqlProfileStore,
        pools: Callable[[], Sequence[PoolState]],
    ) -> None:
        self._store = store
        self._pools = pools
        self._lock = threading.Lock()
        self._ledger = _ObservedLedger(database, store)
        self._loop = AdmissionLoop(
            self._ledger,
            profiles,
            SqlDecisionLog(database),
            SqlPlannerLock(database),
            pools=self._observed_pools,
            owner=f"observer@{socket.gethostname()}:{threading.get_native_id()}",
            planner_ttl_s=settings.planner_ttl_s,
            report_timeout_s=settings.node_timeout_s,
            energy_use=SqlEnergyUse(database),
        )

    def decide(self, job_id: str) -> AdmissionDecision | None:
        """Return what would have been decided about the job; ``None``: another planner is at work, or failed.

        :raises StoreUnavailableError: if the tables are out of reach.
        """
        with self._lock:
            self._ledger.job_id = job_id
            decision = self._decided(job_id)
            # Nobody waits: what was decided does not go on standing as an answer to somebody who does.
            self._ledger.job_id = ""
            self._loop.run_once(self._store.readings())
            return decision

    def _decided(self, job_id: str) -> AdmissionDecision | None:
        for _ in range(_TRIES):
            report = self._loop.run_once(self._readings())
            if report.planned:
                found = (each.decision for each in report.decided if job_id in each.job_ids)
                return next(found, None)
            if report.problem is not None:
                log.warning("An observed job is decided about later: job_id=%s %s", job_id, report.problem)
                return None
            time.sleep(_TRY_AGAIN_S)
        return None

    def _readings(self) -> list[GpuReading]:
        _, contested = self._ledger.seen()
        return [
            replace(each, foreign_processes=max(1, each.foreign_processes or 0))
            if each.uuid in contested
            else each
            for each in self._store.readings()
        ]

    def _observed_pools(self) -> Sequence[PoolState]:
        """Return all pools, those that act as switched off: their jobs stay theirs, and nothing is done."""
        return [
            pool
            if pool.settings.mode is PoolMode.OBSERVE
            else replace(pool, settings=replace(pool.settings, mode=PoolMode.OFF))
            for pool in self._pools()
        ]


def _started(job_ids: Collection[str]) -> Mapping[str, StartedTask]:
    if not job_ids:
        return {}
    with own_session() as session:
        return task_instances.started_tasks(session, job_ids)


def _reported(task: StartedTask) -> Report | None:
    """Return what the try has reported without a grant, ``None`` for nothing that can be read."""
    with own_session() as session:
        value = read_progress(session, [task.facts.key]).get(task.facts.key)
    try:
        report = None if value is None else parse_report(task.facts.job_id, value)
    except InvalidReportError as error:
        log.warning("A progress report is ignored: job_id=%s error=%s", task.facts.job_id, error)
        return None
    of_this_try = report is not None and report.try_number == task.facts.key.try_number
    return report if report is not None and of_this_try and report.token is None else None


def _rules() -> tuple[Rule, ...]:
    from airflow.configuration import conf

    return configured_rules(conf.get(SECTION, "rules", fallback=DEFAULTS["rules"]))


class TappedSource:
    """Samples as they come. Before a meter gets one, it is told which tasks are on the GPUs now; what fails
    there is logged and stops nothing.
    """

    def __init__(self, source: SampleSource, tasks: TaskTable) -> None:
        self._source = source
        self._tasks = tasks
        #: Who is told, from the first sample on after this was set.
        self.meter: Telemetry | None = None

    def start(self, deliver: Deliver) -> None:
        """Begin to deliver."""

        def both(sample: MachineSample) -> None:
            try:
                self._tell(sample)
            except Exception:
                log.exception("Whose the processes on the GPUs are was not looked at")
            deliver(sample)

        self._source.start(both)

    def refresh(self) -> None:
        """Have the source look now, if it does not by itself."""
        self._source.refresh()

    def close(self) -> None:
        """Stop delivering."""
        self._source.close()

    def _tell(self, sample: MachineSample) -> None:
        # A sample with a problem shows no GPU, so that of all it is not known who is there.
        if self.meter is not None:
            self.meter.occupy(self._tasks.look(pids_by_gpu(sample)))


def pids_by_gpu(sample: MachineSample) -> dict[str, tuple[int, ...] | None]:
    """Return the pids that compute on each GPU and partition; ``None`` where they could not be listed."""
    found: dict[str, tuple[int, ...] | None] = {}
    for device in sample.devices:
        if not device.is_divided:
            found[device.uuid] = _computing(device.processes)
        found |= {part.uuid: _computing(part.processes) for part in device.partitions}
    return found


def _computing(processes: Sequence[ProcessUse] | None) -> tuple[int, ...] | None:
    return None if processes is None else tuple(each.pid for each in processes if each.is_compute)


def run_sampler(node: str, credential: str, settings: EacoSettings) -> None:
    """Sample this machine until this process gets SIGTERM or SIGINT.

    :raises InvalidSettingError: if there are no real GPUs to sample, or no address of the API.
    :raises WorkerRunsError: if a worker or sampler of this node runs on this machine already.
    """
    from airflow_provider_eaco.provider.wiring import are_gpus_real
    from airflow_provider_eaco.provider.worker import api_url

    if not are_gpus_real(settings):
        raise InvalidSettingError("[eaco] telemetry", "there is no NVIDIA driver here, and nothing to sample")
    api = SamplerApi(api_url(settings), node, socket.gethostname(), credential)
    # A worker and a sampler of one node would each tell another story of it.
    lock = RunRegister(settings.home / "eaco", node)
    sampler = make_sampler(node, settings, api, SamplingProcess())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sampler.stop())
    try:
        sampler.run()
    finally:
        sampler.close()
        lock.close()
        api.close()


def make_sampler(
    node: str,
    settings: EacoSettings,
    api: Api,
    source: SampleSource,
    *,
    settle_s: float = SETTLE_S,
) -> Sampler:
    """Return a sampler over these samples; ``settle_s`` as in :class:`TaskTable`."""
    from airflow_provider_eaco.provider.wiring import BuiltInBeliefs, real_meter

    tasks = TaskTable(node, TaskProcesses(), ProcessOwners(), settle_s=settle_s)
    tapped = TappedSource(source, tasks)
    meter = real_meter(replace(settings, host=node), BuiltInBeliefs(), source=tapped, processes=tasks)
    tapped.meter = meter.telemetry
    return Sampler(Site(node, socket.gethostname()), meter, tasks, api)
