"""Task tries that another executor runs, as the sampler of their machine sees them (mode ``observe``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.energy.records import RunNote
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.ports import EnergyPart, JobRecord, LedgerView, RunMeter


@dataclass(frozen=True, slots=True)
class ObservedTask:
    """One task try with processes on GPUs that nobody of ours has granted.

    ``job_id`` is the id of the task instance, ``process`` names its process among all that this machine ever
    had, and ``pids`` are the pids of that process and of those above it, the nearest first, as they are
    inside the namespace of the process. ``gpu_uuids`` are those that it uses now, or used last.
    ``running_s`` is the age of its process, ``ended_s`` how long that has been gone, ``None`` while it lives.
    ``from_start``: it was looked at from its beginning. ``alone``: nobody else was seen on its GPUs, and who
    is there was always known. ``energy`` is what it has used in all so far, so that
    a report may arrive twice; job and token in it, and in ``note``, mean nothing. ``meter`` is what was seen
    of it until its end.
    """

    job_id: str
    process: str
    pids: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    running_s: float
    from_start: bool
    alone: bool = False
    ended_s: float | None = None
    energy: tuple[EnergyPart, ...] = ()
    note: RunNote | None = None
    meter: RunMeter | None = None


@dataclass(frozen=True, slots=True)
class ObservedReport:
    """The tasks that a sampler watches on the node, or watched until lately; ``machine`` is its host."""

    node: str
    machine: str
    tasks: tuple[ObservedTask, ...] = ()


def seen_with_observed(
    view: LedgerView,
    observed: Sequence[Lease],
    records: Sequence[JobRecord],
    sampled: Collection[str],
    job_id: str,
) -> tuple[LedgerView, frozenset[str]]:
    """Return the ledger as if one observed job still waited, and those that ran before it held their GPUs.

    And the GPUs that tasks use which do not use the same set of them: residents share whole sets, so that
    these are nobody's to place on.

    :param observed: where the observed jobs run now, each once, oldest first.
    :param records: their jobs.
    :param sampled: the nodes whose GPUs a sampler reports; they are there for what is only decided.
    :param job_id: of an observed job; with any other all observed ones hold their GPUs.
    """
    own = next((lease for lease in observed if lease.job_id == job_id), None)
    before = [lease for lease in observed if own is None or _rank(lease) < _rank(own)]
    present = [*view.leases, *before]
    contested = {
        uuid
        for lease in before
        for other in present
        if other.placement.gpu_uuids != lease.placement.gpu_uuids
        for uuid in {*other.placement.gpu_uuids} & {*lease.placement.gpu_uuids}
    }
    residents = [lease for lease in before if contested.isdisjoint(lease.placement.gpu_uuids)]
    jobs = tuple(
        replace(record, phase=JobPhase.WAITING) if record.job.job_id == job_id else record
        for record in (*view.jobs, *records)
    )
    nodes = tuple(replace(node, available=True) if node.name in sampled else node for node in view.nodes)
    leases = (*view.leases, *(_as_resident(lease, residents) for lease in residents))
    partly = {uuid for lease in before if lease not in residents for uuid in lease.placement.gpu_uuids}
    seen = replace(view, jobs=jobs, nodes=nodes, leases=leases, kept_index=None)
    return seen, frozenset(partly | contested)


def _rank(lease: Lease) -> tuple[float, int]:
    return lease.granted_s, lease.token


def _as_resident(lease: Lease, residents: Sequence[Lease]) -> Lease:
    """Return it as held: what shares runs on together whatever we say, and so counts as confirmed."""
    beside = sum(other.placement == lease.placement for other in residents)
    return replace(lease, state=LeaseState.CONFIRMED if beside > 1 else LeaseState.EXCLUSIVE)
