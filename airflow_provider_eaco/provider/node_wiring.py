"""The second composition root: what joins schedulers, the API server and nodes with a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import Dispatcher, Occupant, RunMeter
from airflow_provider_eaco.dispatch.celery import CeleryDispatcher, NodeDispatcher, NodeReference
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.provider.node_limits import LimitStore, NoLimitStore
from airflow_provider_eaco.provider.node_settings import DispatchChoice
from airflow_provider_eaco.provider.services import Admission, NodeMeter, NoWorkers, Workers
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_limits import SqlNodeLimits
from airflow_provider_eaco.store.node_reports import SqlNodeReports
from airflow_provider_eaco.store.node_runs import SqlNodeRuns
from airflow_provider_eaco.store.session import Database

# How long a node that was just added may go unnoticed.
_NODES_AGE_S = 5.0
# A node reports this often within the time-out: some reports may be lost.
_REPORTS_IN_TIMEOUT = 5
_LONGEST_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkerSide:
    """What an executor needs to reach nodes with a worker; without any it changes nothing."""

    dispatcher: Dispatcher
    workers: Workers
    meters: tuple[NodeMeter, ...] = ()
    readings: Callable[[], Sequence[GpuReading]] = tuple
    limits: LimitStore = field(default_factory=NoLimitStore)

    def admitting(self, admission: Admission) -> Admission:
        """Return the admission, which then also sees what those nodes have read."""
        return _WithReadings(admission, self.readings) if self.meters else admission


def make_worker_side(settings: EacoSettings, here: Dispatcher, database: Database) -> WorkerSide:
    """Return the side of the nodes with a worker, as ``[eaco] dispatch`` says.

    :raises InvalidSettingError: if Celery cannot be used.
    """
    if settings.dispatch is DispatchChoice.LOCAL:
        return WorkerSide(here, NoWorkers())
    # Loads Celery, which a scheduler without such nodes does not need.
    from airflow_provider_eaco.provider.celery_app import make_app, sender

    runs = SqlNodeRuns(database)
    reports = SqlNodeReports(database, settings.node_timeout_s)
    workers = KnownWorkers(SqlNodeCredentials(database).nodes, runs)
    celery = CeleryDispatcher(runs, sender(make_app()), timeout_s=settings.node_timeout_s)
    return WorkerSide(
        NodeDispatcher(here, celery, workers.has_worker),
        workers,
        (NodeMeter(_NoTelemetry(), runs=_ReportedRuns(runs), peaks_mib=runs.peaks_mib),),
        reports.readings,
        SqlNodeLimits(database),
    )


def make_node_door(settings: EacoSettings, database: Database) -> NodeDoor:
    """Return what the API for nodes leads to."""
    reports = SqlNodeReports(database, settings.node_timeout_s)
    applies_limits = any(pool.power_limits is PowerLimits.APPLY for pool in settings.pools)
    interval_s = min(settings.node_timeout_s / _REPORTS_IN_TIMEOUT, _LONGEST_INTERVAL_S)

    def claim(node: str, machine: str, token: int, job_id: str) -> RunClaim | None:
        claimed = reports.claim(node, machine, token, job_id)
        if claimed is None:
            return None
        margin_mib = settings.pool_for(claimed.pool).memory_margin_mib
        limit_w = claimed.power_limit_w if applies_limits else None
        return replace(claimed, memory_margin_mib=margin_mib, power_limit_w=limit_w)

    def take(report: NodeReport) -> NodeAnswer:
        answer = reports.take(report)
        # Boards of nodes that no pool limits are not even asked.
        return answer if applies_limits else replace(answer, limits_w=None)

    return NodeDoor(SqlNodeCredentials(database).accepts, take, claim, interval_s)


class KnownWorkers:
    """Nodes with a worker by their credentials, asked for now and then."""

    def __init__(
        self,
        nodes: Callable[[], frozenset[str]],
        runs: SqlNodeRuns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = nodes
        self._runs = runs
        self._monotonic = monotonic
        self._nodes: frozenset[str] = frozenset()
        self._asked_s = float("-inf")

    def has_worker(self, node: str) -> bool:
        """Tell whether the node has a credential that was not revoked."""
        if self._monotonic() - self._asked_s > _NODES_AGE_S:
            self._nodes, self._asked_s = self._ask(), self._monotonic()
        return node in self._nodes

    def reference_of(self, lease: Lease) -> str | None:
        """Return how the lease's run on its node is found, ``None`` if it was never sent there."""
        if not self._runs.is_known(lease.token):
            return None
        return str(NodeReference(lease.placement.node, lease.token, lease.job_id))

    def withdraw(self, lease: Lease) -> bool:
        """Keep the lease from ever beginning on its node; return whether it has not, and never will."""
        return self._runs.withdraw(lease.token, lease.job_id, lease.placement.node)


class _WithReadings:
    def __init__(self, admission: Admission, readings: Callable[[], Sequence[GpuReading]]) -> None:
        self._admission = admission
        self._readings = readings

    def run_once(self, readings: Sequence[GpuReading]) -> CycleReport:
        return self._admission.run_once([*readings, *self._readings()])


class _NoTelemetry:
    """Other machines' GPUs are nothing that this one could read or occupy."""

    def inventory(self) -> Sequence[Node]:
        return ()

    def read(self) -> Sequence[GpuReading]:
        return ()

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Their nodes know by themselves."""


class _ReportedRuns:
    """What nodes saw of runs that have ended."""

    def __init__(self, runs: SqlNodeRuns) -> None:
        self._runs = runs

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        return self._runs.meter(token)
