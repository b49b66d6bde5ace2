"""Timetable: which GPUs are free from when to when, by the predicted ends and the reservations."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.job import GpuRequest, Job, Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.blocks import BlockTable, bit_of, block_table, mask_of
from airflow_provider_eaco.core.policy.filters import Needs, fitting_groups, node_trouble
from airflow_provider_eaco.core.policy.forecast import Forecast


class Lane:
    """One node's free GPUs in time: from ``times[i]`` to the next instant the bits of ``masks[i]``."""

    __slots__ = ("masks", "times")

    def __init__(self, times: list[float], masks: list[int]) -> None:
        self.times = times
        self.masks = masks

    def copy(self) -> Lane:
        return Lane(self.times.copy(), self.masks.copy())

    def take(self, mask: int, start_s: float, end_s: float) -> None:
        """Take the GPUs away from ``start_s`` until ``end_s``."""
        if end_s <= self.times[0] or end_s <= start_s:
            return
        first = self._edge(max(start_s, self.times[0]))
        last = len(self.times) if end_s == math.inf else self._edge(end_s)
        keep = ~mask
        masks = self.masks
        for step in range(first, last):
            masks[step] &= keep

    def _edge(self, at_s: float) -> int:
        """Return the step that begins at the instant, after making one if there was none."""
        step = bisect_left(self.times, at_s)
        if step == len(self.times) or self.times[step] != at_s:
            self.times.insert(step, at_s)
            self.masks.insert(step, self.masks[step - 1])
        return step

    def earliest(
        self, table: BlockTable, usable: int, run_s: float, before_s: float
    ) -> tuple[float, int] | None:
        """Return the first instant up to ``before_s`` with a free block, and the GPUs that are free for it.

        :param table: which block of a mask to take.
        :param usable: the GPUs that may be taken.
        """
        times, masks = self.times, self.masks
        count = len(times)
        for step in range(count):
            start_s = times[step]
            if start_s > before_s:
                return None
            free = masks[step] & usable
            if not table[free]:
                continue
            end_s = start_s + run_s
            later = step + 1
            while later < count and times[later] < end_s:
                free &= masks[later]
                if not table[free]:
                    break
                later += 1
            else:
                return start_s, free
        return None


@dataclass(frozen=True, slots=True)
class Berth:
    """Where a job may lie on one node: which GPUs of it, for how long."""

    node: str
    usable: int
    run_s: float


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in time for a job."""

    node: str
    mask: int
    start_s: float
    end_s: float


class Timetable:
    """The cluster in time, from now on."""

    def __init__(
        self, snapshot: ClusterSnapshot, reservations: Iterable[Reservation], forecast: Forecast
    ) -> None:
        self.strict = snapshot.pool.settings.aligned
        self._nodes = snapshot.nodes
        self._now_s = snapshot.now_s
        self._forecast = forecast
        self._berths: dict[tuple[GpuRequest, Progress], tuple[Berth, ...]] = {}
        self._usable: dict[Needs, tuple[tuple[str, str, int], ...]] = {}
        self.lanes = {name: self._lane(state) for name, state in sorted(snapshot.nodes.items())}
        for reservation in reservations:
            self.take(reservation.placement, reservation.start_s, reservation.end_s)

    def take(self, placement: Placement, start_s: float, end_s: float) -> None:
        """Take the placement's GPUs away for that time."""
        state = self._nodes.get(placement.node)
        if state is not None:
            names = frozenset(placement.gpu_uuids)
            mask = mask_of(gpu for gpu in state.node.gpus if gpu.uuid in names)
            self.lanes[placement.node].take(mask, start_s, end_s)

    def berths(self, job: Job) -> tuple[Berth, ...]:
        """Return where the job may lie at all: sound nodes that fit its needs."""
        key = job.request, job.progress
        known = self._berths.get(key)
        if known is None:
            known = self._berths[key] = tuple(self._find_berths(*key))
        return known

    def first_slot(self, job: Job) -> Slot | None:
        """Return the earliest place for the job.

        ``None``: no start can be told, since every fitting GPU is held by somebody whose end is unknown.
        """
        return first_slot(self.lanes, self.berths(job), block_table(job.request.gpus, self.strict))

    def placement(self, slot: Slot) -> Placement:
        """Return the slot's GPUs by name."""
        gpus = self._nodes[slot.node].node.gpus
        return Placement(slot.node, tuple(sorted(gpu.uuid for gpu in gpus if slot.mask & bit_of(gpu))))

    def _lane(self, state: NodeState) -> Lane:
        lane = Lane([self._now_s], [mask_of(state.node.gpus)])
        unknown = mask_of(state.node.gpus) & ~mask_of(state.free)
        for held in state.sets:
            mask = mask_of(held.gpus)
            unknown &= ~mask
            lane.take(mask, self._now_s, self._forecast.end_s(held, state.node))
        # GPUs that are neither free nor in a known set belong to somebody of whom nothing is known.
        lane.take(unknown, self._now_s, math.inf)
        return lane

    def _find_berths(self, request: GpuRequest, progress: Progress) -> Iterable[Berth]:
        needs = Needs.of(request)
        if needs not in self._usable:
            self._usable[needs] = tuple(self._find_usable(needs))
        run_s: dict[tuple[str, float], float] = {}
        for name, model, usable in self._usable[needs]:
            scope = model, self._nodes[name].node.time_scale
            if scope not in run_s:
                run_s[scope] = self._forecast.run_s(request, progress, *scope)
            yield Berth(name, usable, run_s[scope])

    def _find_usable(self, needs: Needs) -> Iterable[tuple[str, str, int]]:
        facts = self._forecast.facts
        for name in self.lanes:
            node = self._nodes[name].node
            built = facts.hardware(node)
            fitting = fitting_groups(needs, built, facts)
            if not fitting or node_trouble(needs, name, built, fitting):
                continue
            for model, groups in fitting.items():
                sizes = {group.usable_mib for group in groups}
                fits = (gpu for gpu in node.gpus if gpu.model == model and gpu.memory_usable_mib in sizes)
                yield name, model, mask_of(gpu for gpu in fits if facts.is_sound(gpu))


def first_slot(lanes: Mapping[str, Lane], berths: Iterable[Berth], table: BlockTable) -> Slot | None:
    """Return the earliest place in the lanes; of equal ones that which breaks into the smallest block."""
    best: tuple[float, int, int] | None = None
    found: Slot | None = None
    before_s = math.inf
    for berth in berths:
        offer = lanes[berth.node].earliest(table, berth.usable, berth.run_s, before_s)
        if offer is None:
            continue
        start_s, free = offer
        rank = start_s, table.block_size[free], free.bit_count()
        if best is None or rank < best:
            best, before_s = rank, start_s
            found = Slot(berth.node, table[free], start_s, start_s + berth.run_s)
    return found
