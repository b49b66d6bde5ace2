"""From a lease to a running process group: the last checks, the environment, the start."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from airflow.utils.state import TaskInstanceState

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError, StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.ports import JobRecord, LaunchOrder, LedgerView
from airflow_provider_eaco.dispatch.environment import LOG_FILE_VARIABLE, granted_environment
from airflow_provider_eaco.engine.strangers import used_before_start
from airflow_provider_eaco.provider import task_log
from airflow_provider_eaco.provider.adoption import find_process
from airflow_provider_eaco.provider.groups import EndedGroup, GroupTable
from airflow_provider_eaco.provider.holding import HeldTask, HoldingArea
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.running import RunningGroup
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.provider.workloads import ENTRY_POINT

log = logging.getLogger(__name__)


class Launcher:
    """Starts the leased jobs whose workloads this executor holds, here and on nodes with a worker.

    A task that was sent to another machine is held on until its node says that it has begun.
    """

    def __init__(
        self, host: ExecutorHost, services: Services, holding: HoldingArea, groups: GroupTable
    ) -> None:
        self._host = host
        self._services = services
        self._holding = holding
        self._groups = groups
        self._elsewhere: set[int] = set()

    def due(self, view: LedgerView, nodes: Iterable[str]) -> list[tuple[HeldTask, Lease]]:
        """Return held tasks that were granted GPUs and are not started yet: on one of ``nodes``, which are
        this machine's, or on one with a worker.
        """
        here = set(nodes)
        leases = {lease.job_id: lease for lease in view.leases}
        found = []
        for record in view.jobs:
            task, lease = self._holding.get(record.job.job_id), leases.get(record.job.job_id)
            if task is None or lease is None or record.phase is not JobPhase.LEASED:
                continue
            node = lease.placement.node
            if node not in here and not self._services.workers.has_worker(node):
                self._note_elsewhere(lease)
            elif self._groups.of_job(task.job_id) is None:
                found.append((task, lease))
        return found

    def launch(self, task: HeldTask, lease: Lease, facts: TaskFacts | None, meter: NodeMeter | None) -> bool:
        """Start the task under its lease; return whether its process lives now, or was sent to its node.

        A task that is no longer queued loses its lease and its place here. One whose process cannot be
        started is failed with the cause, so that Airflow's retries decide. While the dispatcher is not ready
        the task keeps its lease and its place. One whose GPUs are lost, or used by somebody else since they
        were granted, waits again, at its old place.
        """
        if facts is None or facts.state != TaskInstanceState.QUEUED:
            # Two schedulers hold one task where each took the other for dead: it may run already, by the
            # other's hand, and then its lease is the other's to end.
            if not self._has_begun(lease):
                self._services.ledger.release(lease.token, JobPhase.REMOVED)
            self._forget(task)
            return False
        problem = self._problem_of_gpus(lease, facts, meter)
        if problem:
            log.warning("The task waits again, granted GPUs are %s: job_id=%s", problem, task.job_id)
            self._services.ledger.release(lease.token, JobPhase.WAITING)
            return False
        try:
            reference = self._services.dispatcher.start(self._order(task, lease, meter))
        except NotReadyError as error:
            log.debug("A granted task waits for the next heartbeat: job_id=%s reason=%s", task.job_id, error)
            return False
        except (LaunchError, OSError) as error:
            log.warning("A granted task could not be started: job_id=%s error=%s", task.job_id, error)
            self._services.ledger.release(lease.token, JobPhase.FAILED)
            self._forget(task)
            self._host.fail_queued(task.workload, f"the task's process could not be started: {error}")
            return False
        self._note_sent(task, lease, reference)
        return True

    def _problem_of_gpus(self, lease: Lease, facts: TaskFacts, meter: NodeMeter | None) -> str | None:
        """Return what is wrong with the granted GPUs now, if anything is."""
        lost = _lost_gpus(lease, meter)
        if lost:
            return f"lost: {', '.join(lost)}"
        used = self._used_by_strangers(lease, facts, meter)
        return f"used by others: {', '.join(used)}" if used else None

    def _note_sent(self, task: HeldTask, lease: Lease, reference: str) -> None:
        # The log of a task elsewhere is on its node.
        elsewhere = self._services.workers.has_worker(lease.placement.node)
        log_path = None if elsewhere else task.workload.log_path
        group = RunningGroup(task.key, task.job_id, reference, lease.token, recorded=False, log_path=log_path)
        group.begun, group.announced = self._services.dispatcher.poll(reference).begun, False
        self._groups.add(group)
        if group.begun:
            self._announce(group)

    def settle(self, ended: Iterable[EndedGroup]) -> list[EndedGroup]:
        """Announce the groups that have begun elsewhere; return those of ``ended`` that ever have.

        One that has not waits again, at its old place, or is failed if its node could not start it.
        """
        for group in self._groups:
            if group.begun and not group.announced:
                self._announce(group)
        return [each for each in ended if each.group.begun or not self._take_again(each)]

    def _announce(self, group: RunningGroup) -> None:
        group.announced = True
        task = self._holding.get(group.job_id)
        if task is not None:
            self._forget(task)
        self._host.note_running(group.key, group.reference)
        self.record(group)

    def _take_again(self, ended: EndedGroup) -> bool:
        """Undo a start that came to nothing; return whether its task is still held."""
        group = ended.group
        task = self._holding.get(group.job_id)
        if task is None:
            return False
        failed = ended.exit_code is not None
        why = ended.cause or "its node did not begin it in time"
        log.warning("A task was not started on its node: %s why=%s", group.reference, why)
        self._services.ledger.release(group.token, JobPhase.FAILED if failed else JobPhase.WAITING)
        self._groups.remove(group)
        if failed:
            self._forget(task)
            self._host.fail_queued(task.workload, f"the task's process could not be started: {why}")
        return True

    def _has_begun(self, lease: Lease) -> bool:
        """Tell whether somebody has begun the lease's run; if not, it never will on a node with a worker."""
        if self._services.workers.has_worker(lease.placement.node):
            return not self._services.workers.withdraw(lease)
        return find_process(lease.job_id, lease.token) is not None

    def record(self, group: RunningGroup) -> None:
        """Tell the ledger which process holds the lease; a lease that is gone ends the process."""
        try:
            valid = self._services.ledger.set_running(group.token, group.reference)
        except StoreUnavailableError as error:
            log.warning("A started task is recorded later: job_id=%s error=%s", group.job_id, error)
            return
        group.recorded = True
        if not valid:
            log.warning("A lease ended while its task was started: job_id=%s", group.job_id)
            self._groups.kill(group)

    def _used_by_strangers(self, lease: Lease, facts: TaskFacts, meter: NodeMeter | None) -> list[str]:
        """Return those of the lease's GPUs on which somebody else is, as of the last look at them (C34).

        A node with a worker looks by itself.
        """
        if meter is None:
            return []
        margin_mib = self._services.settings.pool_for(facts.pool).memory_margin_mib
        gpus = [gpu for node in meter.telemetry.inventory() for gpu in node.gpus]
        alone = lease.state is LeaseState.EXCLUSIVE
        return used_before_start(lease.placement, gpus, meter.telemetry.read(), margin_mib, alone=alone)

    def _order(self, task: HeldTask, lease: Lease, meter: NodeMeter | None) -> LaunchOrder:
        state = None if meter is None else meter.simulated_state
        environment = granted_environment(lease, task.request.family, state)
        if task.workload.log_path and not self._services.workers.has_worker(lease.placement.node):
            environment[LOG_FILE_VARIABLE] = str(task_log.prepare(task.workload.log_path))
        payload = self._host.renew_token(task.workload).model_dump_json()
        return LaunchOrder(task.job_id, lease.token, ENTRY_POINT, payload, environment, lease.placement)

    def _forget(self, task: HeldTask) -> None:
        # A newer workload of the same key (the task was cleared and queued again) is not this one's to drop.
        if self._holding.get(task.job_id) is task:
            self._holding.remove(task.job_id)
        queued = self._host.queue().get(task.key)
        if queued is not None and str(queued.ti.id) == task.job_id:
            del self._host.queue()[task.key]

    def _note_elsewhere(self, lease: Lease) -> None:
        if lease.token not in self._elsewhere:
            self._elsewhere.add(lease.token)
            log.warning(
                "A job was granted GPUs of a node that this machine cannot start tasks on: job_id=%s node=%s",
                lease.job_id,
                lease.placement.node,
            )


def _lost_gpus(lease: Lease, meter: NodeMeter | None) -> list[str]:
    """Return those of the lease's GPUs that the meter no longer has, or knows to be out of order (C51)."""
    if meter is None:
        return []
    gpus = [gpu for node in meter.telemetry.inventory() for gpu in node.gpus]
    sound = {gpu.uuid for gpu in gpus if gpu.health is not GpuHealth.UNHEALTHY}
    return [uuid for uuid in lease.placement.gpu_uuids if uuid not in sound]


def records_by_id(view: LedgerView) -> Mapping[str, JobRecord]:
    """Return the unfinished jobs by id."""
    return {record.job.job_id: record for record in view.jobs}
