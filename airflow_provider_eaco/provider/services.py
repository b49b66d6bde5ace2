"""The parts that an executor works with, wired by :mod:`airflow_provider_eaco.provider.wiring`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_provider_eaco.core.energy.accounting import RunEnergy, RunKey
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import (
    DecisionLog,
    Dispatcher,
    EnergyLog,
    Ledger,
    ProfileStore,
    RunMeters,
    Telemetry,
)
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.engine.pool_manager import Inventory
from airflow_provider_eaco.provider.settings import EacoSettings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_eaco.provider.node_sleep import NodeSleeper
    from airflow_provider_eaco.provider.power_limits import AppliedLimits


class Admission(Protocol):
    """The engine's admission loop."""

    def run_once(self, readings: Sequence[GpuReading]) -> CycleReport: ...


class Workers(Protocol):
    """The nodes that have a worker of their own."""

    def has_worker(self, node: str) -> bool:
        """Tell whether tasks reach the node through its worker."""

    def reference_of(self, lease: Lease) -> str | None:
        """Return how the lease's run on its node is found, ``None`` if it was never sent there."""

    def withdraw(self, lease: Lease) -> bool:
        """Keep the lease from ever beginning on its node; return whether it has not, and never will."""


class NoWorkers:
    """This machine's nodes are all there are."""

    def has_worker(self, node: str) -> bool:
        return False

    def reference_of(self, lease: Lease) -> str | None:
        return None

    def withdraw(self, lease: Lease) -> bool:
        return False


class EnergyMeter(Protocol):
    """A meter that can close the energy record of a job that has left."""

    def write_energy(self, job_id: str, token: int, energy_log: EnergyLog) -> bool: ...


class LiveMeter(Protocol):
    """A meter over real devices, which keeps in memory what runs have used until it is stored."""

    def write_interim(self, own: Collection[RunKey], energy_log: EnergyLog, *, at_once: bool = False) -> None:
        """Store what these runs have used so far, now and then or ``at_once``; what others have used is
        theirs to store.
        """

    def run_energy(self, job_id: str, token: int) -> RunEnergy | None:
        """Return the energy record up to now, ``None`` if the run never was here."""

    def close(self) -> None:
        """Stop measuring."""


class MemoryMeter(Protocol):
    """A meter that sees how much memory is in use on a GPU, and by whom."""

    def is_memory_back(self, run: RunKey, since_s: float) -> bool | None:
        """Tell whether a run whose processes were gone at ``since_s``, on the machine's steady clock, has
        left no memory behind on the GPUs that it holds, up to 1 % of each.

        False until a look after that instant has shown it; ``None`` where nobody can tell. Never raises.
        """


@dataclass(frozen=True, slots=True)
class NodeMeter:
    """A meter with what a task on its nodes has to find in its environment.

    ``simulated_state``: path of the device model, for simulated nodes; ``energy`` closes energy records;
    ``runs`` tells what was seen of a run that ends; ``live`` is a meter over real devices; ``peaks_mib``
    tells the memory of runs that live on other machines, by token, all with one look; ``memory`` tells when
    that of a run that has ended is back. A meter that leaves one out measures that much less.
    """

    telemetry: Telemetry
    energy: EnergyMeter | None = None
    runs: RunMeters | None = None
    simulated_state: str | None = None
    live: LiveMeter | None = None
    peaks_mib: Callable[[], Mapping[int, int]] = dict
    memory: MemoryMeter | None = None


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the GPU lane reaches outside itself.

    ``enqueue`` writes a waiting job through somebody else's session; ``session`` opens one of our own;
    ``save_readings`` keeps what the meters read for those who have none at hand (CLI, UI);
    ``energy_by_pool`` tells the joules of this month by Airflow pool; ``limits`` sets power limits,
    ``sleeper`` puts nodes to sleep.
    """

    settings: EacoSettings
    ledger: Ledger
    profiles: ProfileStore
    decisions: DecisionLog
    energy: EnergyLog
    admission: Admission
    inventory: Inventory
    dispatcher: Dispatcher
    meters: Sequence[NodeMeter]
    enqueue: Callable[[Session, Job, str], None]
    session: Callable[[], AbstractContextManager[Session]]
    save_readings: Callable[[Sequence[GpuReading]], None]
    workers: Workers = field(default_factory=NoWorkers)
    energy_by_pool: Callable[[], Mapping[str, float]] = dict
    limits: AppliedLimits | None = None
    sleeper: NodeSleeper | None = None
