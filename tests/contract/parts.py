"""What every contract suite is made of: a clock that the test moves, and small builders."""

from __future__ import annotations

from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import JobRecord, Ledger

START_S = 1_800_000_000.0


class ManualClock:
    """A clock that stands until the test moves it."""

    def __init__(self, now_s: float = START_S) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


def make_node(name: str = "n1", gpus: int = 4, model: str = "V100", memory_mib: int = 16384) -> Node:
    return Node(
        name,
        tuple(Gpu(f"GPU-{name}-{index}", name, index, model, memory_mib) for index in range(gpus)),
        host_memory_mib=65536,
    )


def make_job(job_id: str = "j1", family: str = "resnet", gpus: int = 1, queued_s: float = START_S) -> Job:
    return Job(
        job_id,
        GpuRequest(gpus=gpus, family=family, gpu_memory_mib=1000),
        pool="eaco",
        queued_s=queued_s,
        order=OrderKey(queued_s, "dag", "task", -1, job_id),
    )


def place(*indices: int, node: str = "n1") -> Placement:
    return Placement(node, tuple(f"GPU-{node}-{index}" for index in sorted(indices)))


def record_of(ledger: Ledger, job_id: str) -> JobRecord | None:
    """Return the job as the ledger's view shows it; ``None`` once it has ended."""
    return next((record for record in ledger.view().jobs if record.job.job_id == job_id), None)


def lease_of(ledger: Ledger, job_id: str) -> Lease | None:
    return next((lease for lease in ledger.view().leases if lease.job_id == job_id), None)


def grant(
    ledger: Ledger,
    job_id: str,
    placement: Placement,
    state: LeaseState = LeaseState.EXCLUSIVE,
    owner: str = "executor-1",
) -> Lease:
    """Grant the waiting job its placement from a fresh view, beside those who are there."""
    view = ledger.view()
    job = next(record.job for record in view.jobs if record.job.job_id == job_id)
    there = tuple(lease.job_id for lease in view.leases if lease.placement == placement)
    return ledger.grant(Launch(job, placement, there), state, view.gpu_versions, owner)
