"""Tasks that take more GPU memory than they were admitted with: told, and ended where others would pay. And
those whose memory is not back when they have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.placement import Lease, Placement
from airflow_provider_eaco.core.model.pool import MemoryGrowth
from airflow_provider_eaco.core.model.profile import ProfileKey, family_set
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.engine.memory_guard import Overuse, learn_out_of_memory, overuses
from airflow_provider_eaco.engine.profiling import learn_memory
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.groups import EndedGroup, GroupTable
from airflow_provider_eaco.provider.memory_return import LEFT_BEHIND, Memory, MemoryReturn
from airflow_provider_eaco.provider.running import RunningGroup
from airflow_provider_eaco.provider.services import Services

log = logging.getLogger(__name__)


class MemoryWatch:
    """Looks at this executor's own tasks; each is told once, and ended at most once."""

    def __init__(
        self, services: Services, groups: GroupTable, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._services = services
        self._groups = groups
        self._returns = MemoryReturn(services.meters, monotonic)
        self._told: set[int] = set()

    def look(self, view: LedgerView) -> None:
        """Warn of every own task that grew, and end one of each set beyond the pool's margin (C36)."""
        groups = {group.token: group for group in self._groups}
        self._told &= groups.keys()
        ended: set[Placement] = {
            lease.placement
            for lease in view.leases
            if lease.token in groups and groups[lease.token].is_ending
        }
        elsewhere: dict[int, int] = {}
        for meter in self._services.meters if groups else ():
            elsewhere |= meter.peaks_mib()

        def used_mib(lease: Lease) -> int | None:
            if lease.token not in groups or self._services.workers.has_worker(lease.placement.node):
                return elsewhere.get(lease.token)
            return self._used_mib(lease)

        for each in overuses(view, self._services.profiles, used_mib):
            group = groups.get(each.lease.token)
            if group is None:
                continue
            if each.lease.token not in self._told:
                self._told.add(each.lease.token)
                self._tell(each, group, view.now_s)
            if self._has_to_go(each) and each.lease.placement not in ended:
                ended.add(each.lease.placement)
                self._end(each, group, view)

    def returned(self, ended: Iterable[EndedGroup]) -> list[EndedGroup]:
        """Return those of the groups that are gone whose memory need not be waited for any more (C27).

        Afterwards each of them whose memory did not come back has that in its story and in its task's log. On
        a node with a worker that has done the waiting.
        """
        self._returns.keep({(group.job_id, group.token) for group in self._groups})
        found = []
        for each in ended:
            seen = self._returns.look((each.group.job_id, each.group.token))
            if seen is Memory.AWAITED:
                continue
            found.append(each)
            if seen is Memory.LEFT:
                self._note_left(each.group)
        return found

    def _note_left(self, group: RunningGroup) -> None:
        try:
            self._write(group, "memory_left", LEFT_BEHIND, time.time())
        except EacoError as error:
            log.warning("Memory left behind is not in its story: job_id=%s error=%s", group.job_id, error)

    def note_end(self, record: JobRecord, lease: Lease, view: LedgerView, phase: JobPhase) -> None:
        """Remember of a run that left for want of memory what it needs; to be called before its lease falls,
        after its last report was taken in (C38). Who is beside nobody has not run out beside others.
        """
        beside = sum(other.placement == lease.placement for other in view.leases) - 1
        if phase is not JobPhase.YIELDED or not record.job.progress.out_of_memory or beside < 1:
            return
        seen_mib = self._used_mib(lease)
        needed_mib = learn_out_of_memory(self._services.profiles, record, lease, view, seen_mib)
        text = "left because the memory of its shared GPUs did not suffice; it will run alone"
        if needed_mib is not None:
            text += f", and its family is taken to need {needed_mib} MiB"
        self._services.decisions.record_event(record.job.job_id, "out_of_memory", text, view.now_s)

    def _used_mib(self, lease: Lease) -> int | None:
        for meter in self._services.meters:
            seen = None if meter.runs is None else meter.runs.run_meter(lease.job_id, lease.token)
            if seen is not None:
                return seen.memory_peak_mib
        return None

    def _has_to_go(self, overuse: Overuse) -> bool:
        pool = self._services.settings.pool_for(overuse.record.job.pool)
        beyond = overuse.excess_mib > pool.memory_margin_mib
        return pool.memory_growth is MemoryGrowth.STOP and beyond and overuse.neighbours > 0

    def _tell(self, overuse: Overuse, group: RunningGroup, now_s: float) -> None:
        text = f"uses {overuse.used_mib} MiB of a GPU and was admitted with {overuse.allowed_mib} MiB"
        log.warning("A task grew: job_id=%s %s neighbours=%s", group.job_id, text, overuse.neighbours)
        self._write(group, "memory_grew", text, now_s)

    def _end(self, overuse: Overuse, group: RunningGroup, view: LedgerView) -> None:
        text = (
            f"ended, since it uses {overuse.used_mib} MiB of a GPU that it shares and was admitted with "
            f"{overuse.allowed_mib} MiB; name gpu_memory as it is needed"
        )
        log.warning("A task is ended to spare its neighbours: job_id=%s %s", group.job_id, text)
        group.ended_because = text
        self._groups.kill(group)
        self._write(group, "memory_exceeded", text, view.now_s)
        placement, request = overuse.lease.placement, overuse.record.job.request
        models = {gpu.model for node in view.nodes for gpu in node.gpus if gpu.uuid in placement.gpu_uuids}
        if len(models) == 1:
            key = ProfileKey(family_set((request.family,)), models.pop(), len(placement.gpu_uuids))
            learn_memory(self._services.profiles, key, overuse.used_mib, view.now_s)

    def _write(self, group: RunningGroup, event: str, text: str, now_s: float) -> None:
        self._services.decisions.record_event(group.job_id, event, text, now_s)
        if group.log_path:
            try:
                task_log.append(group.log_path, f"GPU memory: this task {text}", "warning")
            except OSError as error:
                log.warning("A task's log cannot be written: %s error=%s", group.key, error)
