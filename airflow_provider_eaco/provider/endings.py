"""What follows the end of a granted task's processes: the lease falls, the run teaches, Airflow is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import EacoError, StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import JobRecord, LedgerView, RunMeter
from airflow_provider_eaco.engine.profiling import ended_run, learn_run
from airflow_provider_eaco.engine.progress import Report
from airflow_provider_eaco.provider.energy_book import EnergyBook
from airflow_provider_eaco.provider.groups import EndedGroup, GroupTable
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.intake import take_in
from airflow_provider_eaco.provider.memory_watch import MemoryWatch
from airflow_provider_eaco.provider.plain_lane import failure_text
from airflow_provider_eaco.provider.running import RunningGroup, ending_of
from airflow_provider_eaco.provider.services import Services
from airflow_provider_eaco.provider.shown import counted
from airflow_provider_eaco.provider.task_instances import TaskFacts

log = logging.getLogger(__name__)

# A lease has to fall even where the lifecycle does not allow the phase that fits best (a group that was never
# recorded as running cannot have yielded).
_NEXT_BEST = (JobPhase.FAILED, JobPhase.REMOVED)


class EndingBook:
    """Ends leases of groups that are gone, once each, also when the ledger is out of reach for a while."""

    def __init__(
        self,
        host: ExecutorHost,
        services: Services,
        groups: GroupTable,
        energy: EnergyBook,
        memory: MemoryWatch,
    ) -> None:
        self._host = host
        self._services = services
        self._groups = groups
        self._energy = energy
        self._memory = memory
        self._unreleased: list[tuple[RunningGroup, JobPhase]] = []

    def close(
        self, ended: Sequence[EndedGroup], facts: Mapping[str, TaskFacts], reports: Sequence[Report]
    ) -> None:
        """Report every ended group to Airflow; release what it held as far as the ledger is in reach."""
        view = self._last_view(reports)
        # Airflow calls a run that a user marked a success one, too; the training itself knows better (C62).
        cut_short = {report.job_id for report in reports if not report.is_complete}
        for each in ended:
            group = each.group
            own = facts.get(group.job_id)
            ending = ending_of(
                None if own is None else own.state,
                known=own is not None,
                exit_code=each.exit_code,
                requeued=group.key in self._host.queue(),
            )
            self._groups.remove(group)
            why = group.ended_because or failure_text(each.exit_code)
            self._host.note_ended(group.key, ending.event, why)
            self._unreleased.append((group, ending.phase))
            if view is not None:
                self._learn(view, group, ending.phase, teaches=group.job_id not in cut_short)
        self.retry_releases()

    def retry_releases(self) -> None:
        """Release the leases of groups that are gone.

        :raises StoreUnavailableError: if the ledger is out of reach; what is left is released next time.
        """
        while self._unreleased:
            group, phase = self._unreleased[0]
            self._release(group, phase)
            self._unreleased.pop(0)
            self._energy.note_released(group)

    def _release(self, group: RunningGroup, phase: JobPhase) -> None:
        for wanted in (phase, *_NEXT_BEST):
            try:
                self._services.ledger.release(group.token, wanted)
            except ValueError:
                continue
            return

    def _last_view(self, reports: Sequence[Report]) -> LedgerView | None:
        try:
            if reports:
                take_in(self._services.ledger, self._services.profiles, reports)
            return self._services.ledger.view()
        except StoreUnavailableError as error:
            log.warning("The last reports of ended tasks are lost: error=%s", error)
            return None

    def _learn(self, view: LedgerView, group: RunningGroup, phase: JobPhase, *, teaches: bool) -> None:
        lease = next((each for each in view.leases if each.token == group.token), None)
        record = next((each for each in view.jobs if each.job.job_id == group.job_id), None)
        if lease is None or record is None:
            return
        # Whatever the run left behind, nothing of it may stand before the release of its GPUs.
        try:
            if teaches:
                self._teach(view, lease, record, phase)
        except Exception:
            log.exception("A finished run teaches nothing: job_id=%s", group.job_id)
        self._energy.note_end(group, record, lease, view)
        try:
            self._memory.note_end(record, lease, view, phase)
            self._note(view, lease, record, phase)
        except EacoError as error:
            log.warning("The end of a run is not in its story: job_id=%s error=%s", group.job_id, error)

    def _teach(self, view: LedgerView, lease: Lease, record: JobRecord, phase: JobPhase) -> None:
        run = ended_run(record, lease, view.nodes, phase, self._meter_of(lease))
        if run is not None:
            learn_run(self._services.profiles, run, view.now_s)

    def _note(self, view: LedgerView, lease: Lease, record: JobRecord, phase: JobPhase) -> None:
        done = record.job.progress.units_done
        total = record.job.progress.units_total
        of = "an unknown number of" if total is None else total
        gpus = counted(len(lease.placement.gpu_uuids), "GPU")
        text = f"{phase.value} after {done} of {of} units; it has left {gpus} on {lease.placement.node}"
        broken = self._out_of_order(view, lease) if phase is JobPhase.FAILED else []
        if broken:
            text += f"; {', '.join(broken)} is out of order, which need not be the task's fault"
        self._services.decisions.record_event(record.job.job_id, "released", text, view.now_s)

    def _out_of_order(self, view: LedgerView, lease: Lease) -> list[str]:
        """Return those of its GPUs that failed: as meters here see them now, or as their node has told."""
        here = [node for meter in self._services.meters for node in meter.telemetry.inventory()]
        failed = {
            gpu.uuid
            for node in (*view.nodes, *here)
            for gpu in node.gpus
            if gpu.health is GpuHealth.UNHEALTHY
        }
        return [uuid for uuid in lease.placement.gpu_uuids if uuid in failed]

    def _meter_of(self, lease: Lease) -> RunMeter | None:
        for meter in self._services.meters:
            seen = None if meter.runs is None else meter.runs.run_meter(lease.job_id, lease.token)
            if seen is not None:
                return seen
        return None
