"""A present that a test describes by hand: GPUs, who holds them, who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.provider.whatif.carry_on import CarryOn
from airflow_provider_eaco.provider.whatif.outcome import JobOutcome, Outcome
from airflow_provider_eaco.provider.whatif.present import Present
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.builders import NOW_S, make_book, make_job, make_node


@dataclass
class Scene:
    """One node ``n`` of T4 and jobs of one GPU each, at ``NOW_S``."""

    gpus: int = 1
    settings: PoolSettings = field(default_factory=lambda: PoolSettings(policy="exclusive"))
    profiles: Sequence[Any] = ()
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.ledger = MemoryLedger(self.clock)
        self.clock.move_to(NOW_S)
        self.ledger.save_nodes([make_node("n", self.gpus, "T4").node])

    def wait(self, job_id: str, family: str = "A", **changes: Any) -> Job:
        job = make_job(job_id, family, changes.pop("gpus", 1), **changes)
        self.ledger.add_waiting(job, "executor")
        return job

    def run(self, job_id: str, family: str = "A", gpu: int = 0, **changes: Any) -> None:
        job = self.wait(job_id, family, **changes)
        place = Placement("n", (f"n-gpu{gpu:02d}",))
        there = tuple(lease.job_id for lease in self.ledger.leases_on(place))
        state = LeaseState.TRIAL if there else LeaseState.EXCLUSIVE
        lease = self.ledger.grant(Launch(job, place, there), state, self.view().gpu_versions, "executor")
        self.ledger.set_running(lease.token, "process")

    def view(self) -> LedgerView:
        return self.ledger.view()

    def present(self) -> Present:
        pool = PoolState(self.settings, {"eaco": AirflowPool(None)})
        return Present(self.view(), (pool,), make_book(*self.profiles))

    def outcome(self) -> Outcome:
        return CarryOn(self.present()).run()


def by_id(outcome: Outcome) -> dict[str, JobOutcome]:
    """Return the jobs of an outcome by their id."""
    return {job.job_id: job for job in outcome.jobs}
