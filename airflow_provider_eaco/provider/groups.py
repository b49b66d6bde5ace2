"""The process groups that one lane has started or adopted: who is gone, and who has to go."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from airflow.utils.state import TaskInstanceState

from airflow_provider_eaco.core.ports import Dispatcher
from airflow_provider_eaco.provider.running import WANTED_STATES, RunningGroup
from airflow_provider_eaco.provider.task_instances import TaskFacts

log = logging.getLogger(__name__)

# A supervisor learns by its own heartbeat (5 s by default) that its task was cleared or failed by somebody
# else, and ends it (5 s more). A group that lives longer than this is ended by us.
EXTERNAL_END_S = 12.0
# After a task ended by itself its supervisor may still be uploading the log.
OWN_END_S = 120.0
# Not ``skipped``: a run over its time skips its running tasks from outside.
_OWN_ENDS = frozenset({TaskInstanceState.SUCCESS, TaskInstanceState.UP_FOR_RESCHEDULE})


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """A group whose last process is gone; ``exit_code`` is ``None`` when nobody could collect it.

    ``cause``: why it has not begun, where that is known.
    """

    group: RunningGroup
    exit_code: int | None
    cause: str | None = None


class GroupTable:
    """Living groups by reference, each polled through the dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        kill_grace_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._kill_grace_s = kill_grace_s
        self._monotonic = monotonic
        self._groups: dict[str, RunningGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[RunningGroup]:
        return iter(list(self._groups.values()))

    def add(self, group: RunningGroup) -> None:
        self._groups[group.reference] = group

    def remove(self, group: RunningGroup) -> None:
        self._groups.pop(group.reference, None)

    def of_job(self, job_id: str) -> RunningGroup | None:
        """Return the living group of this job, if it has one."""
        return next((group for group in self if group.job_id == job_id), None)

    def ended(self) -> list[EndedGroup]:
        """Return the groups that are gone; they stay in the table until they are removed.

        Afterwards every group says whether it has begun.
        """
        found = []
        for group in self:
            state = self._dispatcher.poll(group.reference)
            group.begun = state.begun
            if not state.alive:
                found.append(EndedGroup(group, state.exit_code, state.cause))
        return found

    def kill(self, group: RunningGroup) -> None:
        """Begin to end the whole group; later polls carry on."""
        group.is_ending = True
        self._dispatcher.kill(group.reference, self._kill_grace_s)

    def kill_unwanted(self, facts: Mapping[str, TaskFacts]) -> list[RunningGroup]:
        """End those that Airflow no longer wants and that did not leave by themselves; return them.

        :param facts: of every group's task instance that still exists.
        """
        killed = []
        for group in self:
            if not group.is_task:
                continue
            own = facts.get(group.job_id)
            if own is not None and own.state in WANTED_STATES:
                group.over_since_s = None
                continue
            if group.over_since_s is None:
                group.over_since_s = self._monotonic()
            patience_s = OWN_END_S if own is not None and own.state in _OWN_ENDS else EXTERNAL_END_S
            if self._monotonic() - group.over_since_s >= patience_s and not group.is_ending:
                log.info("Ending a task's processes: job_id=%s reference=%s", group.job_id, group.reference)
                self.kill(group)
                killed.append(group)
        return killed
