"""Process groups of ours, and what their end means to Airflow and to the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow.utils.state import TaskInstanceState

from airflow_provider_eaco.core.lifecycle import JobPhase


@dataclass(slots=True)
class RunningGroup:
    """One started workload. ``token`` is its lease's, 0 without one; ``recorded`` whether the ledger knows
    its process. ``over_since_s``: since when Airflow no longer wants it, on the monotonic clock. ``log_path``
    is its task's log as the workload names it, ``None`` where that is not known. ``ended_because``: why we
    ended it, if we did for its memory. ``begun``: whether it is
    known to live; ``announced``: whether Airflow was told.
    """

    key: Any
    job_id: str
    reference: str
    token: int = 0
    recorded: bool = True
    is_task: bool = True
    over_since_s: float | None = None
    is_ending: bool = False
    log_path: str | None = None
    ended_because: str | None = None
    begun: bool = True
    announced: bool = True


class Event(Enum):
    """What is reported to the scheduler about a group that is gone."""

    SUCCESS = "success"
    FAILURE = "failure"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Ending:
    """The job's phase after its group is gone, and the event for the scheduler."""

    phase: JobPhase
    event: Event


# The task has told Airflow itself how it ended. Skipped, by itself or by a run that ran out of time, is no
# complete training.
_TOLD: dict[str, JobPhase] = {
    TaskInstanceState.SUCCESS: JobPhase.FINISHED,
    TaskInstanceState.SKIPPED: JobPhase.REMOVED,
}
# It gave its GPUs up and comes back by itself. No event: the scheduler takes one that arrives after the task
# was scheduled again for the death of the new run, and fails it.
_COMES_BACK = frozenset(
    {TaskInstanceState.UP_FOR_RESCHEDULE, TaskInstanceState.DEFERRED, TaskInstanceState.SCHEDULED}
)
# States in which Airflow still counts on the process.
WANTED_STATES = frozenset({TaskInstanceState.QUEUED, TaskInstanceState.RUNNING})


def ending_of(state: str | None, *, known: bool, exit_code: int | None, requeued: bool) -> Ending:
    """Return what the end of a group means; Airflow's state decides, the exit code only where it is silent.

    :param state: the task instance's state now.
    :param known: whether a task instance with this id exists; a cleared one has a new id.
    :param exit_code: of the workload's process, ``None`` when nobody could collect it.
    :param requeued: whether the same task instance has been handed to us again meanwhile.
    """
    if not known or state == TaskInstanceState.RESTARTING:
        # Cleared while it ran: the event is what lets Airflow start the next try.
        return Ending(JobPhase.REMOVED, Event.SUCCESS)
    if state in _TOLD:
        return Ending(_TOLD[state], Event.SUCCESS)
    if requeued or state in _COMES_BACK or state is None:
        return Ending(JobPhase.YIELDED, Event.NONE)
    if state == TaskInstanceState.QUEUED:
        # It ended before Airflow learnt of its start, or is queued again elsewhere: only a code tells.
        failed_to_start = exit_code not in {0, None}
        return Ending(
            JobPhase.FAILED if failed_to_start else JobPhase.YIELDED,
            Event.FAILURE if failed_to_start else Event.NONE,
        )
    if state == TaskInstanceState.RUNNING and exit_code != 0:
        return Ending(JobPhase.FAILED, Event.FAILURE)
    return Ending(JobPhase.FAILED, Event.SUCCESS)
