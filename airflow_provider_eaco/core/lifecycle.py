"""The life of a job and the transitions that are legal; every store and engine asks here."""

from __future__ import annotations

from enum import StrEnum


class JobPhase(StrEnum):
    """Where a job is. The last four are final for this job; a later try is another job.

    ``WAITING``: handed over by Airflow, no GPUs. ``LEASED``: holds GPUs, its process is not started yet.
    ``RUNNING``: its process lives. ``YIELDED``: it gave its GPUs up and Airflow will hand it over again.
    """

    WAITING = "waiting"
    LEASED = "leased"
    RUNNING = "running"
    YIELDED = "yielded"
    FINISHED = "finished"
    FAILED = "failed"
    REJECTED = "rejected"
    REMOVED = "removed"


FINAL_PHASES = frozenset({JobPhase.FINISHED, JobPhase.FAILED, JobPhase.REJECTED, JobPhase.REMOVED})

_LEGAL: dict[JobPhase, frozenset[JobPhase]] = {
    # LEASED -> WAITING: the launch failed before a process existed, or the lease lost its owner.
    JobPhase.WAITING: frozenset({JobPhase.LEASED, JobPhase.REJECTED, JobPhase.REMOVED}),
    JobPhase.LEASED: frozenset({JobPhase.RUNNING, JobPhase.WAITING, JobPhase.FAILED, JobPhase.REMOVED}),
    JobPhase.RUNNING: frozenset(
        {JobPhase.YIELDED, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.REMOVED, JobPhase.WAITING}
    ),
    JobPhase.YIELDED: frozenset({JobPhase.WAITING, JobPhase.REMOVED, JobPhase.FAILED}),
    # A final phase is left only when Airflow queues the very same try again (a clear of a finished one makes
    # a new try; a reschedule that raced with the reaper does not).
    JobPhase.FINISHED: frozenset({JobPhase.WAITING}),
    JobPhase.FAILED: frozenset({JobPhase.WAITING}),
    JobPhase.REJECTED: frozenset({JobPhase.WAITING}),
    JobPhase.REMOVED: frozenset({JobPhase.WAITING}),
}


def may_become(present: JobPhase, wanted: JobPhase) -> bool:
    """Tell whether a job in ``present`` may go to ``wanted``; staying where it is, is always legal."""
    return present is wanted or wanted in _LEGAL[present]


def phases_before(wanted: JobPhase) -> frozenset[JobPhase]:
    """Return every phase from which ``wanted`` may be reached; the guard of a compare-and-set."""
    return frozenset(present for present, after in _LEGAL.items() if wanted in after)
