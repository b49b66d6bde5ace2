"""The run: virtual time moves from event to event, and the live engine decides at each.

One instant, in this order, as in the executor's heartbeat: jobs end, residents report their epochs (one that
was asked to leaves), nodes change their power state, jobs arrive, the admission loop plans, and what it
granted begins.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress, Share
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.model.profile import ProfileBook, family_set
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import RunMeter
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.engine.prices import EnergyPricing
from airflow_provider_eaco.engine.profiling import ended_run, learn_run
from airflow_provider_eaco.simulator.beliefs import UNIT_S, believed_book
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.simulator.cluster import OutOfMemoryError, VirtualCluster
from airflow_provider_eaco.simulator.collecting import rare_collections
from airflow_provider_eaco.simulator.decisions import DecisionRecorder
from airflow_provider_eaco.simulator.energy_use import SimulatedUse, asleep_w, sees_nodes
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.reporting import Reporting
from airflow_provider_eaco.simulator.run_bounds import energy_solver
from airflow_provider_eaco.simulator.running import Happening
from airflow_provider_eaco.simulator.scenario import Scenario, told_work_s
from airflow_provider_eaco.simulator.steering import Steering
from airflow_provider_eaco.simulator.trace import TraceJob
from airflow_provider_eaco.simulator.trials import Trials

OWNER = "eaco-sim"

# Memory of a simulated GPU. Jobs ask for an equal share of it, so that it never binds: no table that we
# replay tells how much memory its jobs held.
GPU_MEMORY_MIB = 32 * 1024


# So often a policy may ask to look again while nothing at all happens; then its jobs will never start.
MOST_LOOKS = 1000
# Real-time demand is the same every day: who has not started within one, while nobody runs, never will.
HOURS = 24
HOUR_S = 3600.0


class SimulationError(EacoError):
    """A run that cannot go on; the message names the job and what it waits for."""


class Simulation:
    """One run of a scenario. After :meth:`run` the recording is complete."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        # Asked at every event.
        self._shares, self._learns, self._steers = scenario.shares, scenario.learns, scenario.steers
        self._demand = bool(scenario.settings.demand)
        self.recording = Recording()
        self.clock = VirtualClock()
        self.ledger = MemoryLedger(self.clock)
        settings = scenario.settings
        self._told_s = told_work_s(scenario)
        self.profiles = MemoryProfileStore(_beliefs_of(scenario))
        self.cluster = _cluster_of(scenario, self.recording)
        self._index_of: dict[str, int] = {}
        self._nodes = {name: self._node(name) for name in scenario.node_names}
        self.ledger.save_nodes(tuple(self._nodes.values()))
        self.decisions = DecisionRecorder(
            self.recording, self.profiles.book, self._left_s, self._index_of, scenario.truth.gpu_model
        )
        names = {settings.name, *(job.pool for job in scenario.jobs if job.pool)}
        airflow_pools = {name: AirflowPool(None) for name in sorted(names)}
        pool = PoolState(settings, airflow_pools, asleep_w=asleep_w(scenario))
        seen = sees_nodes(scenario)
        self._loop = AdmissionLoop(
            self.ledger,
            self.profiles,
            self.decisions,
            MemoryPlannerLock(self.clock),
            pools=lambda: (self._steering.seen(pool) if seen else pool,),
            owner=OWNER,
            report_timeout_s=None,
            ordering_of=scenario.ordering_of,
            pricing=EnergyPricing(energy_solver()),
            energy_use=SimulatedUse(scenario, self.recording, self.cluster, self.ledger),
            read_use_every_s=0.0,
        )
        self._trials = Trials(scenario, self._loop, self.profiles, self.ledger, self._nodes)
        self._reporting = Reporting(self.cluster, self.ledger, self.profiles, self._nodes, self._trials.touch)
        self._steering = Steering(self.cluster, self._index_of, obeys_sleep=scenario.obeys_sleep)
        self._look_again_s: float | None = None
        self._looks = 0
        self._ended_s = 0.0
        self._jobs = {job.job_id: job for job in scenario.jobs}
        self._waiting = self._next = 0
        self._arrival_s = self._next_arrival_s()
        self._not_alone: set[str] = set()

    @rare_collections()
    def run(self) -> Recording:
        """Simulate until the last job has ended that can start beside real-time demand.

        :raises SimulationError: if a job can never start and no demand is in its way.
        """
        left = len(self.scenario.jobs)
        while left and (now_s := self._next_instant()) is not None:
            self.clock.move_to(now_s)
            ended, news = self._pass_events(now_s)
            left -= ended
            arrived = self._admit_arrivals(now_s)
            news = news or self._look_is_due(now_s)
            # With nobody in the queue and nothing reported there is nothing to decide.
            if news or (self._waiting and (ended or arrived)):
                left -= self._plan(now_s)
        self.cluster.close(self._ended_s)
        if left:
            self.recording.end_at(self._ended_s)
        return self.recording

    def _next_instant(self) -> float | None:
        """Return when something happens or is to be looked at; ``None``: demand keeps all that wait."""
        if self._shares and not self._waiting:
            again_s = math.inf if self._look_again_s is None else self._look_again_s
            self._reporting.pass_quiet_epochs(min(self._arrival_s, again_s))
        event_s = self.cluster.next_event_s()
        if event_s is not None and self._look_again_s is None and not self._demand:
            self._looks = 0
            return min(event_s, self._arrival_s)
        happening = [] if event_s is None else [event_s]
        if self._arrival_s < math.inf:
            happening.append(self._arrival_s)
        hour_s = self._next_hour_s()
        looks = [] if self._look_again_s is None else [self._look_again_s]
        if hour_s is not None:
            looks.append(hour_s)
        self._looks = self._looks + 1 if looks and not happening else 0
        if hour_s is not None and self._looks > HOURS:
            return None
        if not (happening or looks) or self._looks > MOST_LOOKS:
            raise SimulationError(self._stuck())
        return min(happening + looks)

    def _next_hour_s(self) -> float | None:
        """Return when real-time demand changes next, if anybody waits for it."""
        if not (self._demand and self._waiting):
            return None
        return (self.clock.now_s() // HOUR_S + 1) * HOUR_S

    def _look_is_due(self, now_s: float) -> bool:
        if self._demand and self._waiting and now_s % HOUR_S == 0:
            return True
        if self._look_again_s is None or now_s < self._look_again_s:
            return False
        self._look_again_s = None
        return True

    def _pass_events(self, now_s: float) -> tuple[int, bool]:
        """Carry out what happens now; return how many jobs ended, and whether there is something to plan."""
        ended, news = 0, False
        reports: list[str] = []
        for event in self.cluster.due(now_s):
            # Who steers has something to decide when GPUs fall free or a node changes, also without a queue.
            news = news or (self._steers and event.happening in {Happening.END, Happening.NODE})
            if event.happening is Happening.END:
                self._end(event.subject, now_s)
                ended += 1
            elif event.happening is Happening.EPOCH:
                reports.append(event.subject)
            elif event.happening is Happening.NODE:
                for job_id in event.started:
                    self._start(job_id)
        if reports:
            news = self._report(reports, now_s) or news
        return ended, news

    def _admit_arrivals(self, now_s: float) -> bool:
        arrived = self._arrival_s <= now_s
        while self._arrival_s <= now_s:
            self._queue(self.scenario.jobs[self._next], self._next)
            self._next += 1
            self._arrival_s = self._next_arrival_s()
        return arrived

    def _next_arrival_s(self) -> float:
        jobs = self.scenario.jobs
        return jobs[self._next].submit_s if self._next < len(jobs) else math.inf

    def _queue(self, job: TraceJob, number: int) -> None:
        settings = self.scenario.settings
        request = GpuRequest(
            gpus=job.gpus,
            family=job.family,
            gpu_memory_mib=GPU_MEMORY_MIB // settings.max_residents,
            max_stretch=job.stretch_limit,
        )
        waiting = Job(
            job_id=job.job_id,
            request=request,
            # Whose job it is where the trace tells: what the rule fair_share may go by.
            pool=job.pool or settings.name,
            queued_s=job.submit_s,
            order=OrderKey(job.submit_s, job.dag_id or self.scenario.benchmark, "job", number, job.job_id),
            priority=job.priority,
            progress=self._told_of(job),
        )
        self._add_waiting(waiting)

    def _told_of(self, job: TraceJob) -> Progress:
        told_s = self._told_s[job.job_id]
        if self.scenario.tells_run_times:
            return Progress(units_total=1, solo_unit_s=told_s)
        return Progress(units_total=max(1, math.floor(told_s / UNIT_S)))

    def _add_waiting(self, job: Job) -> None:
        self.ledger.add_waiting(job, OWNER)
        self.decisions.expect(job)
        self._waiting += 1

    def _plan(self, now_s: float) -> int:
        """Run one cycle and begin what it granted; return how many jobs were rejected."""
        self._reporting.tell_all()
        began = time.perf_counter()
        report = self._loop.run_once()
        self.recording.decision_s.append(time.perf_counter() - began)
        for problem in report.failures.values():
            raise SimulationError(f"the policy or the ordering failed: {problem}")
        for lease in report.granted:
            self._waiting -= 1
            self._begin(lease, now_s)
        self._trials.follow(report)
        self._steer(report, now_s)
        self.recording.confirmed += len(report.confirmed)
        self.recording.undone += len(report.yielding)
        self._waiting -= len(report.rejected)
        return len(report.rejected)

    def _steer(self, report: CycleReport, now_s: float) -> None:
        for placement in self._steering.carry_out(report.steers, now_s):
            # What they draw from now on is not what they draw at full power.
            self._not_alone.update(lease.job_id for lease in self.ledger.leases_on(placement))
        if report.look_again_s is not None and report.look_again_s <= now_s:
            raise SimulationError(f"the policy wants to look again at {report.look_again_s}, which is past")
        self._look_again_s = report.look_again_s

    def _begin(self, lease: Lease, now_s: float) -> None:
        job = self._jobs[lease.job_id]
        gpus = tuple(sorted(self._index_of[uuid] for uuid in lease.placement.gpu_uuids))
        if lease.state is not LeaseState.EXCLUSIVE:
            self.recording.trials += 1
        try:
            runs = self.cluster.place(job, lease.placement.node, gpus, now_s)
        except OutOfMemoryError:
            self._out_of_memory(lease)
            return
        if runs:
            self._start(lease.job_id)
        mates = self.ledger.leases_on(lease.placement)
        if len(mates) > 1:
            self._not_alone.update(mate.job_id for mate in mates)

    def _start(self, job_id: str) -> None:
        lease = self.ledger.lease_of(job_id)
        if lease is not None:
            self.ledger.set_running(lease.token, OWNER)
            self._reporting.begin(lease)

    def _out_of_memory(self, lease: Lease) -> None:
        """Let the newcomer fail and be tried again on GPUs of its own."""
        self.recording.out_of_memory += 1
        record = self.ledger.record_of(lease.job_id)
        self.ledger.set_running(lease.token, OWNER)
        self.ledger.release(lease.token, JobPhase.FAILED)
        if record is not None:
            alone = replace(record.job, request=replace(record.job.request, share=Share.NEVER))
            self._add_waiting(alone)

    def _end(self, job_id: str, now_s: float) -> None:
        if self._learns:
            self._reporting.tell(job_id)
        self._reporting.forget(job_id)
        lease, record = self.ledger.lease_of(job_id), self.ledger.record_of(job_id)
        self.cluster.remove(job_id, now_s)
        self.cluster.forget(job_id)
        self._ended_s = now_s
        if lease is None or record is None:
            raise SimulationError(f"job {job_id} ran without a lease")
        self._reporting.tell_set(lease.placement)
        self.ledger.release(lease.token, JobPhase.FINISHED)
        self._trials.touch(lease)
        if self._learns:
            nodes = [self._nodes[lease.placement.node]]
            run = ended_run(record, lease, nodes, JobPhase.FINISHED, self._meter(record.job))
            if run is not None:
                learn_run(self.profiles, run, now_s)

    def _meter(self, job: Job) -> RunMeter | None:
        """Return what a meter saw of a run that was always alone and at full power, as the truth has it."""
        if job.job_id in self._not_alone:
            return None
        truth, request = self.scenario.truth, job.request
        family = family_set((request.family,))
        alone = truth.performance(family, request.gpus)
        power_w = None if alone is None else alone.power_w
        return RunMeter(utilisation_pct=truth.utilisation_pct(family), power_w=power_w, scope=truth.scope)

    def _report(self, job_ids: list[str], now_s: float) -> bool:
        """Take the reports of a finished epoch in; return whether there is something to plan."""
        leaving: list[Lease] = []
        in_trial = False
        for job_id in job_ids:
            lease = self._reporting.tell(job_id)
            if lease is not None:
                in_trial = in_trial or lease.state is LeaseState.TRIAL
                if lease.state is LeaseState.YIELDING:
                    leaving.append(lease)
        for lease in leaving:
            self._give_way(lease, now_s)
        # A trial that ends with somebody's leaving was news already.
        if leaving or self._waiting:
            return True
        if not in_trial:
            return False
        self._reporting.tell_sharing()
        return self._trials.are_news(now_s, self._look_again_s)

    def _give_way(self, lease: Lease, now_s: float) -> None:
        self._reporting.tell_set(lease.placement)
        self.cluster.remove(lease.job_id, now_s)
        self.ledger.release(lease.token, JobPhase.YIELDED)
        record = self.ledger.record_of(lease.job_id)
        if record is not None:
            self._add_waiting(record.job)

    def _left_s(self, job_id: str) -> float:
        record = self.ledger.record_of(job_id)
        done = 0 if record is None else record.job.progress.units_done
        return max(0.0, self._told_s[job_id] - done * UNIT_S)

    def _node(self, name: str) -> Node:
        gpus = []
        for index in range(self.scenario.gpus_per_node):
            uuid = f"{name}/{index:02d}"
            self._index_of[uuid] = index
            gpus.append(Gpu(uuid, name, index, self.scenario.truth.gpu_model, GPU_MEMORY_MIB))
        return Node(name, tuple(gpus))

    def _stuck(self) -> str:
        waiting = [record.job.job_id for record in self.ledger.view().jobs]
        reasons = {row.job_id: row.reason for row in self.recording.decisions}
        first = waiting[0] if waiting else "unknown"
        return (
            f"{len(waiting)} jobs can never start; the first is {first} ({reasons.get(first, 'undecided')})"
        )


def _beliefs_of(scenario: Scenario) -> ProfileBook:
    return believed_book(
        scenario.truth,
        scenario.belief,
        gpu_counts={job.gpus for job in scenario.jobs},
        max_residents=scenario.settings.max_residents,
        unit_s=None if scenario.tells_run_times else UNIT_S,
        error=scenario.belief_error,
        draws=scenario.draws,
    )


def _cluster_of(scenario: Scenario, recording: Recording) -> VirtualCluster:
    return VirtualCluster(
        scenario.truth,
        scenario.node_names,
        scenario.gpus_per_node,
        scenario.sleep,
        recording,
        epochs=scenario.shares,
    )
