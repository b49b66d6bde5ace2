"""The GPU memory of a run whose processes are gone: until it is back the run's lease stands (C27).

A driver takes memory back some time after the last process has left. Whoever was granted the GPU meanwhile
would start beside memory that nobody owns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from enum import Enum

from airflow_provider_eaco.core.energy.accounting import RunKey
from airflow_provider_eaco.provider.services import NodeMeter

log = logging.getLogger(__name__)

# Memory that is not back by then is no longer this run's matter: the GPU counts as used by somebody else.
BACK_WAIT_S = 15.0
LEFT_BEHIND = f"left memory behind that was not back {BACK_WAIT_S:g} s after its last process had gone"


class Memory(Enum):
    """What is known of the memory of a run that has ended; ``LEFT``: it was waited for in vain."""

    AWAITED = "awaited"
    BACK = "back"
    UNKNOWN = "unknown"
    LEFT = "left"


class MemoryReturn:
    """Remembers when each run was first seen to be gone. For one thread."""

    def __init__(self, meters: Iterable[NodeMeter], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._meters = [meter.memory for meter in meters if meter.memory is not None]
        self._monotonic = monotonic
        self._gone_since_s: dict[RunKey, float] = {}
        self._given_up: set[RunKey] = set()

    def look(self, run: RunKey) -> Memory:
        """Tell of a run whose processes are gone, for the first time or again; that memory is left, once.

        Where no meter can tell, nothing is waited for.
        """
        if run in self._given_up:
            return Memory.UNKNOWN
        now_s = self._monotonic()
        since_s = self._gone_since_s.setdefault(run, now_s)
        told = {meter.is_memory_back(run, since_s) for meter in self._meters}
        if True in told:
            return Memory.BACK
        if False not in told:
            return Memory.UNKNOWN
        if now_s - since_s < BACK_WAIT_S:
            return Memory.AWAITED
        self._given_up.add(run)
        log.warning("A run %s: job_id=%s token=%s", LEFT_BEHIND, *run)
        return Memory.LEFT

    def keep(self, runs: Collection[RunKey]) -> None:
        """Forget all others."""
        self._gone_since_s = {run: at_s for run, at_s in self._gone_since_s.items() if run in runs}
        self._given_up &= set(runs)
