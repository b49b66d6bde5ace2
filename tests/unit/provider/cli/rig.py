"""What the command line's tests are made of: an outcome of a command, and a cluster with the real loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.provider.wiring import Store
from tests.builders import make_node

OWNER = "scheduler-1"


@dataclass(frozen=True)
class Outcome:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@dataclass
class Cluster:
    """The provider's tables with the real admission loop over them; tasks are moved by hand."""

    store: Store
    loop: AdmissionLoop
    readings: Sequence[GpuReading] = field(default_factory=tuple)

    def add_node(self, name: str = "n1", gpus: int = 1, model: str = "T4", **changes: Any) -> None:
        self.store.ledger.save_nodes([make_node(name, gpus, model, **changes).node])

    def add(self, *jobs: Job) -> None:
        for job in jobs:
            self.store.ledger.add_waiting(job, OWNER)

    def plan(self) -> CycleReport:
        report = self.loop.run_once(self.readings)
        assert report.planned, report.problem
        return report

    def lease(self, job_id: str) -> Lease:
        return next(lease for lease in self.store.ledger.view().leases if lease.job_id == job_id)

    def start(self, *job_ids: str) -> None:
        for job_id in job_ids:
            assert self.store.ledger.set_running(self.lease(job_id).token, f"process-of-{job_id}")

    def end(self, job_id: str) -> None:
        self.store.ledger.release(self.lease(job_id).token, JobPhase.FINISHED)


QueueRoute = Callable[[], list[dict[str, Any]]]
"""Returns the items that the API's queue has for a user who may see everything."""


def set_pool(name: str, slots: int | None, description: str = "") -> None:
    """Give Airflow a pool of this size, or none of this name."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session(scoped=False) as session:
        session.execute(delete(Pool).where(Pool.pool == name))
        if slots is not None:
            session.add(Pool(pool=name, slots=slots, description=description, include_deferred=False))
