"""Ports: what the engine needs from the world. Adapters implement them; one contract suite tests each.

All instants are seconds since the Unix epoch on the store's clock, so that one clock judges over all
machines. Sequences that come back are the caller's to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_eaco.core.energy.accounting import EnergyMethod as EnergyMethod  # noqa: PLC0414 - of the port
from airflow_provider_eaco.core.energy.accounting import EnergyPart as EnergyPart  # noqa: PLC0414
from airflow_provider_eaco.core.energy.configuration import ConfigurationProgram, ConfigurationSolution
from airflow_provider_eaco.core.energy.records import JobEnergy, MachineEnergy, RunNote
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.energy_budget import UsedEnergy as UsedEnergy  # noqa: PLC0414
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.job import Job, Progress
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    PowerScope,
    ProfileBook,
    ProfileKey,
    SoloProfile,
)
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import Observation


class Clock(Protocol):
    """The one source of the present instant."""

    def now_s(self) -> float: ...


@quick_init
@dataclass(frozen=True, slots=True)
class JobRecord:
    """A stored job. ``owner`` names the executor that holds its workload; ``process`` how to find it."""

    job: Job
    phase: JobPhase
    owner: str
    process: str | None = None
    observation: Observation | None = None
    started_s: float | None = None
    ended_s: float | None = None


# A lease with its job; ``None``: the job is not in the view.
Member = tuple[Lease, JobRecord | None]


@quick_init
@dataclass(frozen=True, slots=True)
class LedgerIndex:
    """Jobs and leases as planning looks at them.

    ``members`` are the leases on each node, by its name, oldest first; ``waiting`` the jobs that wait;
    ``used_slots`` the Airflow pool slots that jobs with a lease take, by Airflow pool.
    """

    members: Mapping[str, tuple[Member, ...]]
    waiting: tuple[JobRecord, ...]
    used_slots: Mapping[str, int]

    @classmethod
    def of(cls, jobs: Sequence[JobRecord], leases: Sequence[Lease]) -> LedgerIndex:
        records = {record.job.job_id: record for record in jobs}
        members: dict[str, list[Member]] = {}
        used_slots: dict[str, int] = {}
        for lease in sorted(leases, key=lambda lease: lease.token):
            record = records.get(lease.job_id)
            members.setdefault(lease.placement.node, []).append((lease, record))
            if record is not None:
                job = record.job
                used_slots[job.pool] = used_slots.get(job.pool, 0) + job.pool_slots
        return cls(
            {node: tuple(there) for node, there in members.items()},
            tuple(record for record in jobs if record.phase is JobPhase.WAITING),
            used_slots,
        )


@quick_init
@dataclass(frozen=True, slots=True)
class LedgerView:
    """The ledger at one instant, as one consistent read.

    ``gpu_versions`` are the compare-and-set counters of every GPU: a grant made from this view fails with
    :class:`LeaseConflictError` when one of its GPUs has changed since. A ledger that keeps its index up to
    date hands it out as ``kept_index``; members of a node that did not change are then the same object.
    ``bookings`` are those that have not ended.
    """

    now_s: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobRecord, ...]
    leases: tuple[Lease, ...]
    gpu_versions: Mapping[str, int] = field(default_factory=dict)
    kept_index: LedgerIndex | None = None
    bookings: tuple[Booking, ...] = ()

    def index(self) -> LedgerIndex:
        """Return the index of this view, made now where the ledger keeps none."""
        return self.kept_index or LedgerIndex.of(self.jobs, self.leases)


@dataclass(frozen=True, slots=True)
class PastLease:
    """A lease that has ended, with what rules have to know of its job.

    ``charged_s`` are the seconds that count as its own: each second that it held its GPUs, divided by how
    many held them in it. ``queued_s`` is the instant at which its job was first queued.
    """

    token: int
    node: str
    gpus: int
    granted_s: float
    released_s: float
    charged_s: float
    pool: str
    bundle: str | None
    dag_id: str
    queued_s: float


class PlannerLock(Protocol):
    """One planner at a time over all schedulers; expires by itself on the store's clock."""

    def acquire(self, owner: str, ttl_s: float) -> bool:
        """Return whether ``owner`` now holds the lock until ``ttl_s`` from now; renews its own."""

    def release(self, owner: str) -> None:
        """Give the lock up if ``owner`` holds it; otherwise do nothing."""


