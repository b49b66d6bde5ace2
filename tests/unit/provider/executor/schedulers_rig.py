"""Schedulers that die at random over one ledger, with the real executor, lanes and adoption, on virtual time.

What is not real: Airflow's task instances are objects in memory, and processes are entries of a table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import ProcessState
from airflow_provider_eaco.dispatch.process_group import ProcessReference
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.provider import adoption, housekeeping, launching
from airflow_provider_eaco.provider import executor as executor_module
from airflow_provider_eaco.provider import lanes as lanes_module
from airflow_provider_eaco.provider.executor import EacoExecutor
from airflow_provider_eaco.provider.gpu_lane import GpuLane
from airflow_provider_eaco.provider.housekeeping import Housekeeper
from airflow_provider_eaco.provider.lanes import Lanes
from airflow_provider_eaco.provider.plain_lane import PlainLane
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock
from tests.contract.metering_suite import KeptParts
from tests.contract.parts import ManualClock
from tests.unit.provider.executor.lane_rig import (
    START_S,
    FakeDispatcher,
    FakeMeter,
    LaneRig,
    Parts,
    make_workload,
)

GPUS = 4
# As Airflow counts: in these states a task instance has not ended.
LIVING = ("queued", "running")


class KilledError(BaseException):
    """The scheduler is gone at this very point: nothing of it may catch this."""


class Processes(FakeDispatcher):
    """The processes of one machine; a scheduler may die between the start of one and the note of it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.twice: list[str] = []

    def start(self, order: Any) -> str:
        if self.living(order.job_id):
            self.twice.append(order.job_id)
        self.orders.append(order)
        reference = str(ProcessReference.here(len(self.orders), 1, order.token, order.job_id))
        self.states[reference] = ProcessState(alive=True)
        if self._chance.random() < 0.05:
            raise KilledError
        return reference

    def living(self, job_id: str) -> list[str]:
        """Return the living processes of a job."""
        own = (each for each, state in self.states.items() if state.alive)
        return [each for each in own if each.endswith(f":{job_id}")]

    def find(self, job_id: str, token: int) -> ProcessReference | None:
        """Return the process that holds the claim of a lease."""
        found = [ProcessReference.parse(each) for each in self.living(job_id)]
        return next((each for each in found if each.token == token), None)


class Scheduler:
    """One scheduler with its executor. ``steps`` are those of its heartbeat in their order."""

    def __init__(self, number: int, site: Site, rig: LaneRig) -> None:
        self.number, self._site = number, site
        self.executor = EacoExecutor(parallelism=8)
        self.executor.job_id = number
        services = site.services(rig.services, self.executor.owner)
        self.lane = GpuLane(
            self.executor, services, PlainLane(self.executor, site.processes, 8, 10.0), site.clock.now_s
        )
        self._lanes = Lanes(self.executor, self.executor, site.processes, None)  # type: ignore[arg-type]  # fakes
        self._lanes.gpu = self.lane
        self.executor._lanes = self._lanes
        self._housekeeper = Housekeeper(services.ledger, services.dispatcher, 10.0, services.workers)

    @property
    def running(self) -> set[str]:
        """The job ids that Airflow's executor counts as running."""
        return {key.task_id for key in self.executor.running}

    def steps(self) -> Iterator[Callable[[], object]]:
        lane = self.lane
        yield from (lane.end, lane.progress, lane.report_nodes, lane.drop_unwanted, lane.hold)
        yield from (lane.admit, lane.launch, lane.occupy, lane.instruct, self._tidy)

    def adopt(self, orphans: list[Any]) -> None:
        """Take task instances of dead schedulers over; what is not taken is queued anew by Airflow."""
        for ti in orphans:
            ti.scheduler = self.number
        for ti in self._lanes.adopt(orphans):
            ti.state = "queued"
            self.executor.queue_workload(self._site.workloads[ti.id], None)  # type: ignore[arg-type]

    def _tidy(self) -> None:
        living = {scheduler.executor.owner for scheduler in self._site.schedulers}
        known, view = self.lane.known_ids(), self.lane.services.ledger.view()
        orphans = {
            record.job.job_id
            for record in view.jobs
            if record.job.job_id not in known
            and (record.owner == self.executor.owner or record.owner not in living)
        }
        self._housekeeper.tidy(view, orphans, self._site.facts_of(None, orphans))


