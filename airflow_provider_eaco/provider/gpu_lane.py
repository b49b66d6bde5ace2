"""Tasks with a GPU request, from hand-over to the end of their processes: the heartbeat's steps (decision 7).

Every step can fail by itself; the executor fences them, and each starts from what is stored, so that the next
heartbeat makes good what this one could not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import Finding, Reason
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import GpuRequest
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.core.ports import LedgerView, Occupant
from airflow_provider_eaco.engine.progress import (
    InvalidReportError,
    Report,
    TaskInstruction,
    instructions,
    parse_report,
)
from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.audit import ReasonLog, text_of
from airflow_provider_eaco.provider.endings import EndingBook
from airflow_provider_eaco.provider.energy_book import EnergyBook
from airflow_provider_eaco.provider.follow_ups import FollowUps
from airflow_provider_eaco.provider.groups import GroupTable
from airflow_provider_eaco.provider.holding import HeldTask, HoldingArea
from airflow_provider_eaco.provider.host import ExecutorHost
from airflow_provider_eaco.provider.instructions import read_progress, write_instruction
from airflow_provider_eaco.provider.intake import take_in
from airflow_provider_eaco.provider.launching import Launcher, records_by_id
from airflow_provider_eaco.provider.memory_watch import MemoryWatch
from airflow_provider_eaco.provider.plain_lane import PlainLane
from airflow_provider_eaco.provider.pool_sizes import PoolSizes
from airflow_provider_eaco.provider.pools import acting
from airflow_provider_eaco.provider.running import RunningGroup
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.slotless import SlotlessTasks
from airflow_provider_eaco.provider.task_instances import TaskFacts

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# How often the meters report their nodes, so that a node that fell silent can be told from one that is idle.
INVENTORY_INTERVAL_S = 5.0
# The device model of a simulated node is told again what it already knows, in case its file was lost.
OCCUPY_INTERVAL_S = 5.0
# Rows of held tasks are compared with the ledger when a task is new, and this often in case rows were lost:
# reading a thousand of them in every heartbeat would cost more than the admission itself.
COMPARE_INTERVAL_S = 3.0


class GpuLane:
    """The waiting and running GPU tasks of one executor."""

    def __init__(
        self,
        host: ExecutorHost,
        services: Services,
        plain: PlainLane,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self.services = services
        self._plain = plain
        self._monotonic = monotonic
        self.holding = HoldingArea(services.settings.backfill_priority)
        self.groups = GroupTable(services.dispatcher, services.settings.kill_grace_s, monotonic)
        self.reasons = ReasonLog(host, monotonic)
        self.energy = EnergyBook(services, self.groups, monotonic)
        self.memory = MemoryWatch(services, self.groups, monotonic)
        self.endings = EndingBook(host, services, self.groups, self.energy, self.memory)
        self._follow_ups = FollowUps(services.session)
        self._pool_sizes = PoolSizes(services, monotonic)
        self._launcher = Launcher(host, services, self.holding, self.groups)
        self.also_shown: SlotlessTasks | None = None
        self._revoked: set[str] = set()
        self._view: LedgerView | None = None
        self._told: dict[str, TaskInstruction] = {}
        self._nodes: dict[str, NodeMeter] = {}
        self._inventory_at_s = float("-inf")
        self._compared_at_s = float("-inf")
        self._occupants: Sequence[Occupant] | None = None
        self._occupied_at_s = float("-inf")
        # Whether the ledger may have lost leases of tasks that run here: at the start, and after any trouble.
        self._is_ledger_in_doubt = True

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of this machine's nodes, as last reported."""
        return tuple(self._nodes)

    def accept(self, workload: Any, request: GpuRequest, now_s: float, session: Session | None) -> None:
        """Hold a workload; write its waiting job through ``session``, where one was handed in.

        Without the row (no session, no tables, a rollback) the next heartbeat writes it.
        """
        task = HeldTask(workload, request, now_s)
        self.holding.add(task)
        if session is None or not acting(self.services.settings.pools):
            return
        try:
            self.services.enqueue(session, task.job(), self._host.owner)
        except StoreUnavailableError as error:
            log.warning("A waiting job is stored later: job_id=%s error=%s", task.job_id, error)

    def end(self) -> None:
        """Release and report the groups that are gone; end those that Airflow no longer wants."""
        self._view = None
        self._carry_out_revocations()
        self.endings.retry_releases()
        gone = self._launcher.settle(self.groups.ended())
        ended = self._follow_ups.settled(self.memory.returned(gone))
        if ended:
            job_ids = [each.group.job_id for each in ended]
            reports = self._reports(each.group for each in ended)
            self.endings.close(ended, self._facts(job_ids), reports)
            self.reasons.forget(job_ids)
            for job_id in job_ids:
                self._told.pop(job_id, None)
        living = [group.job_id for group in self.groups]
        if living:
            self.groups.kill_unwanted(self._facts(living))

    def progress(self) -> None:
        """Take what the residents have reported into the ledger; record processes not recorded yet."""
        for group in self.groups:
            if group.begun and not group.recorded:
                self._launcher.record(group)
        reports = self._reports(self.groups)
        if reports:
            take_in(self.services.ledger, self.services.profiles, reports)

    def hold(self) -> None:
        """Complete the held tasks with what Airflow's database knows, and have each stored as waiting."""
        self.holding.complete(self._facts)
        for task in self.holding:
            if task.facts is not None and self._mode_of(task) is PoolMode.OFF:
                self._pass_through(task)
        ledger = self.services.ledger
        for job_id in self.holding.take_superseded():
            ledger.finish_waiting(job_id, JobPhase.REMOVED)
        compared_s = self._monotonic() - self._compared_at_s
        if not len(self.holding) or (not self.holding.has_news and compared_s < COMPARE_INTERVAL_S):
            return
        unsaved = self.holding.unsaved(records_by_id(ledger.view()), self._host.owner)
        if unsaved:
            with self.services.session() as session:
                for job in unsaved:
                    self.services.enqueue(session, job, self._host.owner)
        self.holding.has_news, self._compared_at_s = False, self._monotonic()

    def report_nodes(self) -> None:
        """Store this machine's nodes, GPUs and what their meters read, now and then."""
        if self._monotonic() - self._inventory_at_s < INVENTORY_INTERVAL_S:
            return
        self._nodes = {
            node.name: meter for meter in self.services.meters for node in meter.telemetry.inventory()
        }
        self.services.inventory.reconcile(time.time())
        self.services.save_readings(self._read_meters())
        self._inventory_at_s = self._monotonic()
        if self._occupants is None:
            # To a meter that knows nobody yet, tasks of an earlier scheduler would be strangers.
            self.occupy()

    def size_pools(self) -> None:
        """Create or size the Airflow pools of the GPU pools, where that is needed and no user has done it."""
        self._pool_sizes.keep(are_held=len(self.holding) > 0)

    def admit(self) -> None:
        """Run one admission cycle; fail what was rejected, remember why the rest waits."""
        shown = 0 if self.also_shown is None else len(self.also_shown)
        if not len(self.holding) and not len(self.groups) and not shown:
            return
        self._view = None
        if self._is_ledger_in_doubt and self._has_lost_leases():
            return
        report = self.services.admission.run_once(self._read_meters())
        # Not only what is news for a kind: a job may come to an answer that stands already.
        for decided in report.decided:
            keys = [(job_id, self._key_of(job_id)) for job_id in decided.job_ids]
            self.reasons.note([each for each in keys if each[1] is not None], decided.decision)
        for rejection in report.rejected:
            self._reject(rejection.job_id, text_of(rejection.decision))
        if report.problem is not None:
            self._is_ledger_in_doubt = True
            log.warning("The admission cycle was cut short: %s", report.problem)
        for task in self.holding:
            if task.facts is not None and self._mode_of(task) is PoolMode.OBSERVE:
                self._pass_through(task)
        self.reasons.flush()

    def launch(self) -> None:
        """Start the held tasks that hold a lease now."""
        if not len(self.holding):
            return
        due = self._launcher.due(self._present(), self._nodes)
        facts = self._facts(task.job_id for task, _ in due)
        for task, lease in due:
            meter = self._nodes.get(lease.placement.node)
            self._launcher.launch(task, lease, facts.get(task.job_id), meter)

    def occupy(self) -> None:
        """Tell this machine's meters who holds which GPUs, as one change; close energy records."""
        occupants = _occupants(self._present(), self._nodes)
        now_s = self._monotonic()
        if occupants == self._occupants and now_s - self._occupied_at_s < OCCUPY_INTERVAL_S:
            self.energy.close_ended()
            return
        for meter in self.services.meters:
            own = [each for each in occupants if self._nodes.get(each.placement.node) is meter]
            meter.telemetry.occupy(own)
        self._occupants, self._occupied_at_s = occupants, now_s
        self.energy.close()

    def show(self, look: Callable[[LedgerView], None]) -> None:
        """Let somebody look at this heartbeat's ledger, while tasks run."""
        if len(self.groups):
            look(self._present())

    def instruct(self) -> None:
        """Write what the residents have to know, where it changed."""
        if not len(self.groups):
            return
        leases = {lease.token: lease for lease in self._present().leases}
        own = [leases[group.token] for group in self.groups if group.token in leases]
        key_of = {group.job_id: group.key for group in self.groups}
        told = instructions(own, leases.values())
        changed = [each for each in told if self._told.get(each.job_id) != each]
        if not changed:
            return
        with self.services.session() as session:
            for each in changed:
                write_instruction(session, key_of[each.job_id], each.as_json())
        self._told.update({each.job_id: each for each in changed})

    def drop_unwanted(self) -> list[Any]:
        """Forget held tasks that Airflow has taken back: cleared, failed, skipped, or never committed.

        Return the keys of those whose id is gone: they were cleared, or their hand-over never happened.
        """
        held = {task.job_id: task.key for task in self.holding}
        facts = self._facts(held)
        for job_id in held:
            own = facts.get(job_id)
            if own is None or own.state != "queued":
                self.drop(job_id)
        return [key for job_id, key in held.items() if job_id not in facts]

    def drop(self, job_id: str) -> None:
        """Forget a held task and take its row out of the queue."""
        task = self.holding.remove(job_id)
        if task is None:
            return
        queued = self._host.queue().get(task.key)
        if queued is not None and str(queued.ti.id) == job_id:
            del self._host.queue()[task.key]
        self.reasons.forget([job_id])
        self.services.ledger.finish_waiting(job_id, JobPhase.REMOVED)

    def note_trouble(self, finding: Finding) -> None:
        """Tell every held task why nothing moves."""
        self._is_ledger_in_doubt = True
        self.reasons.note_finding([(task.job_id, task.key) for task in self.holding], finding)
        self.reasons.flush()

    def known_ids(self) -> set[str]:
        """Return the jobs that this executor has in memory."""
        shown = () if self.also_shown is None else self.also_shown
        return {task.job_id for task in self.holding} | {group.job_id for group in self.groups} | set(shown)

    def revoke(self, job_id: str) -> None:
        """Have a held task dropped and a running one ended at the next heartbeat, when we may write."""
        self._revoked.add(job_id)

    def _carry_out_revocations(self) -> None:
        while self._revoked:
            job_id = next(iter(self._revoked))
            self.drop(job_id)
            group = self.groups.of_job(job_id)
            if group is not None:
                self.groups.kill(group)
            self._revoked.discard(job_id)

    def _has_lost_leases(self) -> bool:
        """Tell whether tasks run here whose leases the ledger has lost; held ones then learn why they wait.

        Tables that were made anew or restored show GPUs as free on which processes live, and give tokens out
        again that those processes hold. Until they have ended nothing may be granted.
        """
        leases = {(lease.token, lease.job_id) for lease in self.services.ledger.view().leases}
        lost = [group for group in self.groups if (group.token, group.job_id) not in leases]
        self._is_ledger_in_doubt = bool(lost)
        if lost:
            problem = f"the ledger has lost the leases of {len(lost)} running tasks, which have to end first"
            self.note_trouble(Finding(Reason.MISCONFIGURED, {"problem": problem}))
        return bool(lost)

    def _present(self) -> LedgerView:
        """Return the ledger as it was after this heartbeat's admission: one read for all that follows it."""
        if self._view is None:
            self._view = self.services.ledger.view()
        return self._view

    def _read_meters(self) -> list[GpuReading]:
        return [reading for meter in self.services.meters for reading in meter.telemetry.read()]

    def _key_of(self, job_id: str) -> Any | None:
        task = self.holding.get(job_id)
        if task is not None:
            return task.key
        return None if self.also_shown is None else self.also_shown.key_of(job_id)

    def _reject(self, job_id: str, text: str) -> None:
        task = self.holding.remove(job_id)
        if task is not None:
            self._host.fail_queued(task.workload, text)
            self.reasons.forget([job_id])

    def _pass_through(self, task: HeldTask) -> None:
        self.holding.remove(task.job_id)
        self._plain.pass_through(task.job_id)
        self.services.ledger.finish_waiting(task.job_id, JobPhase.REMOVED)

    def _mode_of(self, task: HeldTask) -> PoolMode:
        pool = "" if task.facts is None else task.facts.pool
        return self.services.settings.pool_for(pool).mode

    def _facts(self, job_ids: Iterable[str]) -> Mapping[str, TaskFacts]:
        with self.services.session() as session:
            return task_instances.facts_of(session, job_ids)

    def _reports(self, groups: Iterable[RunningGroup]) -> list[Report]:
        by_key = {group.key: group for group in groups}
        if not by_key:
            return []
        with self.services.session() as session:
            values = read_progress(session, by_key)
        reports = []
        for key, value in values.items():
            group = by_key[key]
            if value.get("token") != group.token:
                continue
            try:
                reports.append(parse_report(group.job_id, value))
            except InvalidReportError as error:
                log.warning("A progress report is ignored: job_id=%s error=%s", group.job_id, error)
            except Exception:
                # What one task wrote must not keep the leases of all others.
                log.exception("A progress report cannot be read: job_id=%s", group.job_id)
        limits = self.services.limits
        return reports if limits is None else limits.marked(reports)


def _occupants(view: LedgerView, nodes: Iterable[str]) -> list[Occupant]:
    here = set(nodes)
    records = records_by_id(view)
    return [
        Occupant(
            lease.job_id,
            lease.token,
            records[lease.job_id].job.request.family,
            lease.placement,
            records[lease.job_id].job.request.gpu_memory_mib,
            lease.granted_s,
        )
        for lease in view.leases
        if lease.placement.node in here and lease.job_id in records
    ]
