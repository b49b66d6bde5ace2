"""Memory of GPUs that jobs share: who takes more than it was admitted with, and what ran out (C36, C38).

Nothing here, and nothing in a driver without MPS or MIG, can keep a process from allocating. What can be done
is to see it, to end the one that grew before a neighbour fails, and to admit it with more next time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.gpu import Gpu
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.profile import ProfileKey, family_set
from airflow_provider_eaco.core.policy.facts import memory_peak_mib
from airflow_provider_eaco.core.ports import JobRecord, LedgerView, ProfileStore
from airflow_provider_eaco.engine.profiling import learn_memory


@dataclass(frozen=True, slots=True)
class Overuse:
    """One job that takes ``used_mib`` of a GPU and was admitted with ``allowed_mib``; ``neighbours`` hold
    the same GPUs.
    """

    lease: Lease
    record: JobRecord
    used_mib: int
    allowed_mib: int
    neighbours: int

    @property
    def excess_mib(self) -> int:
        return self.used_mib - self.allowed_mib


def overuses(
    view: LedgerView, profiles: ProfileStore, used_mib: Callable[[Lease], int | None]
) -> list[Overuse]:
    """Return the jobs that take more than they were admitted with, the largest excess first.

    :param used_mib: the most that the holder of a lease was seen to use on one of its GPUs, ``None`` if that
        is not known. A job of which nothing was known when it was admitted has no limit.
    """
    records = {record.job.job_id: record for record in view.jobs}
    gpus = {gpu.uuid: gpu for node in view.nodes for gpu in node.gpus}
    found = []
    for lease in view.leases:
        record, used = records.get(lease.job_id), used_mib(lease)
        if record is None or used is None:
            continue
        allowed = _allowed_mib(record, lease, gpus, profiles)
        if allowed is not None and used > allowed:
            neighbours = sum(
                other.placement == lease.placement and other.token != lease.token for other in view.leases
            )
            found.append(Overuse(lease, record, used, allowed, neighbours))
    return sorted(found, key=lambda each: (-each.excess_mib, each.lease.token))


def learn_out_of_memory(
    profiles: ProfileStore, record: JobRecord, lease: Lease, view: LedgerView, seen_mib: int | None
) -> int | None:
    """Remember that the job does not fit beside those who hold its GPUs now; return what it needs at least.

    That is more than they leave of the GPU, and no less than it was seen to use. ``None``: nothing is known
    of the GPU or of a neighbour, so nothing is learnt.
    """
    gpus = {gpu.uuid: gpu for node in view.nodes for gpu in node.gpus}
    records = {each.job.job_id: each for each in view.jobs}
    usable = [gpus[uuid].memory_usable_mib for uuid in lease.placement.gpu_uuids if uuid in gpus]
    left_mib = min((amount for amount in usable if amount is not None), default=None)
    model = _model_of(lease, gpus)
    for other in view.leases:
        if other.placement != lease.placement or other.token == lease.token or left_mib is None:
            continue
        beside = records.get(other.job_id)
        taken = None if beside is None else _allowed_mib(beside, other, gpus, profiles)
        left_mib = None if taken is None else left_mib - taken
    if left_mib is None or model is None:
        return None
    needed_mib = max(left_mib + 1, seen_mib or 0)
    key = ProfileKey(family_set((record.job.request.family,)), model, len(lease.placement.gpu_uuids))
    learn_memory(profiles, key, needed_mib, view.now_s)
    return needed_mib


def _allowed_mib(
    record: JobRecord, lease: Lease, gpus: Mapping[str, Gpu], profiles: ProfileStore
) -> int | None:
    request, model = record.job.request, _model_of(lease, gpus)
    count = len(lease.placement.gpu_uuids)
    solo = None if model is None else profiles.book().solo_of(request.family, model, count)
    return memory_peak_mib(request.gpu_memory_mib, solo)


def _model_of(lease: Lease, gpus: Mapping[str, Gpu]) -> str | None:
    models: Sequence[str] = [gpus[uuid].model for uuid in lease.placement.gpu_uuids if uuid in gpus]
    return models[0] if len(set(models)) == 1 else None
