"""Planning ahead: the whole queue over 24 hours, of which only the present step is carried out (ADR 0009)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.agenda import Agenda, Keeping
from airflow_provider_eaco.core.policy.blocks import BlockTable, block_table
from airflow_provider_eaco.core.policy.bookings import HORIZON_S, reservations_of
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.forecast import Forecast
from airflow_provider_eaco.core.policy.ordering import FifoKey, fifo_key
from airflow_provider_eaco.core.policy.timetable import Berths, Lane, Slot, Timetable, first_slot

# The cost of a decision is bounded by placements, since a pure function has no clock: at most so many list
# orders, and fewer for a long queue.
_LEAST_ORDERS = 4
_MOST_ORDERS = 65
_PLACEMENTS = 900


@dataclass(frozen=True, slots=True)
class _Item:
    """A job to be placed: where it may lie, how long it runs at its best, and its place in fifo order."""

    job: Job
    berths: tuple[Berths, ...]
    table: BlockTable
    gpus: int
    run_s: float
    fifo: FifoKey


# What list orders sort by within one priority; largest first packs best, the others win where it does not.
_KEYS: tuple[Callable[[_Item], tuple[float, ...]], ...] = (
    lambda item: (-item.gpus, -item.run_s),
    lambda item: (-item.gpus * item.run_s,),
    lambda item: (-item.run_s, -item.gpus),
    lambda item: (),
    lambda item: (-item.gpus, item.run_s),
    lambda item: (item.run_s, -item.gpus),
)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The queue in one list order, each job at its earliest start; ``worth`` and ``starts_s`` compare it."""

    items: tuple[_Item, ...]
    slots: tuple[Slot | None, ...]
    worth: float
    starts_s: float

    def beats(self, other: _Draft) -> bool:
        # Sums in different orders differ in the last digits; that is no reason to prefer a plan.
        if not math.isclose(self.worth, other.worth, rel_tol=1e-9):
            return self.worth > other.worth
        return self.starts_s < other.starts_s * (1 - 1e-9)


class HorizonOrdering:
    """Plans 24 hours ahead by several list orders and takes the best; priorities are obeyed first."""

    keeping = Keeping.HEAD_OF_LINE

    def order(self, jobs: Sequence[Job], _snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        """Return the jobs in fifo order: what stands where no plan is asked for, as between teams."""
        return tuple(sorted(jobs, key=fifo_key))

    def plan(self, first: Sequence[Job], rest: Sequence[Job], snapshot: ClusterSnapshot) -> Agenda:
        """Return who starts now and where, then the others by their planned start.

        :param first: jobs that come before all others, in this order.
        """
        planner = _Planner(snapshot)
        ahead, free_order, out = planner.split(first, rest)
        draft = planner.best(ahead, free_order)
        placed = list(zip(draft.items, draft.slots, strict=True))
        starting = [(item, slot) for item, slot in placed if slot and slot.start_s <= snapshot.now_s]
        later = [(item, slot) for item, slot in placed if not (slot and slot.start_s <= snapshot.now_s)]
        later.sort(key=lambda pair: math.inf if pair[1] is None else pair[1].start_s)
        return Agenda(
            order=(*(item.job for item, _ in (*starting, *later)), *out),
            offers={item.job.job_id: planner.timetable.placement(slot) for item, slot in starting},
        )


class _Planner:
    """One decision: the timetable as it is, and drafts made on copies of its lanes."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        facts = CycleFacts(snapshot)
        self.timetable = Timetable(snapshot, reservations_of(snapshot), Forecast(snapshot, facts))
        self._snapshot = snapshot
        self._end_s = snapshot.now_s + HORIZON_S

    def split(self, first: Sequence[Job], rest: Sequence[Job]) -> tuple[list[_Item], list[_Item], list[Job]]:
        """Return the jobs to plan in fixed order, those to plan freely, and those that cannot start."""
        out: list[Job] = []
        refused: dict[JobKind, bool] = {}

        def items(jobs: Sequence[Job]) -> Iterator[_Item]:
            for job in jobs:
                kind = job.kind
                if kind not in refused:
                    refused[kind] = self._cannot_start(kind)
                if refused[kind]:
                    out.append(job)
                else:
                    yield self._item(job)

        return list(items(first)), list(items(sorted(rest, key=fifo_key))), out

    def best(self, ahead: list[_Item], free_order: list[_Item]) -> _Draft:
        """Return the best draft over the list orders."""
        budget = _PLACEMENTS // max(1, len(ahead) + len(free_order))
        budget = max(_LEAST_ORDERS, min(_MOST_ORDERS, budget))
        best = self._draft((*ahead, *sorted(free_order, key=_by(_KEYS[0]))))
        if len(free_order) < 2:
            return best
        for key in _KEYS[1:budget]:
            draft = self._draft((*ahead, *sorted(free_order, key=_by(key))))
            best = draft if draft.beats(best) else best
        return self._improved(best, len(ahead), budget - len(_KEYS))

    def _improved(self, best: _Draft, fixed: int, budget: int) -> _Draft:
        """Return the best draft after moving jobs forward, one at a time, within their priority."""
        position = fixed + 1
        since = 0
        while budget > 0 and since < len(best.items) - fixed - 1:
            if position >= len(best.items):
                position = fixed + 1
            for order in _moved(best.items, position, fixed):
                budget -= 1
                draft = self._draft(order)
                if draft.beats(best):
                    best, since = draft, -1
                    break
            position += 1
            since += 1
        return best

    def _draft(self, items: tuple[_Item, ...]) -> _Draft:
        now_s, end_s = self._snapshot.now_s, self._end_s
        lanes: dict[str, Lane] = {name: lane.copy() for name, lane in self.timetable.lanes.items()}
        slots: list[Slot | None] = []
        worth = starts_s = 0.0
        for item in items:
            slot = first_slot(lanes, item.berths, item.table, end_s)
            slots.append(slot)
            if slot is None:
                starts_s += HORIZON_S
                continue
            lanes[slot.node].take(slot.mask, slot.start_s, slot.end_s)
            begin, end = slot.start_s - now_s, min(slot.end_s, end_s) - now_s
            starts_s += begin
            if begin < HORIZON_S:
                worth += item.gpus * ((end - begin) - (end * end - begin * begin) / (2 * HORIZON_S))
        return _Draft(items, tuple(slots), worth, starts_s)

    def _cannot_start(self, kind: JobKind) -> bool:
        pool = self._snapshot.pool
        return (filters.airflow_pool(kind, pool) or filters.hold_mark(kind)) is not None

    def _item(self, job: Job) -> _Item:
        berths = self.timetable.berths(job)
        table = block_table(job.request.gpus, self.timetable.strict)
        run_s = min((berth.run_s for berth in berths), default=math.inf)
        return _Item(job, berths, table, job.request.gpus, run_s, fifo_key(job))


def _by(key: Callable[[_Item], tuple[float, ...]]) -> Callable[[_Item], tuple[object, ...]]:
    return lambda item: (-item.job.priority, key(item), item.fifo)


def _moved(items: tuple[_Item, ...], position: int, fixed: int) -> Iterator[tuple[_Item, ...]]:
    """Return the order with the job at ``position`` moved to the front of its priority."""
    item = items[position]
    front = position
    while front > fixed and items[front - 1].job.priority == item.job.priority:
        front -= 1
    if front < position:
        yield (*items[:front], item, *items[front:position], *items[position + 1 :])
