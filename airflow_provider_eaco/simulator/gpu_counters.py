"""Counters of GPUs, in memory: how often each was granted or released, and the versions of its sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.gpu import Gpu
from airflow_provider_eaco.core.model.placement import Lease, Placement


class GpuCounters:
    """Counters that only grow, also over a time in which a GPU is not there.

    ``present`` are the compare-and-set counters of the GPUs that are there.
    """

    def __init__(self) -> None:
        self.present: dict[str, int] = {}
        self._absent: dict[str, int] = {}
        self._set_versions: dict[str, int] = {}
        self._seen: Mapping[str, int] | None = None

    def restore(self, present: Mapping[str, int], leases: Iterable[Lease]) -> None:
        """Go on from these counters and from the versions of the sets that hold GPUs."""
        self._seen = None
        self.present = dict(present)
        for lease in leases:
            for uuid in lease.placement.gpu_uuids:
                self._set_versions[uuid] = max(lease.set_version, self._set_versions.get(uuid, 0))

    def seen(self) -> Mapping[str, int]:
        """Return the present counters as they are now; later changes do not show in it."""
        if self._seen is None:
            self._seen = dict(self.present)
        return self._seen

    def exchange(self, gone: Iterable[Gpu], come: Iterable[Gpu]) -> None:
        """Keep the counters of the GPUs that are there apart from those of GPUs that may come back."""
        self._seen = None
        for gpu in gone:
            self._absent[gpu.uuid] = self.present.pop(gpu.uuid)
        for gpu in come:
            self.present[gpu.uuid] = self._absent.pop(gpu.uuid, 0)

    def check(self, placement: Placement, there: Collection[str], seen: Mapping[str, int]) -> None:
        """Check that nothing has changed since ``seen`` was read.

        :param there: the GPUs of the node that are there.
        :raises LeaseConflictError: naming the first GPU that is gone or has changed.
        """
        for uuid in placement.gpu_uuids:
            if uuid not in there or seen.get(uuid) != self.present[uuid]:
                raise LeaseConflictError(f"GPU {uuid} on node {placement.node!r} changed since the snapshot")

    def count_change(self, placement: Placement) -> None:
        """Count a grant or a release."""
        self._seen = None
        for uuid in placement.gpu_uuids:
            self.present[uuid] += 1

    def next_set_version(self, placement: Placement) -> int:
        """Return a version for the set on these GPUs that none of them has had before."""
        versions = self._set_versions
        version = 1 + max(versions.get(uuid, 0) for uuid in placement.gpu_uuids)
        versions.update(dict.fromkeys(placement.gpu_uuids, version))
        return version
