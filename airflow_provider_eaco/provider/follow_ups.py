"""What the run of an ended task hands over next: it competes for the GPUs that the task had (C02).

Airflow schedules a task's follow-ups in its next loop, and hands them over. Were the GPUs free before, they
would be granted to whoever waits, whatever the order says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.groups import EndedGroup

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Airflow looks at 20 running runs in each loop ([scheduler] max_dagruns_per_loop_to_schedule), the longest
# not looked at first, and its executors get one heartbeat a loop. With more than 60 running runs follow-ups
# may come too late.
MAX_HEARTBEATS = 3


class FollowUps:
    """Remembers for how many heartbeats each ended group was kept. For one thread."""

    def __init__(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._session = session
        self._kept: dict[str, int] = {}

    def settled(self, ended: Sequence[EndedGroup]) -> list[EndedGroup]:
        """Return the groups whose follow-ups, if they have any, Airflow has had the chance to hand over.

        The others are asked for again: their leases stand until then, for ``MAX_HEARTBEATS`` at most.
        """
        if not ended:
            self._kept.clear()
            return []
        ids = [each.group.job_id for each in ended if each.group.is_task]
        with self._session() as session:
            awaited = task_instances.awaiting_follow_ups(session, ids)
        kept = {job_id: self._kept.get(job_id, 0) + 1 for job_id in awaited}
        self._kept = {job_id: count for job_id, count in kept.items() if count <= MAX_HEARTBEATS}
        return [each for each in ended if each.group.job_id not in self._kept]
