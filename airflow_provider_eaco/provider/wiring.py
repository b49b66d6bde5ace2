"""The composition root: the only place in the provider that names adapters and puts them together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_provider_eaco.core.model.errors import InvalidSettingError, StoreUnavailableError
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.dispatch.local import LocalDispatcher
from airflow_provider_eaco.dispatch.process_owner import ProcessOwners
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.pool_manager import Inventory
from airflow_provider_eaco.engine.prices import EnergyPricing
from airflow_provider_eaco.provider import workloads
from airflow_provider_eaco.provider.compat import own_session
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.provider.node_limits import LimitsElsewhere, LimitStore
from airflow_provider_eaco.provider.node_settings import DispatchChoice, GpuSource
from airflow_provider_eaco.provider.node_sleep import Around, NodeSleeper
from airflow_provider_eaco.provider.node_wiring import WorkerSide, make_node_door, make_worker_side
from airflow_provider_eaco.provider.outside_commands import OutsideCommands
from airflow_provider_eaco.provider.pools import pool_states
from airflow_provider_eaco.provider.power_limits import AppliedLimits, without_applied
from airflow_provider_eaco.provider.series_feed import SeriesFeed
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.settings import EacoSettings, load_settings
from airflow_provider_eaco.provider.whatif.present import Present, judged
from airflow_provider_eaco.solver.energy_lp import HighsEnergySolver
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_months import SqlEnergyMonths
from airflow_provider_eaco.store.energy_use import SqlEnergyUse
from airflow_provider_eaco.store.inventory import SqlReadings
from airflow_provider_eaco.store.jobs import enqueue
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_sleep import SqlNodeSleep
from airflow_provider_eaco.store.past import PastReads
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.read_model import ReadModel
from airflow_provider_eaco.store.session import Database, DatabaseClock
from airflow_provider_eaco.telemetry import nvml_probe
from airflow_provider_eaco.telemetry.limit_process import LimitProcess
from airflow_provider_eaco.telemetry.nvml import NodePower, NvmlTelemetry
from airflow_provider_eaco.telemetry.nvml_attribution import ProcessTable
from airflow_provider_eaco.telemetry.nvml_feed import SampleSource, SamplingProcess
from airflow_provider_eaco.telemetry.simulated import (
    SimulatedCluster,
    TruthTable,
    parse_truth,
    simulated_node,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


log = logging.getLogger(__name__)

# Nodes of this machine report at least this often, whatever the time-out.
LONGEST_NODE_HEARTBEAT_S = 30.0


@dataclass(frozen=True, slots=True)
class Store:
    """The provider's tables, each part behind its port, over Airflow's metadata database."""

    clock: DatabaseClock
    ledger: SqlLedger
    profiles: SqlProfileStore
    decisions: SqlDecisionLog
    energy: SqlEnergyLog
    energy_use: SqlEnergyUse
    planner: SqlPlannerLock
    readings: SqlReadings
    reads: ReadModel
    energy_months: SqlEnergyMonths
    past: PastReads
    bookings: SqlBookings
    node_sleep: SqlNodeSleep


def open_store() -> Store:
    """Return the store. Opens no connection; each call of a part is a short transaction of its own."""
    database = Database(_new_session)
    return Store(
        clock=DatabaseClock(_new_session),
        ledger=SqlLedger(database),
        profiles=SqlProfileStore(database, built_in_book()),
        decisions=SqlDecisionLog(database),
        energy=SqlEnergyLog(database),
        energy_use=SqlEnergyUse(database),
        planner=SqlPlannerLock(database),
        readings=SqlReadings(database),
        reads=ReadModel(database),
        energy_months=SqlEnergyMonths(database),
        past=PastReads(database),
        node_sleep=SqlNodeSleep(database),
        bookings=SqlBookings(database),
    )


def make_dispatcher() -> LocalDispatcher:
    """Return the dispatcher of this machine; its forkserver starts with the first task or ``warm_up``."""
    return LocalDispatcher(workloads.PRELOAD)


def make_services(settings: EacoSettings, owner: str, dispatcher: LocalDispatcher) -> Services:
    """Return everything that an executor's GPU lane works with.

    :param owner: how the executor signs its rows, unique among schedulers.
    :raises InvalidSettingError: if the simulated nodes cannot be made as configured.
    """
    store = open_store()
    meters = make_meters(settings, store.profiles)
    elsewhere = make_worker_side(settings, dispatcher, Database(_new_session))
    limits = _applied_limits(settings, store, elsewhere.limits)
    sleeper = _sleeper(settings, store, elsewhere)
    admission = _admission(settings, store, owner, limits, sleeper)
    return Services(
        settings=settings,
        ledger=store.ledger,
        profiles=store.profiles,
        decisions=store.decisions,
        energy=store.energy,
        admission=elsewhere.admitting(sleeper.heard(limits.heard(admission, store.ledger.view))),
        inventory=Inventory(
            store.ledger,
            [meter.telemetry for meter in meters],
            heartbeat_s=min(LONGEST_NODE_HEARTBEAT_S, settings.node_timeout_s / 4),
        ),
        dispatcher=sleeper.starting(elsewhere.dispatcher),
        meters=(*meters, *elsewhere.meters),
        save_readings=store.readings.save,
        energy_by_pool=store.energy_months.by_pool,
        enqueue=enqueue,
        session=own_session,
        workers=elsewhere.workers,
        limits=limits,
        sleeper=sleeper,
    )


def _applied_limits(settings: EacoSettings, store: Store, limit_store: LimitStore) -> AppliedLimits:
    return AppliedLimits(
        make_limiter(settings),
        settings.pools,
        settings.pool_for,
        store.decisions,
        elsewhere=LimitsElsewhere(limit_store),
    )


def make_limiter(settings: EacoSettings, book: str = "power_limits.json") -> LimitProcess:
    """Return what sets power limits on this machine's boards.

    :param book: the name of the file in which is written what they had before; a scheduler and each worker
        of a machine have one of their own, since they limit other boards and lift what is not theirs to keep.
    """
    return LimitProcess(settings.home / "eaco" / book)


def _sleeper(settings: EacoSettings, store: Store, elsewhere: WorkerSide) -> NodeSleeper:
    if settings.node_sleep and settings.dispatch is DispatchChoice.LOCAL:
        log.warning("[eaco] node_sleep puts nothing to sleep: nodes with a worker need dispatch = celery")
    around = Around(
        book=store.node_sleep,
        ledger=store.ledger,
        workers=elsewhere.workers,
        decisions=store.decisions,
        commands=OutsideCommands(),
        readings=elsewhere.readings,
        margin_mib=min(pool.memory_margin_mib for pool in settings.pools),
        silent_s=settings.node_timeout_s,
    )
    return NodeSleeper(settings.node_sleep, around)


class _PlannedLedger(SqlLedger):
    """The ledger as plans see it: with the nodes that sleep."""

    def __init__(self, sleeper: NodeSleeper) -> None:
        super().__init__(Database(_new_session))
        self._sleeper = sleeper

    def view(self) -> LedgerView:
        return self._sleeper.seen(super().view())


def _admission(
    settings: EacoSettings, store: Store, owner: str, limits: AppliedLimits, sleeper: NodeSleeper
) -> AdmissionLoop:
    series = SeriesFeed(settings.series)
    return AdmissionLoop(
        _PlannedLedger(sleeper),
        store.profiles,
        store.decisions,
        store.planner,
        pools=lambda: series.told(sleeper.told(limits.told(_declared_pools(settings)))),
        owner=owner,
        planner_ttl_s=settings.planner_ttl_s,
        report_timeout_s=settings.node_timeout_s,
        pricing=EnergyPricing(HighsEnergySolver()),
        energy_use=store.energy_use,
    )


def open_node_door() -> NodeDoor:
    """Return what the API for nodes with a worker or a sampler leads to.

    :raises InvalidSettingError: if the configuration cannot be used.
    """
    # Only the API server takes in what samplers report.
    from airflow_provider_eaco.provider.observe_wiring import make_observer

    settings, database = load_settings(), Database(_new_session)
    observer = make_observer(settings, database, lambda: present_pools(settings))
    return replace(make_node_door(settings, database), observe=observer.take)


def open_credentials() -> SqlNodeCredentials:
    """Return the credentials of nodes with a worker."""
    return SqlNodeCredentials(Database(_new_session))


class Beliefs(Protocol):
    """What meters have to know of families."""

    def book(self) -> ProfileBook: ...


class BuiltInBeliefs:
    """What is believed where there is no database: the profiles that come with the package."""

    def book(self) -> ProfileBook:
        return built_in_book()


def make_meters(settings: EacoSettings, profiles: Beliefs) -> tuple[NodeMeter, ...]:
    """Return the meters over this machine's GPUs, real and simulated.

    :raises InvalidSettingError: if the simulated nodes cannot be made as configured.
    """
    if not are_gpus_real(settings):
        return _simulated_meters(settings)
    real = real_meter(settings, profiles)
    # The default node is for machines without a GPU; nodes that are listed are wanted.
    return (real, *_simulated_meters(settings)) if settings.are_nodes_listed else (real,)


def are_gpus_real(settings: EacoSettings) -> bool:
    """Tell whether NVML is to be read; under ``auto`` that is found out, and takes at most some seconds.

    With a driver NVML is read even if it lists no GPU now: cards that cannot be told must not be taken for
    simulated ones.
    """
    if settings.telemetry is not GpuSource.AUTO:
        return settings.telemetry is GpuSource.NVML
    if settings.are_nodes_listed or not nvml_probe.has_library():
        return False
    return settings.has_driver or nvml_probe.lists_a_gpu()


def real_meter(
    settings: EacoSettings,
    profiles: Beliefs,
    *,
    source: SampleSource | None = None,
    processes: ProcessTable | None = None,
) -> NodeMeter:
    """Return the meter over this machine's real GPUs.

    :param source: where samples come from, by default a process of its own.
    :param processes: who owns the processes there, by default the jobs that executors of ours have begun.
    """

    def solo_utilisation(family: str, gpu_model: str, gpu_count: int) -> float | None:
        try:
            solo = profiles.book().solo_of(family, gpu_model, gpu_count)
        except StoreUnavailableError:  # energy is then split by what else is known
            return None
        return None if solo is None else solo.utilisation_pct

    nvml = NvmlTelemetry(
        settings.host,
        source or SamplingProcess(),
        processes or ProcessOwners(),
        solo_utilisation=solo_utilisation,
        memory_mib=settings.gpu_memory_mib,
        node_power=_node_power(settings),
    )
    return NodeMeter(nvml, nvml, nvml, live=nvml, memory=nvml)


def _node_power(settings: EacoSettings) -> NodePower | None:
    source = settings.node_power
    if source is None:
        return None
    # Loads requests, which nobody else here needs.
    from airflow_provider_eaco.telemetry.node_power_source import HttpNodePower, SourceKind

    return HttpNodePower(settings.host, SourceKind(source.kind), source.url, source.query)


def check_simulated(settings: EacoSettings) -> None:
    """Return if the simulated nodes can be made as configured; nothing is made.

    :raises InvalidSettingError: if not.
    """
    for node in settings.simulated_nodes:
        simulated_node(node.name, node.gpus, node.gpu_model, node.gpu_memory_mib, node.host_memory_mib)
    parse_truth(settings.simulated_truth)
    if settings.simulated_nodes and settings.simulated_state.is_dir():
        problem = f"{settings.simulated_state} is a directory, must be a file"
        raise InvalidSettingError("[eaco] simulated_state", problem)


def _simulated_meters(settings: EacoSettings) -> tuple[NodeMeter, ...]:
    if not settings.simulated_nodes:
        return ()
    check_simulated(settings)
    cluster = SimulatedCluster(
        _state_file(settings),
        [
            simulated_node(node.name, node.gpus, node.gpu_model, node.gpu_memory_mib, node.host_memory_mib)
            for node in settings.simulated_nodes
        ],
        TruthTable(built_in_book(), parse_truth(settings.simulated_truth)),
        time_scale=settings.simulated_time_scale,
    )
    state = str(settings.simulated_state)
    return (NodeMeter(cluster, cluster, cluster, simulated_state=state, live=cluster),)


def present_pools(settings: EacoSettings | None = None) -> Sequence[PoolState]:
    """Return the declared GPU pools with the Airflow pools as they are now, as those see them who set no
    power limits.
    """
    return without_applied(_declared_pools(settings or load_settings()))


def _declared_pools(settings: EacoSettings) -> Sequence[PoolState]:
    with own_session() as session:
        return pool_states(session, settings.pools)


def read_present(settings: EacoSettings | None = None) -> Present:
    """Return all that planning sees now, for a what-if; reads only.

    :raises StoreUnavailableError: if our tables cannot be read.
    :raises InvalidSettingError: if ``[eaco]`` cannot be read.
    """
    settings = settings or load_settings()
    store = open_store()
    overview = store.reads.overview()
    return Present(
        view=judged(overview.view, settings.node_timeout_s),
        pools=tuple(SeriesFeed(settings.series).told(present_pools(settings))),
        profiles=store.profiles.book(),
        readings=tuple(overview.readings.values()),
        past=store.ledger.past_leases,
        energy_use=store.energy_use,
        pricing=EnergyPricing(HighsEnergySolver()),
        hold_window=settings.hold_window,
    )


def _state_file(settings: EacoSettings) -> Path:
    settings.simulated_state.parent.mkdir(parents=True, exist_ok=True)
    return settings.simulated_state


def _new_session() -> Session:
    from airflow import settings as airflow_settings

    factory = airflow_settings.NonScopedSession
    if factory is None:
        raise RuntimeError("Airflow's database is not configured in this process")
    session: Session = factory()
    return session
