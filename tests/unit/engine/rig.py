"""A small cluster in memory with the real loop: jobs are added, report, yield and end as tasks would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.progress import Report, TaskInstruction, UnitTime, ingest
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock
from tests.builders import NOW_S, make_book, make_node, make_pair, make_solo
from tests.contract.parts import ManualClock

OWNER = "executor-1"


def friendly_book() -> ProfileBook:
    """A and B share one T4 at 5 % loss; C was never measured with anybody."""
    return make_book(
        make_solo("A"), make_solo("B"), make_solo("C"), make_pair({"A": 1.05, "B": 1.05}, power_w=50.0)
    )


def unlimited(*settings: PoolSettings) -> list[PoolState]:
    """The declared pools, each with an Airflow pool of its name without a limit."""
    airflow_pools = {each.name: AirflowPool(None) for each in settings}
    return [PoolState(each, airflow_pools) for each in settings]


@dataclass
class Rig:
    """Stores in memory on one clock, nodes of T4s, and a loop over ``pools``."""

    book: ProfileBook = field(default_factory=friendly_book)
    pools: list[PoolState] = field(default_factory=lambda: unlimited(PoolSettings()))
    nodes: Sequence[str] = ("n1",)
    gpus: int = 1

    def __post_init__(self) -> None:
        self.clock = ManualClock(NOW_S)
        self.ledger = MemoryLedger(self.clock)
        self.profiles = MemoryProfileStore(self.book)
        self.log = MemoryDecisionLog()
        self.planner = MemoryPlannerLock(self.clock)
        self.ledger.save_nodes(
            [make_node(name, self.gpus, "T4", memory_mib=16_384).node for name in self.nodes]
        )
        self.loop = self.make_loop("planner-1")

    def make_loop(self, owner: str, **changes: object) -> AdmissionLoop:
        return AdmissionLoop(
            self.ledger,
            self.profiles,
            self.log,
            self.planner,
            pools=lambda: self.pools,
            owner=owner,
            report_timeout_s=None,
            **changes,  # type: ignore[arg-type]  # settings by name
        )

    def add(self, *jobs: Job) -> None:
        for job in jobs:
            self.ledger.add_waiting(job, OWNER)

    def lease(self, job_id: str) -> Lease | None:
        return next((lease for lease in self.ledger.view().leases if lease.job_id == job_id), None)

    def held(self, job_id: str) -> Lease:
        lease = self.lease(job_id)
        assert lease is not None, f"{job_id} holds nothing"
        return lease

    def phase(self, job_id: str) -> JobPhase:
        record = self.ledger.record_of(job_id)
        assert record is not None
        return record.phase

    def start(self, *job_ids: str) -> None:
        for job_id in job_ids:
            assert self.ledger.set_running(self.held(job_id).token, f"process-of-{job_id}")

    def unit(
        self, job_id: str, elapsed_s: float, *, total: int = 10, can_yield: bool = True
    ) -> tuple[TaskInstruction, ...]:
        """Let the job report one more unit that ran wholly under its present set."""
        lease = self.held(job_id)
        record = self.ledger.record_of(job_id)
        assert record is not None
        done = record.job.progress.units_done
        version = lease.set_version
        report = Report(
            job_id,
            lease.token,
            units_done=done + 1,
            units_total=total,
            can_yield=can_yield,
            recent=(UnitTime(done, elapsed_s, version, version),),
        )
        return ingest(self.ledger, self.profiles, [report])

    def end(self, job_id: str, phase: JobPhase = JobPhase.FINISHED) -> None:
        assert self.ledger.release(self.held(job_id).token, phase)

    def story(self, job_id: str) -> list[str]:
        return [row.event for row in self.log.events if row.job_id == job_id]
