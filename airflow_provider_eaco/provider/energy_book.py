"""Energy records of one executor's GPU tasks: told while they run, closed and written down when they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_eaco.core.energy.accounting import RunEnergy
from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart, JobRecord, LedgerView
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.energy_record import (
    EnergyRecord,
    alone_unit_s,
    labels_beside,
    record_of_job,
    record_of_run,
    stretch_of,
)
from airflow_provider_eaco.provider.energy_text import energy_text
from airflow_provider_eaco.provider.groups import GroupTable
from airflow_provider_eaco.provider.instructions import write_energy_note
from airflow_provider_eaco.provider.running import RunningGroup
from airflow_provider_eaco.provider.services import Services

log = logging.getLogger(__name__)

# How often running tasks are told what they have used so far: one write each, and for many tasks more
# seldom, so that it stays a small part of the scheduler's time.
TELL_INTERVAL_S = 5.0
TELL_EACH_S = 0.05
# The look at its GPUs that still belongs to a run comes within a second of its end, if its meter looks.
LAST_LOOK_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class _Left:
    """A run whose lease has ended. ``at_s`` is the instant of its end on the store's clock; ``released_s`` is
    when its lease fell, on the steady one. ``is_here``: this scheduler's meters should have seen it; of a run
    on a node with a worker that node tells what it has missed.
    """

    group: RunningGroup
    stretch: float | None
    at_s: float
    is_here: bool = False
    released_s: float = float("-inf")


class EnergyBook:
    """Closes a record when a lease has ended and the meters know it; a record that cannot be stored now is
    stored later.
    """

    def __init__(
        self,
        services: Services,
        groups: GroupTable,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._groups = groups
        self._monotonic = monotonic
        self._ending: dict[int, _Left] = {}
        self._due: list[_Left] = []
        self._told: dict[int, Mapping[str, Any]] = {}
        self._told_at_s = float("-inf")

    def note_end(self, group: RunningGroup, record: JobRecord, lease: Lease, view: LedgerView) -> None:
        """Note how far the run came, while the ledger still knows its lease."""
        stretch = self._stretch(record, lease, view)
        is_here = not self._services.workers.has_worker(lease.placement.node)
        self._ending[group.token] = _Left(group, stretch, view.now_s, is_here)

    def note_released(self, group: RunningGroup) -> None:
        """Note that the lease is gone: its record can be closed once the meters know."""
        left = self._ending.pop(group.token, _Left(group, None, time.time()))
        self._due.append(replace(left, released_s=self._monotonic()))
        self._told.pop(group.token, None)

    def close(self, *, at_once: bool = False) -> None:
        """Store and write down the energy of jobs that have left; now and then also store what those have
        used so far that run. All of it ``at_once`` before nobody looks any more.

        :raises StoreUnavailableError: if the store is out of reach; the rest is closed next time.
        """
        self.close_ended(at_once=at_once)
        own = {(group.job_id, group.token) for group in self._groups}
        for meter in self._services.meters:
            if meter.live is not None:
                meter.live.write_interim(own, self._services.energy, at_once=at_once)

    def close_ended(self, *, at_once: bool = False) -> None:
        """Store and write down the energy of jobs that have left and of which all is measured; of all of them
        if ``at_once``.

        :raises StoreUnavailableError: if the store is out of reach; the rest is closed next time.
        """
        for left in tuple(self._due):
            if not at_once and self._awaits_look(left):
                continue
            try:
                self._close(left)
            except StoreUnavailableError:
                raise
            except Exception:
                log.exception("An energy record is left open: job_id=%s", left.group.job_id)
            self._due = [each for each in self._due if each is not left]

    def tell(self, view: LedgerView) -> None:
        """Let each running task know what it has used so far, where that has changed."""
        groups = [group for group in self._groups if group.is_task]
        interval_s = max(TELL_INTERVAL_S, TELL_EACH_S * len(groups))
        if not groups or self._monotonic() - self._told_at_s < interval_s:
            return
        self._told_at_s = self._monotonic()
        leases = {lease.token: lease for lease in view.leases}
        records = {record.job.job_id: record for record in view.jobs}
        changed = []
        for group in groups:
            lease, job = leases.get(group.token), records.get(group.job_id)
            found = None if lease is None or job is None else self._present(job, lease, view)
            if found is not None and found.as_json() != self._told.get(group.token):
                changed.append((group, found.as_json()))
        if not changed:
            return
        with self._services.session() as session:
            for group, value in changed:
                write_energy_note(session, group.key, group.token, value)
        self._told.update({group.token: value for group, value in changed})

    def _present(self, record: JobRecord, lease: Lease, view: LedgerView) -> EnergyRecord | None:
        factor, stretch = self._services.settings.carbon_g_per_kwh, self._stretch(record, lease, view)
        run = self._run_energy(lease.job_id, lease.token)
        if run is not None:
            label_of = {each.job.job_id: each.job.label for each in view.jobs}
            beside = labels_beside(lease, view.leases, label_of)
            beside |= {label_of.get(job_id, f"job {job_id}") for job_id in run.co_residents}
            return record_of_run(run, beside, stretch, factor)
        stored = self._services.energy.job_energy(lease.job_id)
        return None if stored is None else record_of_job(stored, stretch, factor)

    def _awaits_look(self, left: _Left) -> bool:
        if self._monotonic() - left.released_s >= LAST_LOOK_WAIT_S:
            return False
        run = self._run_energy(left.group.job_id, left.group.token)
        return run is not None and run.awaits_look

    def _close(self, left: _Left) -> None:
        group = left.group
        is_measured = any(
            meter.energy.write_energy(group.job_id, group.token, self._services.energy)
            for meter in self._services.meters
            if meter.energy is not None
        )
        stored = self._services.energy.job_energy(group.job_id)
        if stored is None:
            return
        # Its last part went by while no scheduler looked.
        if not is_measured and left.is_here:
            stored = self._as_lower_bound(group, stored)
        text = energy_text(record_of_job(stored, left.stretch, self._services.settings.carbon_g_per_kwh))
        self._services.decisions.record_event(group.job_id, "energy", text, left.at_s)
        if group.log_path:
            try:
                task_log.append(group.log_path, f"Energy: {text}", "info")
            except OSError as error:
                log.warning("An energy record is not in its task's log: %s error=%s", group.key, error)

    def _as_lower_bound(self, group: RunningGroup, stored: JobEnergy) -> JobEnergy:
        for uuid in stored.per_gpu_j:
            part = EnergyPart(group.job_id, group.token, uuid, None, 0.0, EnergyMethod.UNKNOWN, partial=True)
            self._services.energy.add(part)
        return replace(stored, partial=True)

    def _run_energy(self, job_id: str, token: int) -> RunEnergy | None:
        for meter in self._services.meters:
            run = None if meter.live is None else meter.live.run_energy(job_id, token)
            if run is not None:
                return run
        return None

    def _stretch(self, record: JobRecord, lease: Lease, view: LedgerView) -> float | None:
        try:
            unit_s = alone_unit_s(record, lease, view.nodes, self._services.profiles.book())
        except StoreUnavailableError:
            unit_s = None
        return stretch_of(record.job.progress, unit_s)