class Ledger(Protocol):
    """Jobs, inventory and leases. Every release, expiry and finish is idempotent."""

    def view(self) -> LedgerView:
        """Return all nodes, all leases, and every job that is not in a final phase."""

    def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        """Return the leases that ended after the one instant and not after the other, in any order.

        Those whose job has been cleaned away are left out.
        """

    def add_waiting(self, job: Job, owner: str) -> None:
        """Store ``job`` as waiting, or bring it back to waiting; progress and first queue time are kept.

        A job that holds a lease keeps lease and phase. If it runs, ``owner`` is remembered: it then waits
        again as soon as its lease is released, whatever phase the release names.
        """

    def save_nodes(self, nodes: Sequence[Node]) -> None:
        """Upsert these nodes with their GPUs and the time of the report; drain marks set by users stay."""

    def forget_node(self, name: str) -> None:
        """Remove a node that has no lease; one with leases becomes unavailable and goes when they end."""

    def set_draining(self, node: str, draining: bool) -> bool:
        """Mark the node; return whether it exists."""

    def set_hold(self, job_id: str, on_hold: bool) -> bool:
        """Hold or release a waiting job; return whether there is one."""

    def grant(self, launch: Launch, state: LeaseState, gpu_versions: Mapping[str, int], owner: str) -> Lease:
        """Store the lease, move the job to leased and its co-residents to trial, all or nothing.

        The counter of each of its GPUs grows by one. All members get a set version that none of these GPUs
        has had before; the job starts its lease without an observation.

        :raises LeaseConflictError: if one of the GPUs changed since ``gpu_versions`` were read, or the job is
            no longer waiting or on hold.
        """

    def set_lease_state(self, placement: Placement, set_version: int, state: LeaseState) -> int:
        """Move the set's leases if it still has this version, except yielding ones; return how many."""

    def ask_to_yield(self, job_id: str, set_version: int) -> bool:
        """Mark the job's lease as yielding if its set still has this version; return whether it did."""

    def set_running(self, token: int, process: str) -> bool:
        """Record the process of a leased job; return ``False`` when the token is no longer valid."""

    def release(self, token: int, phase: JobPhase) -> bool:
        """End the lease and move its job to ``phase``; the set's version grows for those who stay.

        One who stays alone is exclusive again, also if it was asked to yield; several are in trial again.
        Return whether there was a lease with this token. Calling it again changes nothing.

        :raises ValueError: if the lifecycle does not allow ``phase`` now; then nothing has changed.
        """

    def tell_of_booking(self, booking_id: int, token: int) -> bool:
        """Remember that the holder of this lease is told of the booking; return whether it was not before."""

    def finish_waiting(self, job_id: str, phase: JobPhase) -> bool:
        """End a job that holds no lease (rejected, removed, failed); return whether anything changed."""

    def save_progress(self, job_id: str, progress: Progress, observation: Observation | None) -> None:
        """Record how far the job has come and what was seen under its present set."""


class ProfileStore(Protocol):
    """What is believed about families: the built-in book, overlaid by what was measured or imported here."""

    def book(self) -> ProfileBook:
        """Return the present beliefs as one view; equal revisions mean equal content."""

    def save_solo(self, profile: SoloProfile) -> None: ...

    def save_coallocation(self, profile: CoallocationProfile) -> None: ...

    def delete(self, key: ProfileKey) -> bool:
        """Forget what was stored for the key (a built-in profile shows again); return whether there was."""


Explain = Callable[[KindDecision], tuple[Alternative, ...]]


class DecisionLog(Protocol):
    """Decisions, one row per kind of job, written only when verdict, reason or placement changes."""

    def record(self, plan: Plan, explain: Explain | None = None) -> Sequence[KindDecision]:
        """Store what changed and return exactly that.

        :param explain: returns the alternatives of a decision; who keeps them asks for what it stores.
        """

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        """Store what happened to one job (trial, confirmed, undone, launched, released), for its story."""


class EnergySolver(Protocol):
    """Solves the configuration program (facts: limits of energy at bounded slowdown)."""

    def solve(
        self, program: ConfigurationProgram, mean_stretch: float | None = None, class_limits: bool = False
    ) -> ConfigurationSolution:
        """Return the least energy that does the work of every class.

        :param mean_stretch: bound on the work-weighted mean stretch, ``None`` for none.
        :param class_limits: whether each class keeps its own stretch limit, on average over the class.
        :raises SolverError: if no solution keeps the limits.
        """