class Site:
    """Two schedulers, one ledger, one machine with four GPUs, and Airflow's task instances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(START_S)
        self.processes = Processes(self.chance)
        self.workloads: dict[str, Any] = {}
        self.deaths = 0
        self.parts = Parts(
            ledger=MemoryLedger(self.clock),
            profiles=MemoryProfileStore(ProfileBook()),
            decisions=MemoryDecisionLog(),
            planner=MemoryPlannerLock(self.clock),
            energy=KeptParts(),
            meter=NodeMeter(FakeMeter(GPUS)),
        )
        self._rig = LaneRig(monkeypatch, parts=self.parts)
        monkeypatch.setattr(lanes_module.task_instances, "facts_of", self.facts_of)
        for module in (adoption, housekeeping, launching):
            monkeypatch.setattr(module, "find_process", self.processes.find)
        monkeypatch.setattr(lanes_module, "make_workload", lambda ti, executor: self.workloads[str(ti.id)])
        monkeypatch.setattr(executor_module, "renew_token", lambda workload, executor: workload)
        monkeypatch.setattr(EacoExecutor, "queue_workload", _queue)
        self._numbers = iter(range(1, 10_000))
        self.schedulers = [self._new(), self._new()]

    def services(self, base: Services, owner: str) -> Services:
        """Return the services of one scheduler, over the ledger of all."""
        settings = base.settings.pools[0]
        loop = AdmissionLoop(
            self.parts.ledger,
            self.parts.profiles,
            self.parts.decisions,
            self.parts.planner,
            pools=lambda: (PoolState(PoolSettings(settings.name), {"eaco": AirflowPool(None)}),),
            owner=owner,
            report_timeout_s=None,
        )
        fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
        return Services(**{**fields, "admission": loop, "dispatcher": self.processes})

    def _new(self) -> Scheduler:
        return Scheduler(next(self._numbers), self, self._rig)

    def facts_of(self, session: Any, job_ids: Any) -> dict[str, TaskFacts]:
        """Answer as Airflow's database would."""
        found = {job_id: self.workloads[job_id] for job_id in job_ids if job_id in self.workloads}
        return {
            job_id: TaskFacts(job_id, each.key, each.ti.state, "eaco", 1, 1, START_S, 1)
            for job_id, each in found.items()
        }

    # -- What happens

    def hand_over(self, job_id: str) -> None:
        """Let a scheduler queue a task that asks for one GPU."""
        workload, scheduler = make_workload(job_id, job_id), self.chance.choice(self.schedulers)
        ti = workload.ti
        ti.key, ti.state, ti.external_executor_id = workload.key, "queued", None
        ti.executor_config, ti.scheduler = {"eaco": {"gpus": 1, "share": "never"}}, scheduler.number
        self.workloads[job_id] = workload
        scheduler.executor.queue_workload(workload, None)  # type: ignore[arg-type]  # nothing is written

    def tasks_go_on(self, *, ends: float) -> None:
        """Let tasks tell Airflow that they run, and some of those that do come to their end."""
        for job_id, workload in self.workloads.items():
            ti, alive = workload.ti, self.processes.living(job_id)
            if ti.state == "queued" and alive:
                ti.state = "running"
            elif ti.state == "running" and self.chance.random() < ends:
                well = self.chance.random() < 0.8
                ti.state = "success" if well else "failed"
                self.processes.end(job_id, 0 if well else 1)

    def beat(self, *, dies: float = 0.0) -> None:
        """Let each scheduler run its heartbeat, or die before one of its steps; others then take over."""
        self.clock.advance(2.0)
        for scheduler in self.chance.sample(self.schedulers, len(self.schedulers)):
            if not self._lives_through(scheduler, dies):
                self.deaths += 1
                self.schedulers[self.schedulers.index(scheduler)] = self._new()
            scheduler.executor.get_event_buffer()
        self._adopt_orphans()

    def _adopt_orphans(self) -> None:
        living = {scheduler.number for scheduler in self.schedulers}
        orphans = [each.ti for each in self.workloads.values() if each.ti.state in LIVING]
        orphans = [ti for ti in orphans if ti.scheduler not in living]
        if orphans:
            self.chance.choice(self.schedulers).adopt(orphans)

    def _lives_through(self, scheduler: Scheduler, dies: float) -> bool:
        try:
            for step in scheduler.steps():
                if self.chance.random() < dies:
                    return False
                step()
        except KilledError:
            return False
        return True

    def replace_schedulers(self) -> None:
        """Let all schedulers die, and others come that look for orphans before their first heartbeat."""
        self.schedulers = [self._new() for _ in self.schedulers]
        self._adopt_orphans()

    # -- What is counted

    def counts(self) -> dict[str, set[str]]:
        """Return the jobs that run, as each side counts them."""
        view = self.parts.ledger.view()
        return {
            "executors": {job_id for scheduler in self.schedulers for job_id in scheduler.running},
            "Airflow": {job_id for job_id, each in self.workloads.items() if each.ti.state == "running"},
            "jobs": {record.job.job_id for record in view.jobs if record.phase is JobPhase.RUNNING},
            "leases": {lease.job_id for lease in view.leases},
            "processes": {job_id for job_id in self.workloads if self.processes.living(job_id)},
        }


def _queue(self: EacoExecutor, workload: Any, session: Any) -> None:
    # Airflow's own asks for a workload of its model.
    self.queue()[workload.key] = workload
    self._fenced("queue", lambda: self._accept(workload, session))
