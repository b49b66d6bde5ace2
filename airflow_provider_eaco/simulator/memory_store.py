"""Ledger and planner lock in memory, on a clock that is handed in: for virtual time and for tests.

It keeps the same contract as the SQL store (``tests/contract``) and is safe to call from several threads. It
survives nothing: a restart forgets all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase, may_become
from airflow_provider_eaco.core.model.booking import Booking
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job, Progress
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.quick_init import with_changes
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import Clock, JobRecord, LedgerView, Member, PastLease
from airflow_provider_eaco.simulator.gpu_counters import GpuCounters
from airflow_provider_eaco.simulator.lease_history import LeaseHistory
from airflow_provider_eaco.simulator.ledger_index import LiveIndex


class MemoryPlannerLock:
    """A planner lock that lives in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._holder: str | None = None
        self._expires_s = 0.0

    def acquire(self, owner: str, ttl_s: float) -> bool:
        with self._mutex:
            now_s = self._clock.now_s()
            if self._holder not in (None, owner) and now_s < self._expires_s:
                return False
            self._holder, self._expires_s = owner, now_s + ttl_s
            return True

    def release(self, owner: str) -> None:
        with self._mutex:
            if self._holder == owner:
                self._holder = None


class MemoryLedger:
    """Jobs, inventory and leases as dictionaries under one mutex; every call is one transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._forgotten: set[str] = set()
        self._counters = GpuCounters()
        self._jobs: dict[str, JobRecord] = {}
        self._ended: dict[str, JobRecord] = {}
        self._leases: dict[int, Lease] = {}
        self._token_of: dict[str, int] = {}
        # Tokens by the UUIDs of the GPUs that they hold together; no GPU is on two nodes.
        self._sets: dict[tuple[str, ...], list[int]] = {}
        # By job: the executor that holds a new workload of it while its old process still runs.
        self._requeued: dict[str, str] = {}
        self._history = LeaseHistory()
        self._last_token = 0
        self._index = LiveIndex()
        self._nodes_by_name: tuple[Node, ...] | None = ()
        self.bookings: tuple[Booking, ...] = ()

    def restore(self, view: LedgerView) -> None:
        """Take everything over from the view of another ledger; this one has to be new.

        A snapshot of it is then equal to one of that view, and leases, tokens and counters go on from there.
        """
        with self._mutex:
            for node in view.nodes:
                self._put_node(node)
            for lease in sorted(view.leases, key=lambda lease: lease.token):
                self._token_of[lease.job_id] = lease.token
                self._sets.setdefault(lease.placement.gpu_uuids, []).append(lease.token)
                self._put_lease(lease)
                self._last_token = lease.token
            for record in view.jobs:
                self._put_job(record)
                if record.job.job_id in self._token_of:
                    self._index.slots_used(record, 1)
            self._counters.restore(view.gpu_versions, view.leases)
            self.bookings = view.bookings

    def view(self) -> LedgerView:
        """Return all nodes, all leases, and every job that is not in a final phase."""
        with self._mutex:
            if self._nodes_by_name is None:
                self._nodes_by_name = tuple(self._nodes[name] for name in sorted(self._nodes))
            return LedgerView(
                now_s=self._clock.now_s(),
                nodes=self._nodes_by_name,
                jobs=tuple(self._jobs.values()),
                leases=tuple(self._leases.values()),
                gpu_versions=self._counters.seen(),
                kept_index=self._index.present(self._jobs),
                bookings=self.bookings,
            )

    def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        """Return the leases that ended after the one instant and not after the other."""
        with self._mutex:
            return self._history.between(after_s, until_s)

    def record_of(self, job_id: str) -> JobRecord | None:
        """Return the stored job, also an ended one."""
        with self._mutex:
            return self._jobs.get(job_id) or self._ended.get(job_id)

    def lease_of(self, job_id: str) -> Lease | None:
        """Return the job's lease, ``None`` if it holds none."""
        with self._mutex:
            return self._leases.get(self._token_of.get(job_id, 0))

    def standing_of(self, job_id: str) -> tuple[Lease, JobRecord, int] | None:
        """Return the job's lease with the job, and how many hold these GPUs; ``None`` if it holds none."""
        with self._mutex:
            lease = self._leases.get(self._token_of.get(job_id, 0))
            if lease is None:
                return None
            return lease, self._jobs[job_id], len(self._sets[lease.placement.gpu_uuids])

    def leases_on(self, placement: Placement) -> tuple[Lease, ...]:
        """Return the leases of exactly this placement, oldest first."""
        with self._mutex:
            return tuple(self._members(placement))

    def members_on(self, placement: Placement) -> tuple[Member, ...]:
        """Return the leases of exactly this placement with their jobs, oldest first."""
        with self._mutex:
            jobs = self._jobs
            return tuple([(lease, jobs.get(lease.job_id)) for lease in self._members(placement)])

    def add_waiting(self, job: Job, owner: str) -> None:
        """Store ``job`` as waiting, or bring it back to waiting."""
        with self._mutex:
            if job.job_id in self._token_of:
                if self._jobs[job.job_id].phase is JobPhase.RUNNING:
                    self._requeued[job.job_id] = owner
                return
            known = self._ended.pop(job.job_id, None) or self._jobs.get(job.job_id)
            if known is None:
                self._put_job(JobRecord(job, JobPhase.WAITING, owner))
                return
            kept = replace(
                job, queued_s=known.job.queued_s, progress=known.job.progress, on_hold=known.job.on_hold
            )
            self._put_job(
                JobRecord(
                    kept, JobPhase.WAITING, owner, observation=known.observation, started_s=known.started_s
                )
            )

    def save_nodes(self, nodes: Sequence[Node]) -> None:
        """Upsert these nodes with their GPUs and the time of the report."""
        with self._mutex:
            now_s = self._clock.now_s()
            for node in nodes:
                known = self._nodes.get(node.name)
                gpus = node.gpus if known is None else (*node.gpus, *self._held_but_missing(known, node))
                draining = node.draining if known is None else known.draining
                self._put_node(replace(node, gpus=gpus, draining=draining, last_report_s=now_s))
                self._forgotten.discard(node.name)
                self._counters.exchange(() if known is None else known.gpus, gpus)

    def _held_but_missing(self, known: Node, reported: Node) -> list[Gpu]:
        """Return leased GPUs that the node no longer reports: leases keep their place."""
        present = {gpu.uuid for gpu in reported.gpus}
        held = {uuid for lease in self._leases.values() for uuid in lease.placement.gpu_uuids}
        return [
            replace(gpu, health=GpuHealth.UNKNOWN)
            for gpu in known.gpus
            if gpu.uuid in held and gpu.uuid not in present
        ]

    def forget_node(self, name: str) -> None:
        """Remove a node that has no lease; one with leases becomes unavailable and goes when they end."""
        with self._mutex:
            if name not in self._nodes:
                return
            if any(lease.placement.node == name for lease in self._leases.values()):
                self._put_node(replace(self._nodes[name], available=False))
                self._forgotten.add(name)
            else:
                self._counters.exchange(self._nodes.pop(name).gpus, ())
                self._nodes_by_name = None
                self._forgotten.discard(name)

    def set_draining(self, node: str, draining: bool) -> bool:
        """Mark the node; return whether it exists."""
        with self._mutex:
            if node not in self._nodes:
                return False
            self._put_node(replace(self._nodes[node], draining=draining))
            return True

    def set_hold(self, job_id: str, on_hold: bool) -> bool:
        """Hold or release a waiting job; return whether there is one."""
        with self._mutex:
            record = self._jobs.get(job_id)
            if record is None or record.phase is not JobPhase.WAITING:
                return False
            self._put_job(with_changes(record, job=replace(record.job, on_hold=on_hold)))
            return True

    def grant(self, launch: Launch, state: LeaseState, gpu_versions: Mapping[str, int], owner: str) -> Lease:
        """Store the lease, move the job to leased and its co-residents to trial, all or nothing.

        :raises LeaseConflictError: if a GPU changed since its version was read, or the job does not wait.
        """
        with self._mutex:
            record = self._jobs.get(launch.job.job_id)
            if record is None or record.phase is not JobPhase.WAITING or record.job.on_hold:
                raise LeaseConflictError(f"job {launch.job.job_id!r} is no longer waiting")
            self._check_versions(launch.placement, gpu_versions)
            now_s = self._clock.now_s()
            members = self._members(launch.placement)
            version = self._counters.next_set_version(launch.placement)
            self._move_members(members, LeaseState.TRIAL, version, now_s, len(members))
            self._last_token += 1
            lease = Lease(
                self._last_token,
                launch.job.job_id,
                launch.placement,
                state,
                version,
                granted_s=now_s,
                trial_since_s=None if state is LeaseState.EXCLUSIVE else now_s,
                owner=owner,
                charged_until_s=now_s,
            )
            self._put_lease(lease)
            self._token_of[lease.job_id] = lease.token
            self._sets.setdefault(lease.placement.gpu_uuids, []).append(lease.token)
            self._index.slots_used(record, 1)
            self._put_job(with_changes(record, phase=JobPhase.LEASED, owner=owner, observation=None))
            self._counters.count_change(launch.placement)
            return lease

    def set_lease_state(self, placement: Placement, set_version: int, state: LeaseState) -> int:
        """Move the set's leases if it still has this version, except yielding ones; return how many."""
        with self._mutex:
            moved = [
                lease
                for lease in self._members(placement)
                if lease.set_version == set_version and lease.state is not LeaseState.YIELDING
            ]
            for lease in moved:
                self._put_lease(with_changes(lease, state=state))
            return len(moved)

    def ask_to_yield(self, job_id: str, set_version: int) -> bool:
        """Mark the job's lease as yielding if its set still has this version; return whether it did."""
        with self._mutex:
            lease = self._leases.get(self._token_of.get(job_id, 0))
            if lease is None or lease.set_version != set_version:
                return False
            self._put_lease(with_changes(lease, state=LeaseState.YIELDING))
            return True

    def set_running(self, token: int, process: str) -> bool:
        """Record the process of a leased job; return ``False`` when the token is no longer valid."""
        with self._mutex:
            lease = self._leases.get(token)
            if lease is None:
                return False
            record = self._jobs[lease.job_id]
            started_s = self._clock.now_s() if record.started_s is None else record.started_s
            self._put_job(with_changes(record, phase=JobPhase.RUNNING, process=process, started_s=started_s))
            return True

    def release(self, token: int, phase: JobPhase) -> bool:
        """End the lease and move its job to ``phase``; the set's version grows for those who stay.

        :raises ValueError: if the lifecycle does not allow ``phase`` now; then nothing has changed.
        """
        with self._mutex:
            lease = self._leases.get(token)
            if lease is None:
                return False
            record = self._jobs[lease.job_id]
            if phase is record.phase or not may_become(record.phase, phase):
                raise ValueError(f"phase: a {record.phase} job cannot be released to {phase}")
            self._drop(lease)
            staying = self._members(lease.placement)
            now_s, members = self._clock.now_s(), len(staying) + 1
            self._history.remember(lease, record.job, now_s, members)
            again = self._requeued.pop(lease.job_id, None)
            if again is None:
                self._keep(with_changes(record, process=None), phase)
            else:
                self._keep(with_changes(record, process=None, owner=again), JobPhase.WAITING)
            state = LeaseState.EXCLUSIVE if len(staying) == 1 else LeaseState.TRIAL
            version = self._counters.next_set_version(lease.placement)
            self._move_members(staying, state, version, now_s, members)
            self._counters.count_change(lease.placement)
            if lease.placement.node in self._forgotten:
                self.forget_node(lease.placement.node)
            return True

    def tell_of_booking(self, booking_id: int, token: int) -> bool:
        """Remember that the holder of this lease is told of the booking; return whether it was not before."""
        with self._mutex:
            untold = any(each.booking_id == booking_id and token not in each.told for each in self.bookings)
            self.bookings = tuple(
                replace(each, told=each.told | {token}) if each.booking_id == booking_id else each
                for each in self.bookings
            )
            return untold

    def finish_waiting(self, job_id: str, phase: JobPhase) -> bool:
        """End a job that holds no lease; return whether anything changed."""
        with self._mutex:
            record = self._jobs.get(job_id)
            if record is None or record.phase not in (JobPhase.WAITING, JobPhase.YIELDED):
                return False
            if not may_become(record.phase, phase):
                return False
            self._keep(record, phase)
            return True

    def save_progress(self, job_id: str, progress: Progress, observation: Observation | None) -> None:
        """Record how far the job has come and what was seen under its present set."""
        with self._mutex:
            record = self._jobs.get(job_id)
            if record is not None:
                job = record.job.with_progress(progress)
                begun, times = (
                    (record.phase, record.owner, record.process),
                    (record.started_s, record.ended_s),
                )
                self._put_job(JobRecord(job, *begun, observation, *times))

    def _put_node(self, node: Node) -> None:
        self._nodes[node.name] = node
        self._nodes_by_name = None

    def _put_job(self, record: JobRecord) -> None:
        job_id = record.job.job_id
        self._jobs[job_id] = record
        self._index.job_saved(record, self._leases.get(self._token_of.get(job_id, 0)))

    def _put_lease(self, lease: Lease) -> None:
        self._leases[lease.token] = lease
        self._index.lease_saved(lease)

    def _members(self, placement: Placement) -> list[Lease]:
        return [self._leases[token] for token in self._sets.get(placement.gpu_uuids, ())]

    def _drop(self, lease: Lease) -> None:
        self._index.lease_ended(lease)
        self._index.slots_used(self._jobs[lease.job_id], -1)
        del self._leases[lease.token]
        del self._token_of[lease.job_id]
        uuids = lease.placement.gpu_uuids
        self._sets[uuids].remove(lease.token)
        if not self._sets[uuids]:
            del self._sets[uuids]

    def _move_members(
        self, staying: list[Lease], state: LeaseState, version: int, now_s: float, members: int
    ) -> None:
        """Give those who stay the new version; the time up to now is divided among all ``members``."""
        for lease in staying:
            asked = lease.state is LeaseState.YIELDING and state is not LeaseState.EXCLUSIVE
            self._put_lease(
                with_changes(
                    lease,
                    state=LeaseState.YIELDING if asked else state,
                    set_version=version,
                    trial_since_s=None if state is LeaseState.EXCLUSIVE else now_s,
                    charged_s=lease.charged_at(now_s, members),
                    charged_until_s=now_s,
                )
            )

    def _check_versions(self, placement: Placement, seen: Mapping[str, int]) -> None:
        node = self._nodes.get(placement.node)
        there = set() if node is None else {gpu.uuid for gpu in node.gpus}
        self._counters.check(placement, there, seen)

    def _keep(self, record: JobRecord, phase: JobPhase) -> None:
        job_id = record.job.job_id
        if phase in FINAL_PHASES:
            del self._jobs[job_id]
            ended = self._ended[job_id] = with_changes(record, phase=phase, ended_s=self._clock.now_s())
            self._index.job_saved(ended, None)
        else:
            self._put_job(with_changes(record, phase=phase))