class Telemetry(Protocol):
    """A meter over GPUs of one kind (NVML, simulated, replayed)."""

    def inventory(self) -> Sequence[Node]:
        """Return the nodes with GPUs that this meter sees now."""

    def read(self) -> Sequence[GpuReading]:
        """Return one reading per GPU; unknown values are ``None``. Never blocks for long, never raises."""

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Declare who holds which GPUs from now on, as one atomic change.

        Meters that see processes by themselves ignore it; the simulated node moves its device model.
        """


@dataclass(frozen=True, slots=True)
class Occupant:
    """One job on its GPUs, as told to a meter. ``granted_s`` is the instant of its grant, if known."""

    job_id: str
    token: int
    family: str
    placement: Placement
    memory_mib: int | None
    granted_s: float | None = None


class EnergyLog(Protocol):
    """The energy of each task try on each of its GPUs. Parts of one GPU's residents add up to the GPU."""

    def add(self, part: EnergyPart) -> None:
        """Add the part to what is stored for its job, token and GPU.

        One part without a measured energy, or a partial one, marks the sum as partial for good.
        """

    def bring_to(self, part: EnergyPart) -> None:
        """Let what is stored for its job, token and GPU be this part in all; it never becomes less.

        For meters whose account of a run outlives them: telling the same account again changes nothing.
        """

    def note_run(self, note: RunNote) -> None:
        """Keep the largest peak and all rules that were ever noted of the run."""

    def add_machine(self, counters: MachineEnergy) -> bool:
        """Add what the counters have grown by since this origin was last stored; return whether it counts.

        Of two meters over one machine in the same time only one counts: counters of another origin that
        began before the last stored instant are refused, and change nothing.
        """

    def job_energy(self, job_id: str) -> JobEnergy | None:
        """Return the energy record of one task try, ``None`` if it never had one."""


class EnergyUse(Protocol):
    """What jobs have used, as far as it is recorded."""

    def used_since(self, since_s: float) -> Sequence[UsedEnergy]:
        """Return all parts that end after ``since_s``; those of one job do not overlap on a GPU."""


@dataclass(frozen=True, slots=True)
class RunMeter:
    """What a meter saw of one job's run under one lease; ``None`` is unknown.

    ``memory_peak_mib`` is the job's own, per GPU, whoever else was there. The other values describe the
    placement, over the device time in which the job was alone on it; without such a time they are unknown.
    ``power_w`` is the mean draw of all its GPUs together and covers what ``scope`` says.
    """

    memory_peak_mib: int | None = None
    utilisation_pct: float | None = None
    utilisation_max_pct: float | None = None
    memory_utilisation_pct: float | None = None
    power_w: float | None = None
    scope: PowerScope = PowerScope.NODE


class RunMeters(Protocol):
    """A meter that keeps what it saw of each job, so that a complete run can become a profile."""

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        """Return what was seen of the job under this token up to now; ``None`` if it was never seen here.

        To be asked before the lease falls. Never raises: what cannot be read was not seen.
        """


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """What a dispatcher needs to start one job's process group.

    ``entry_point`` is ``module:function``, called with ``payload`` in a fresh process whose environment was
    set from ``environment`` before any user code is imported. ``placement`` is that of the lease, ``None``
    without one.
    """

    job_id: str
    token: int
    entry_point: str
    payload: str
    environment: Mapping[str, str]
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a dispatcher knows of a process group. ``exit_code`` is ``None`` while it lives, and for an
    adopted one whose code nobody could collect (then ``alive`` is false).

    ``begun``: whether it is known to have begun. One on another machine counts as alive before that; one that
    is gone without having begun was never there, or could not be started if it has an ``exit_code``.
    ``cause`` says why, as far as that is known.
    """

    alive: bool
    exit_code: int | None = None
    begun: bool = True
    cause: str | None = None


class Dispatcher(Protocol):
    """Starts and ends process groups; knows nothing of Airflow."""

    def start(self, order: LaunchOrder) -> str:
        """Start the order and return a reference that survives a restart of the caller.

        :raises NotReadyError: if it has to wait; the same order is to be handed in again later.
        :raises LaunchError: with the operating system's cause; then nothing was started.
        """

    def poll(self, reference: str) -> ProcessState:
        """Return the state of the process group, including descendants that left the group."""

    def kill(self, reference: str, grace_s: float) -> None:
        """Begin to end the group: SIGTERM now, SIGKILL after ``grace_s``; returns at once, idempotent."""

    def close(self, timeout_s: float) -> None:
        """Give resources back within ``timeout_s``; running groups are left alone."""
