"""Carries the present on in virtual time: the live admission loop decides, over a ledger in memory.

One instant, in this order, as in a heartbeat: what is through ends, who was asked to leave leaves, progress
is reported, the loop plans until it has nothing more to grant, and what it granted begins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import PastLease, UsedEnergy
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.engine.snapshots import SnapshotBuilder, gpu_pool_of
from airflow_provider_eaco.provider.whatif.outcome import Happened, Outcome, outcome_of
from airflow_provider_eaco.provider.whatif.present import Present
from airflow_provider_eaco.provider.whatif.runs import Run
from airflow_provider_eaco.provider.whatif.truth import Truth
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock

OWNER = "what-if"
# Bounds, so that a policy that never comes to rest ends the command and not the user's patience.
MOST_INSTANTS = 20_000
MOST_LOOKS = 200
_MOST_CYCLES_AT_ONCE = 20


class _Ledger(MemoryLedger):
    """The ledger in memory; what had ended before the what-if began is read from where it is stored."""

    def __init__(self, clock: VirtualClock, past: Callable[[float, float], Sequence[PastLease]]) -> None:
        super().__init__(clock)
        self._began_s = clock.now_s()
        self._past = past

    def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        before = self._past(after_s, min(until_s, self._began_s)) if after_s < self._began_s else ()
        return [*before, *super().past_leases(after_s, until_s)]


class _Use:
    """What was recorded, and what runs have used since."""

    def __init__(self, present: Present) -> None:
        self._recorded = present.energy_use
        self.parts: list[UsedEnergy] = []

    def used_since(self, since_s: float) -> Sequence[UsedEnergy]:
        recorded = () if self._recorded is None else self._recorded.used_since(since_s)
        return [*recorded, *(part for part in self.parts if part.end_s > since_s)]


class CarryOn:
    """One what-if. After :meth:`run`, ``first`` is what was done at the instant of the present."""

    def __init__(self, present: Present) -> None:
        self._present = present
        self._clock = VirtualClock()
        self._clock.move_to(present.view.now_s)
        self._ledger = _Ledger(self._clock, present.past)
        self._ledger.restore(present.view)
        self._use = _Use(present)
        self._loop = self._planner(present)
        readings = {reading.uuid: reading for reading in present.readings}
        self._snapshots = SnapshotBuilder(None).build(present.view, present.pools, present.profiles, readings)
        self._truth = Truth(self._snapshots)
        self._nodes = {node.name: node for node in present.view.nodes}
        self._runs: dict[str, Run] = {}
        self._events: list[tuple[float, int, str]] = []
        self._look_s = math.inf
        self._looks = 0
        self._counted_s: dict[Placement, float] = {}
        self._happened = Happened()
        self.first = CycleReport(planned=False)

    def _planner(self, present: Present) -> AdmissionLoop:
        return AdmissionLoop(
            self._ledger,
            MemoryProfileStore(present.profiles),
            MemoryDecisionLog(),
            MemoryPlannerLock(self._clock),
            pools=lambda: present.pools,
            owner=OWNER,
            # Nobody reports any more; who is silent now is not available in the view.
            report_timeout_s=None,
            pricing=present.pricing,
            energy_use=None if present.energy_use is None else self._use,
        )

    def run(self) -> Outcome:
        """Carry on until nothing happens any more, or nothing can be told any more."""
        self.first = self._cycle(self._present.readings)
        self._enter()
        self._begin(self.first.granted)
        self._plan()
        for _ in range(MOST_INSTANTS):
            at_s = self._next_s()
            if at_s is None:
                break
            self._clock.move_to(max(at_s, self._clock.now_s()))
            self._pass_events()
            self._plan()
        else:
            self._happened.cut_short = True
        return outcome_of(
            self._present,
            self._happened,
            endless=[run.family for run in self._runs.values() if run.end_s() == math.inf],
            estimated=self._truth.estimated,
            untold=self._truth.untold,
            until_s=self._clock.now_s(),
        )

    def _enter(self) -> None:
        """Take over who holds GPUs now; who has given them up is handed over again at once."""
        present = self._present
        records = {record.job.job_id: record for record in present.view.jobs}
        for snapshot in self._snapshots.values():
            for state in snapshot.nodes.values():
                for held in state.sets:
                    for resident in held.residents:
                        job_id = resident.job.job_id
                        lease = self._ledger.lease_of(job_id)
                        # Nodes may be in the snapshots of several pools.
                        if job_id not in self._runs and lease is not None:
                            run = self._truth.run_of(records[job_id], lease, state.node, present.view.now_s)
                            self._runs[job_id] = self._truth.resumed(run, resident, held, snapshot)
        for job_id, run in self._runs.items():
            lease = self._ledger.lease_of(job_id)
            if lease is not None and records[job_id].phase is JobPhase.LEASED:
                self._ledger.set_running(lease.token, OWNER)
            self._counted_s[run.placement] = present.view.now_s
            self._expect(run)
        for record in present.view.jobs:
            if record.phase is JobPhase.YIELDED:
                self._ledger.add_waiting(record.job, OWNER)

    def _cycle(self, readings: Sequence[GpuReading]) -> CycleReport:
        happened = self._happened
        report = self._loop.run_once(readings)
        happened.failures.update(report.failures)
        for item in report.decided:
            told = "; ".join(finding.text for finding in item.decision.findings)
            happened.reasons.update(dict.fromkeys(item.job_ids, told))
        happened.steered = happened.steered or bool(report.steers)
        self._look_s = min(self._look_s, report.look_again_s or math.inf)
        return report

    def _plan(self) -> None:
        """Plan until nothing more is granted at this instant."""
        self._look_s = math.inf
        # What others hold on a GPU stays; what else was read belongs to the past.
        foreign = [
            GpuReading(
                reading.uuid,
                self._clock.now_s(),
                foreign_memory_mib=reading.foreign_memory_mib,
                foreign_processes=reading.foreign_processes,
                foreign_by=reading.foreign_by,
            )
            for reading in self._present.readings
            if reading.foreign_memory_mib or reading.foreign_processes
        ]
        for _ in range(_MOST_CYCLES_AT_ONCE):
            self._report()
            report = self._cycle(foreign)
            self._begin(report.granted)
            if not (report.granted or report.confirmed or report.yielding):
                break
        self._watch()

    def _report(self) -> None:
        """Let the ledger know how far everybody is."""
        now_s = self._clock.now_s()
        for run in self._runs.values():
            run.advance(now_s)
            if run.news:
                self._ledger.save_progress(run.job_id, run.progress, run.seen)
                run.news = False

    def _begin(self, granted: Iterable[Lease]) -> None:
        now_s = self._clock.now_s()
        for lease in granted:
            record = self._ledger.record_of(lease.job_id)
            if record is None:
                continue
            self._count_energy(lease.placement)
            self._ledger.set_running(lease.token, OWNER)
            node = self._nodes[lease.placement.node]
            self._runs[lease.job_id] = self._truth.run_of(record, lease, node, now_s)
            self._happened.began.setdefault(lease.job_id, (now_s, lease.placement))
            self._pace(lease.placement)

    def _pace(self, placement: Placement) -> None:
        """Let everybody on these GPUs run as the present set does."""
        now_s = self._clock.now_s()
        members = self._members(placement)
        families = [run.family for run in members]
        for run in members:
            run.advance(now_s)
            lease = self._ledger.lease_of(run.job_id)
            if lease is not None:
                run.set_version = lease.set_version
            run.slowdown = self._truth.slowdown(run, families, self._pool_of(run.job_id))
            self._expect(run)

    def _watch(self) -> None:
        """Look at the boundaries of units where something hangs on them, and at ends of trials by time."""
        now_s = self._clock.now_s()
        limits = {pool.settings.name: pool.settings.trial_limit_s for pool in self._present.pools}
        for run in self._runs.values():
            lease = self._ledger.lease_of(run.job_id)
            state = LeaseState.EXCLUSIVE if lease is None else lease.state
            watched = state in {LeaseState.TRIAL, LeaseState.YIELDING}
            if watched != run.watched:
                run.watched = watched
                self._expect(run)
            if state is LeaseState.TRIAL and lease is not None and lease.trial_since_s is not None:
                over_s = lease.trial_since_s + limits[self._pool_of(run.job_id)]
                if over_s > now_s:
                    self._look_s = min(self._look_s, over_s)

    def _expect(self, run: Run) -> None:
        run.stamp += 1
        at_s = run.end_s()
        if run.watched:
            at_s = min(at_s, run.boundary_s())
        if at_s < math.inf:
            heapq.heappush(self._events, (at_s, run.stamp, run.job_id))

    def _next_s(self) -> float | None:
        """Return when something happens; ``None``: nothing does by itself any more."""
        while self._events:
            _, stamp, job_id = self._events[0]
            if job_id in self._runs and self._runs[job_id].stamp == stamp:
                break
            heapq.heappop(self._events)
        event_s = self._events[0][0] if self._events else math.inf
        if self._look_s < event_s:
            self._looks += 1
            return self._look_s if self._looks <= MOST_LOOKS else None
        self._looks = 0
        return None if event_s == math.inf else event_s

    def _pass_events(self) -> None:
        now_s = self._clock.now_s()
        while self._events and self._events[0][0] <= now_s:
            _, stamp, job_id = heapq.heappop(self._events)
            run = self._runs.get(job_id)
            if run is None or run.stamp != stamp:
                continue
            through = run.end_s() <= now_s
            run.advance(now_s)
            lease = self._ledger.lease_of(job_id)
            if through:
                self._leave(run, JobPhase.FINISHED)
                self._happened.ended_s[job_id] = now_s
            elif lease is not None and lease.state is LeaseState.YIELDING:
                self._ledger.save_progress(job_id, run.progress, run.seen)
                self._leave(run, JobPhase.YIELDED)
                record = self._ledger.record_of(job_id)
                if record is not None:
                    self._ledger.add_waiting(record.job, OWNER)
            else:
                self._expect(run)

    def _leave(self, run: Run, phase: JobPhase) -> None:
        self._count_energy(run.placement)
        self._ledger.release(run.token, phase)
        del self._runs[run.job_id]
        self._pace(run.placement)

    def _count_energy(self, placement: Placement) -> None:
        """Divide what the set has drawn since it was counted last among its members."""
        now_s = self._clock.now_s()
        since_s = self._counted_s.get(placement, now_s)
        self._counted_s[placement] = now_s
        members = self._members(placement)
        if not members or now_s <= since_s:
            return
        first = members[0]
        power_w = self._truth.power_w(first, [run.family for run in members], self._pool_of(first.job_id))
        if power_w is None:
            self._happened.is_energy_partial = True
        for run in members:
            part_j = None if power_w is None else power_w * (now_s - since_s) * run.time_scale / len(members)
            self._use.parts.append(UsedEnergy(run.job_id, placement.node, since_s, now_s, part_j))
            if part_j is not None:
                known = self._happened.energy_j
                known[run.job_id] = known.get(run.job_id, 0.0) + part_j

    def _members(self, placement: Placement) -> list[Run]:
        return [
            self._runs[lease.job_id]
            for lease in self._ledger.leases_on(placement)
            if lease.job_id in self._runs
        ]

    def _pool_of(self, job_id: str) -> str:
        record = self._ledger.record_of(job_id)
        return gpu_pool_of("" if record is None else record.job.pool, self._present.pools)
