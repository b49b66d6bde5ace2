"""What the executor tells Airflow's metrics: queue, reasons, leases, GPUs, watts, joules, decisions.

Names carry what they are about (``eaco.waiting.POOL``), since plain StatsD knows no tags. What
nobody knows is not sent.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.engine.pool_manager import count_pools
from airflow_provider_eaco.provider.services import Admission


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``kind`` is gauge, counter or timer; upper case in the name stands for a name of the
    site's.
    """

    name: str
    kind: str
    text: str

    def named(self, *names: str) -> str:
        """Return the name that is sent, with these in place of its variables."""
        parts = self.name.split(".")
        values = iter(names)
        return ".".join(_safe(next(values)) if part.isupper() else part for part in parts)


WAITING = Metric("eaco.waiting.POOL", "gauge", "tasks that wait in the GPU pool, those on hold included")
HELD = Metric("eaco.held.POOL.REASON", "gauge", "tasks that wait in the pool with this reason as the first")
RUNNING = Metric("eaco.running.POOL", "gauge", "tasks of the pool that hold GPUs")
GPUS_HELD = Metric("eaco.gpus.held", "gauge", "GPUs that tasks hold")
GPUS_SHARED = Metric("eaco.gpus.shared", "gauge", "GPUs that two and more tasks hold")
GPUS_FREE = Metric("eaco.gpus.free", "gauge", "healthy GPUs of nodes that take work, held by nobody")
GPUS_UNHEALTHY = Metric("eaco.gpus.unhealthy", "gauge", "GPUs that are out of order")
GPUS_UNKNOWN = Metric("eaco.gpus.unknown", "gauge", "GPUs of which nobody knows how they are")
POWER = Metric("eaco.power_w.NODE", "gauge", "draw of all GPUs of a node, in W, while that of each is known")
ENERGY = Metric("eaco.energy_j.POOL", "gauge", "joules that tasks of the Airflow pool used this month (UTC)")
DECISION_TIME = Metric("eaco.decision_time", "timer", "one admission cycle, in ms")
GRANTED = Metric("eaco.granted", "counter", "leases that were granted")
CONFIRMED = Metric("eaco.trials.confirmed", "counter", "trials that were confirmed")
UNDONE = Metric("eaco.trials.undone", "counter", "tasks that were asked to leave a set")
UNCONFIRMED = Metric("eaco.trials.unconfirmed", "counter", "trials that ended without enough evidence")
REJECTED = Metric("eaco.rejected", "counter", "tasks that were failed because they could never run")

METRICS = (
    WAITING,
    HELD,
    RUNNING,
    GPUS_HELD,
    GPUS_SHARED,
    GPUS_FREE,
    GPUS_UNHEALTHY,
    GPUS_UNKNOWN,
    POWER,
    ENERGY,
    DECISION_TIME,
    GRANTED,
    CONFIRMED,
    UNDONE,
    UNCONFIRMED,
    REJECTED,
)


class Emitter(Protocol):
    """The part of Airflow's metrics that is used here."""

    def gauge(self, stat: str, value: float) -> None: ...

    def incr(self, stat: str, count: int) -> None: ...

    def timing(self, stat: str, dt: float) -> None: ...


class Metrics:
    """Sends them. Gauges about the ledger are the same from every scheduler; counters are of what this one
    has planned.
    """

    def __init__(self, emitter: Emitter, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emitter = emitter
        self._monotonic = monotonic
        self._held: Counter[tuple[str, str]] = Counter()

    def metered(self, admission: Admission, pool_of: Callable[[str], str]) -> Admission:
        """Return an admission loop that does what this one does, and is counted.

        :param pool_of: the GPU pool of an Airflow pool.
        """
        metrics = self

        class Metered:
            def run_once(self, readings: Sequence[GpuReading]) -> CycleReport:
                begun_s = metrics._monotonic()
                report = admission.run_once(readings)
                if report.planned:
                    elapsed_ms = (metrics._monotonic() - begun_s) * 1000
                    metrics._emitter.timing(DECISION_TIME.name, elapsed_ms)
                    metrics._count(report, pool_of)
                return report

        return Metered()

    def tell(
        self,
        view: LedgerView,
        pools: Sequence[PoolState],
        readings: Mapping[str, GpuReading],
        energy_j: Mapping[str, float],
    ) -> None:
        """Send the gauges.

        :param readings: by GPU, of this machine's nodes.
        :param energy_j: by Airflow pool, what was used this month.
        """
        for numbers in count_pools(view, pools):
            self._gauge(WAITING, numbers.waiting, numbers.pool)
            self._gauge(RUNNING, numbers.leased + numbers.running, numbers.pool)
        for (pool, reason), count in self._held.items():
            self._gauge(HELD, count, pool, reason)
        self._tell_gpus(view)
        for node in view.nodes:
            drawn = [readings[gpu.uuid].power_w for gpu in node.gpus if gpu.uuid in readings]
            known = [watts for watts in drawn if watts is not None]
            if known and len(known) == len(node.gpus):
                self._gauge(POWER, sum(known), node.name)
        for pool, joules in energy_j.items():
            self._gauge(ENERGY, joules, pool)

    def _tell_gpus(self, view: LedgerView) -> None:
        holders = Counter(uuid for lease in view.leases for uuid in lease.placement.gpu_uuids)
        gpus = [(gpu, node) for node in view.nodes for gpu in node.gpus]
        free = [
            gpu
            for gpu, node in gpus
            if gpu.health is GpuHealth.HEALTHY
            and node.available
            and not node.draining
            and not holders[gpu.uuid]
        ]
        healths = Counter(gpu.health for gpu, _ in gpus)
        self._gauge(GPUS_HELD, len(holders))
        self._gauge(GPUS_SHARED, sum(count > 1 for count in holders.values()))
        self._gauge(GPUS_FREE, len(free))
        self._gauge(GPUS_UNHEALTHY, healths[GpuHealth.UNHEALTHY])
        self._gauge(GPUS_UNKNOWN, healths[GpuHealth.UNKNOWN])

    def _count(self, report: CycleReport, pool_of: Callable[[str], str]) -> None:
        counts = {
            GRANTED: report.granted,
            CONFIRMED: report.confirmed,
            UNDONE: report.yielding,
            UNCONFIRMED: report.unconfirmed,
            REJECTED: report.rejected,
        }
        for metric, what in counts.items():
            if what:
                self._emitter.incr(metric.name, len(what))
        held: Counter[tuple[str, str]] = Counter()
        for decided in report.decided:
            if decided.decision.verdict is Verdict.HOLD and decided.decision.reason is not None:
                held[pool_of(decided.kind.pool), decided.decision.reason.code] += len(decided.job_ids)
        # What nobody waits for any more has to be seen to end.
        self._held = Counter({**dict.fromkeys(self._held, 0), **held})

    def _gauge(self, metric: Metric, value: float, *names: str) -> None:
        self._emitter.gauge(metric.named(*names), value)


def _safe(name: str) -> str:
    """Return a name of the site's as one part of a metric's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"


def patterns() -> Iterable[str]:
    """Return the names as Prometheus' StatsD exporter shows them, variables as ``.+``, for dashboards."""
    for metric in METRICS:
        parts = (".+" if part.isupper() else part for part in metric.name.split("."))
        yield "airflow_" + "_".join(parts)
