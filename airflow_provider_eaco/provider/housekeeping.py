"""Rows that nobody looks after any more: of schedulers that are gone, of tasks that are over."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from enum import Enum

from airflow.utils.state import TaskInstanceState

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import Dispatcher, JobRecord, Ledger, LedgerView
from airflow_provider_eaco.engine.pool_manager import forget_silent_nodes
from airflow_provider_eaco.provider.adoption import find_process, parse_reference
from airflow_provider_eaco.provider.running import WANTED_STATES, ending_of
from airflow_provider_eaco.provider.services import NoWorkers, Workers
from airflow_provider_eaco.provider.task_instances import TaskFacts

log = logging.getLogger(__name__)

# A machine that is away for a day is not coming back under this name, or nobody minds that it is made anew.
FORGET_NODE_AFTER_S = 24 * 3600.0

_MAY_COME_BACK = frozenset(
    {
        TaskInstanceState.UP_FOR_RESCHEDULE,
        TaskInstanceState.DEFERRED,
        TaskInstanceState.SCHEDULED,
        TaskInstanceState.QUEUED,
        TaskInstanceState.RUNNING,
    }
)


class Process(Enum):
    """What is known of the process behind a lease."""

    ALIVE = "alive"
    GONE = "gone"
    ELSEWHERE = "elsewhere"


class Housekeeper:
    """Tidies rows whose executor cannot. What another living scheduler owns is left to it."""

    def __init__(
        self, ledger: Ledger, dispatcher: Dispatcher, kill_grace_s: float, workers: Workers | None = None
    ) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._kill_grace_s = kill_grace_s
        self._workers = workers or NoWorkers()

    def tidy(
        self, view: LedgerView, orphans: Collection[str], facts: Mapping[str, TaskFacts]
    ) -> tuple[str, ...]:
        """Bring the rows of these job ids in line with Airflow and the processes; return those changed.

        :param orphans: unfinished jobs that no living executor has in memory.
        :param facts: of the task instances that still exist.
        """
        leases = {lease.job_id: lease for lease in view.leases}
        changed = []
        for record in view.jobs:
            job_id = record.job.job_id
            if job_id in orphans and self._tidy_one(record, leases.get(job_id), facts.get(job_id)):
                changed.append(job_id)
        if changed:
            log.info("Tidied %s jobs that nobody looked after: %s", len(changed), ", ".join(changed))
        return tuple(changed)

    def forget_nodes(self, view: LedgerView) -> None:
        """Take nodes out of the inventory that have not reported for :data:`FORGET_NODE_AFTER_S`.

        Those with leases stay, unavailable, until the leases end.
        """
        gone = forget_silent_nodes(self._ledger, view, FORGET_NODE_AFTER_S)
        if gone:
            log.info("Forgot nodes that have not reported for a day: %s", ", ".join(gone))

    def _tidy_one(self, record: JobRecord, lease: Lease | None, facts: TaskFacts | None) -> bool:
        job_id = record.job.job_id
        if lease is None:
            if record.phase is JobPhase.YIELDED and facts is not None and facts.state in _MAY_COME_BACK:
                return False
            # Adoption or the next hand-over brings it back with its first queue time.
            return self._ledger.finish_waiting(job_id, JobPhase.REMOVED)
        reference, process = self._process_of(record, lease)
        wanted = facts is not None and facts.state in WANTED_STATES
        if process is Process.ALIVE:
            if not wanted:
                self._dispatcher.kill(reference, self._kill_grace_s)
            return False
        if process is Process.ELSEWHERE:
            return False
        return self._ledger.release(lease.token, _phase_after(record, facts))

    def _process_of(self, record: JobRecord, lease: Lease) -> tuple[str, Process]:
        """Return how the lease's process is found, empty if there is none, and what is known of it."""
        known = record.process
        if known is None and self._workers.has_worker(lease.placement.node):
            # Its executor may only be late, and about to send it: of the two one has to be first.
            if self._workers.withdraw(lease):
                return "", Process.GONE
            known = self._workers.reference_of(lease)
        if known is not None:
            if not parse_reference(known).is_in_reach:
                return known, Process.ELSEWHERE
            alive = self._dispatcher.poll(known).alive
            return known, Process.ALIVE if alive else Process.GONE
        found = find_process(record.job.job_id, lease.token)
        return ("", Process.GONE) if found is None else (str(found), Process.ALIVE)


def _phase_after(record: JobRecord, facts: TaskFacts | None) -> JobPhase:
    if record.phase is JobPhase.LEASED:
        return JobPhase.REMOVED
    state = None if facts is None else facts.state
    return ending_of(state, known=facts is not None, exit_code=None, requeued=False).phase
