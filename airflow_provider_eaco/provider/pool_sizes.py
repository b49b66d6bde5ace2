"""The sizes of the Airflow pools that stand for GPU pools, which bound what Airflow hands over.

Airflow's scheduler hands over some tasks in each loop, by weight alone: a flood of more weight in one pool
keeps the tasks of another from being seen, however many GPUs are free there (C03). So a pool whose GPUs all
have a task is closed for moments while another one has ready tasks and too few to choose from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.engine.pool_manager import slots_to_write, wanted_slots
from airflow_provider_eaco.provider import task_instances
from airflow_provider_eaco.provider.pools import acting, pool_states, slots_of_off, write_slots, written_slots
from airflow_provider_eaco.provider.services import Services
from airflow_provider_eaco.provider.task_instances import PoolCount

log = logging.getLogger(__name__)

SIZING_INTERVAL_S = 5.0
# What a pool has to choose from is enough when each GPU's place has a task and another one waits for it.
_ENOUGH = 2.0
# Of so many heartbeats in a row in which pools should be closed they are for the first few: what keeps the
# other pool's tasks back may be a limit of Airflow's that nobody's turn ends.
CLOSED_HEARTBEATS = 4
ROUND_HEARTBEATS = 10


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The tasks of an Airflow pool, and how many of them can hold GPUs at one time: its ``places``."""

    count: PoolCount
    places: int

    @property
    def share(self) -> float:
        """Active tasks for each place, infinite without any place."""
        return self.count.active / self.places if self.places else math.inf


def closed_pools(loads: Mapping[str, PoolLoad]) -> frozenset[str]:
    """Return the pools that others have to be served before: each of their places has a task, and another
    pool with ready tasks has fewer for each of its places, and not enough.
    """
    least = min((load.share for load in loads.values() if load.count.ready), default=math.inf)
    if least >= _ENOUGH:
        return frozenset()
    return frozenset(name for name, load in loads.items() if 1.0 <= load.share > least and load.places)


class PoolSizes:
    """Creates and sizes the Airflow pools, where that is needed and no user has done it. For one thread."""

    def __init__(self, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._monotonic = monotonic
        self._sized_at_s = float("-inf")
        self._places: dict[str, int] = {}
        self._closed: Mapping[str, int] = {}
        self._heartbeats = 0

    def keep(self, *, are_held: bool) -> None:
        """Write the sizes that have changed, at once where pools are to be closed or opened.

        :param are_held: whether tasks wait for GPUs; otherwise no pool has more than it can run.
        """
        closed = self._to_close() if are_held else {}
        is_due = self._monotonic() - self._sized_at_s >= SIZING_INTERVAL_S
        if not is_due and closed == self._closed:
            return
        settings = self._services.settings
        with self._services.session() as session:
            states = pool_states(session, acting(settings.pools))
            present = written_slots(session, [pool.name for pool in settings.pools])
        view = self._services.ledger.view()
        changes = slots_of_off(settings.pools, present)
        for state in states:
            name = state.settings.name
            seats = wanted_slots(view, state, 0)
            is_exclusive = state.settings.mode is PoolMode.EXCLUSIVE
            self._places[name] = seats // state.settings.max_residents if is_exclusive else seats
            wanted = closed.get(name, seats + settings.hold_window)
            slots, written = present.get(name, (None, None))
            change = slots_to_write(wanted, slots, written)
            if change is not None:
                changes[name] = change
        if changes:
            with self._services.session() as session:
                write_slots(session, changes)
            log.info("Sized Airflow pools: %s", changes)
        self._sized_at_s, self._closed = self._monotonic(), closed

    def _to_close(self) -> dict[str, int]:
        """Return the pools that are to be closed now, with the size at which Airflow hands nothing more over.

        All that can hold GPUs fits into it: it keeps nobody from starting who was handed over.
        """
        # Tasks of a pool that only observes wait for nothing here, and all of Airflow's may be among them.
        deciding = (PoolMode.EXCLUSIVE, PoolMode.SHARE)
        names = [pool.name for pool in self._services.settings.pools if pool.mode in deciding]
        if len(names) <= 1:  # there is nobody to give way to
            return {}
        with self._services.session() as session:
            counts = task_instances.counts_by_pool(session, names)
        loads = {name: PoolLoad(count, self._places.get(name, 0)) for name, count in counts.items()}
        closed = closed_pools(loads)
        self._heartbeats = self._heartbeats + 1 if closed else 0
        if (self._heartbeats - 1) % ROUND_HEARTBEATS >= CLOSED_HEARTBEATS:
            return {}
        return {name: loads[name].places * loads[name].count.widest for name in closed}
