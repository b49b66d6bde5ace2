"""Timetable: which GPUs are free from when to when, by the predicted ends and the reservations."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.gpu import Hardware
from airflow_provider_eaco.core.model.job import GpuRequest, Job, Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.reservation import Reservation
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.blocks import BlockTable, bit_of, block_table, mask_of
from airflow_provider_eaco.core.policy.filters import Needs, fitting_groups, node_trouble
from airflow_provider_eaco.core.policy.forecast import Forecast


class Lane:
    """One node's free GPUs in time: from ``times[i]`` to the next instant the bits of ``masks[i]``.

    GPUs are only ever taken, so an instant before which there is no block stays one: it is kept in ``full``
    for each number and choice of GPUs that was looked for.
    """

    __slots__ = ("full", "masks", "times")

    def __init__(self, times: list[float], masks: list[int], full: dict[tuple[int, int], float]) -> None:
        self.times = times
        self.masks = masks
        self.full = full

    def copy(self) -> Lane:
        return Lane(self.times.copy(), self.masks.copy(), self.full.copy())

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

    def close_until(self, at_s: float) -> None:
        """Take all GPUs away until that instant; infinite closes the lane for good."""
        if at_s <= self.times[0]:
            return
        if at_s == math.inf:
            self.times, self.masks = [math.inf], [0]
            return
        step = bisect_right(self.times, at_s) - 1
        self.times = [at_s, *self.times[step + 1 :]]
        self.masks = self.masks[step:]

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
        key = table.gpus, usable
        full_until_s = self.full.get(key, times[0])
        count = len(times)
        first = bisect_left(times, full_until_s)
        while first < count and not table[masks[first] & usable]:
            first += 1
        self.full[key] = times[first] if first < count else math.inf
        for step in range(first, count):
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


Scope = tuple[str, float]
_Fit = tuple[Hardware, str, frozenset[int | None]]


@dataclass(frozen=True, slots=True)
class Berths:
    """Where a job may lie: nodes with the GPUs that it may take there, on all of which it runs alike."""

    places: tuple[tuple[str, int], ...]
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
        self._berths: dict[tuple[GpuRequest, Progress], tuple[Berths, ...]] = {}
        self._scopes: dict[tuple[_Fit, ...], dict[Scope, tuple[tuple[str, int], ...]]] = {}
        self._alike: dict[Hardware, list[str]] = {}
        for name in sorted(snapshot.nodes):
            self._alike.setdefault(forecast.facts.hardware(snapshot.nodes[name].node), []).append(name)
        self.lanes = {name: self._lane(state) for name, state in sorted(snapshot.nodes.items())}
        self._distant: list[Reservation] = []
        for reservation in reservations:
            if reservation.is_distant:
                self._distant.append(reservation)
            else:
                self.take(reservation.placement, reservation.start_s, reservation.end_s)

    def take(self, placement: Placement, start_s: float, end_s: float) -> None:
        """Take the placement's GPUs away for that time."""
        if placement.node in self._nodes:
            self.lanes[placement.node].take(self._mask_of(placement), start_s, end_s)

    def _mask_of(self, placement: Placement) -> int:
        names = frozenset(placement.gpu_uuids)
        return mask_of(gpu for gpu in self._nodes[placement.node].node.gpus if gpu.uuid in names)

    def berths(self, job: Job) -> tuple[Berths, ...]:
        """Return where the job may lie at all: sound nodes that fit its needs."""
        key = job.request, job.progress
        known = self._berths.get(key)
        if known is None:
            scopes = self._scopes_of(Needs.of(job.request))
            runs_s = {scope: self._forecast.run_s(*key, *scope) for scope in scopes}
            known = self._berths[key] = tuple(
                Berths(self._clear_of_distant(places, runs_s[scope]), runs_s[scope])
                for scope, places in scopes.items()
            )
        return known

    def _clear_of_distant(
        self, places: tuple[tuple[str, int], ...], run_s: float
    ) -> tuple[tuple[str, int], ...]:
        """Return the places without the GPUs on which a start now would run into a distant reservation."""
        if not self._distant or run_s == math.inf:
            return places
        taken: dict[str, int] = {}
        for each in self._distant:
            node = each.placement.node
            if node in self._nodes and each.start_s < self._now_s + run_s:
                taken[node] = taken.get(node, 0) | self._mask_of(each.placement)
        return tuple((node, mask & ~taken.get(node, 0)) for node, mask in places)

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
        lane = Lane([self._now_s], [mask_of(state.node.gpus)], {})
        unknown = mask_of(state.node.gpus) & ~mask_of(state.free)
        for held in state.sets:
            mask = mask_of(held.gpus)
            unknown &= ~mask
            lane.take(mask, self._now_s, self._forecast.end_s(held, state.node))
        # GPUs that are neither free nor in a known set belong to somebody of whom nothing is known.
        lane.take(unknown, self._now_s, math.inf)
        return lane

    def _scopes_of(self, needs: Needs) -> Mapping[Scope, tuple[tuple[str, int], ...]]:
        """Return the places for such needs, by model and time scale; equal nodes are looked at once."""
        fits: list[_Fit] = []
        for built, names in self._alike.items():
            fitting = fitting_groups(needs, built, self._forecast.facts)
            if fitting and not node_trouble(needs, names[0], built, fitting):
                sizes = ((model, {group.usable_mib for group in groups}) for model, groups in fitting.items())
                fits += [(built, model, frozenset(usable_mib)) for model, usable_mib in sizes]
        key = tuple(fits)
        known = self._scopes.get(key)
        if known is None:
            known = self._scopes[key] = self._places_of(fits)
        return known

    def _places_of(self, fits: Iterable[_Fit]) -> dict[Scope, tuple[tuple[str, int], ...]]:
        is_sound = self._forecast.facts.is_sound
        places: dict[Scope, list[tuple[str, int]]] = {}
        for built, model, usable_mib in fits:
            there = places.setdefault((model, built.time_scale), [])
            for name in self._alike[built]:
                own = (gpu for gpu in self._nodes[name].node.gpus if gpu.model == model)
                fit = (gpu for gpu in own if gpu.memory_usable_mib in usable_mib and is_sound(gpu))
                there.append((name, mask_of(fit)))
        return {scope: tuple(sorted(there)) for scope, there in sorted(places.items())}


def first_slot(
    lanes: Mapping[str, Lane], berths: Iterable[Berths], table: BlockTable, before_s: float = math.inf
) -> Slot | None:
    """Return the earliest place in the lanes; of equal ones that which breaks into the smallest block.

    :param before_s: the last instant at which it may start.
    """
    best: tuple[float, int, int] | None = None
    found: Slot | None = None
    gpus, sizes = table.gpus, table.block_size
    for alike in berths:
        for node, usable in alike.places:
            lane = lanes[node]
            if lane.full.get((gpus, usable), -math.inf) > before_s:
                continue
            offer = lane.earliest(table, usable, alike.run_s, before_s)
            if offer is None:
                continue
            start_s, free = offer
            rank = start_s, sizes[free], free.bit_count()
            if best is None or rank < best:
                best, before_s = rank, start_s
                found = Slot(node, table[free], start_s, start_s + alike.run_s)
    return found
