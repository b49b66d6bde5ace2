"""Who used which joules: from successive looks at a device to the energy of each run on it. Pure.

Between two looks a device used what its counter has grown by, else its integrated power, else it is unknown.
It is split by a stated rule (:func:`split_energy`); what no run gets stays with the node: all of it while
nobody was there, and the share of strangers. Runs, idle and strangers together are the device, exactly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# No GPU board with its share of a host draws more; a counter that says so has jumped.
MAX_POWER_W = 3000.0
# Counters are refreshed a few times a second; two looks may see this much more time than lies between them.
COUNTER_LAG_S = 1.0
# Power of a minute ago says nothing about what was drawn since.
MAX_INTEGRATED_S = 60.0
# How fast what is held for a device's idle draw follows what is seen.
IDLE_MEMORY_S = 60.0

RunKey = tuple[str, int]


class EnergyMethod(StrEnum):
    """How an amount of energy was found: from the device's energy counter, from the counter or power of the
    device of which this one is a part (MIG), from the device model of a simulated node, by integrating power
    samples, or not at all.
    """

    COUNTER = "counter"
    DIVIDED = "divided"
    MODEL = "model"
    INTEGRATED = "integrated"
    UNKNOWN = "unknown"


class SplitRule(StrEnum):
    """By what the part of a device's energy above its idle draw is split: nobody else was there, the time its
    processors worked for each process, the size of MIG partitions, the solo utilisation in the profiles, or
    equally.
    """

    ALONE = "alone"
    SM_TIME = "SM time"
    SLICES = "slices"
    PROFILE = "profile"
    EQUAL = "equal parts"


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """What one task try took of one GPU for ``seconds`` of device time.

    ``energy_j`` is ``None`` for a time that could not be measured; ``partial`` says that more was used than
    is counted here (a counter was lost, a sample was missing).
    """

    job_id: str
    token: int
    gpu_uuid: str
    energy_j: float | None
    seconds: float
    method: EnergyMethod
    partial: bool = False


@dataclass(frozen=True, slots=True)
class DeviceLook:
    """One look at a whole device. ``at_s`` is of a clock that never goes back; ``None`` is unknown."""

    uuid: str
    at_s: float
    power_w: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class Consumer:
    """One run on a device since the last look.

    ``gpu_uuid`` is what it holds: the device, or one partition of it with ``slices`` of its compute slices.
    ``sm_pct`` is the share of the time in which the device's processors worked for it, ``solo_pct`` the mean
    utilisation of its family alone; ``None`` is unknown. ``since_start`` is false for a run that began before
    anybody looked: its energy is a lower bound.
    """

    job_id: str
    token: int
    gpu_uuid: str
    sm_pct: float | None = None
    solo_pct: float | None = None
    slices: int | None = None
    since_start: bool = True

    @property
    def key(self) -> RunKey:
        return self.job_id, self.token


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    """Joules of a device between two looks. ``partial``: its counter was lost, so this stands in for it."""

    energy_j: float | None
    method: EnergyMethod
    partial: bool = False


@dataclass(slots=True)
class DeviceTotals:
    """What a device used since it was first seen, in joules, and ``unknown_s`` of which nothing is known.

    ``runs_j`` + ``idle_j`` (nobody held it) + ``strangers_j`` (who are none of ours) = ``energy_j``.
    """

    energy_j: float = 0.0
    runs_j: float = 0.0
    idle_j: float = 0.0
    strangers_j: float = 0.0
    unknown_s: float = 0.0


@dataclass(slots=True)
class RunEnergy:
    """The energy record of one run over all its GPUs.

    ``seconds`` were looked at, of which ``known_s`` were measured. ``peak_w`` is the largest mean draw
    between two looks. ``co_residents`` are the ids of all jobs that shared a GPU with it at some time.
    ``awaits_look``: the next look at its GPUs belongs to it, too, so this is not its last account.
    """

    energy_j: float = 0.0
    seconds: float = 0.0
    known_s: float = 0.0
    peak_w: float | None = None
    partial: bool = False
    co_residents: set[str] = field(default_factory=set)
    methods: set[EnergyMethod] = field(default_factory=set)
    rules: set[SplitRule] = field(default_factory=set)
    awaits_look: bool = False

    @property
    def mean_w(self) -> float | None:
        """Mean draw over the time that was measured, ``None`` without any."""
        return self.energy_j / self.known_s if self.known_s else None

    def count(self, parts: Sequence[EnergyPart]) -> None:
        """Count the parts that the run took of its GPUs between two looks."""
        seconds = max(part.seconds for part in parts)
        self.seconds += seconds
        self.partial = self.partial or any(part.partial for part in parts)
        self.methods.update(part.method for part in parts)
        known = [part.energy_j for part in parts if part.energy_j is not None]
        if len(known) == len(parts):
            self.known_s += seconds
            self.peak_w = max(self.peak_w or 0.0, math.fsum(known) / seconds)
        self.energy_j += math.fsum(known)


class EnergyAccounts:
    """Books of all devices of one machine and of the runs on them."""

    def __init__(self) -> None:
        self.devices: dict[str, DeviceTotals] = {}
        self.runs: dict[RunKey, RunEnergy] = {}
        self._last: dict[str, DeviceLook] = {}
        self._idle_w: dict[str, float] = {}

    def look(
        self,
        looks: Iterable[DeviceLook],
        consumers: Mapping[str, Sequence[Consumer]],
        strangers_pct: Mapping[str, float] | None = None,
    ) -> list[EnergyPart]:
        """Account for the time since the last look and return the parts of the runs.

        :param looks: one per device, all of one instant.
        :param consumers: by device, who was there since the last look.
        :param strangers_pct: by device, the SM time of processes that are none of ours; a device that they
            use without SM time being known is listed with 0.
        """
        strangers = strangers_pct or {}
        parts: list[EnergyPart] = []
        for after in looks:
            before = self._last.get(after.uuid)
            if before is not None and after.at_s <= before.at_s:
                continue
            self._last[after.uuid] = after
            self.devices.setdefault(after.uuid, DeviceTotals())
            if before is not None:
                there = consumers.get(after.uuid, ())
                parts += self._step(before, after, there, strangers.get(after.uuid))
        of_run: dict[RunKey, list[EnergyPart]] = defaultdict(list)
        for part in parts:
            of_run[part.job_id, part.token].append(part)
        for key, own in of_run.items():
            self.runs.setdefault(key, RunEnergy()).count(own)
        return parts

    def _step(
        self,
        before: DeviceLook,
        after: DeviceLook,
        there: Sequence[Consumer],
        strangers_pct: float | None,
    ) -> list[EnergyPart]:
        seconds = after.at_s - before.at_s
        measured = energy_between(before, after)
        totals = self.devices[after.uuid]
        if measured.energy_j is None:
            totals.unknown_s += seconds
            return self._parts(there, [None] * len(there), seconds, measured, None)
        totals.energy_j += measured.energy_j
        if not there:
            if strangers_pct is None:
                totals.idle_j += measured.energy_j
                self._learn_idle(after.uuid, measured.energy_j, seconds)
            else:
                totals.strangers_j += measured.energy_j
            return []
        rule = split_rule(there, strangers_pct)
        weights = _weights(there, rule)
        if rule is SplitRule.SM_TIME:
            weights = [*weights, strangers_pct or 0.0]
        idle_j = self._idle_w.get(after.uuid, 0.0) * seconds
        shares = split_energy(measured.energy_j, idle_j, _bases(there), weights)
        own = shares[: len(there)]
        totals.strangers_j += math.fsum(shares[len(there) :])
        totals.runs_j += math.fsum(own)
        return self._parts(there, own, seconds, measured, rule)

    def _parts(
        self,
        there: Sequence[Consumer],
        shares: Sequence[float | None],
        seconds: float,
        measured: MeasuredEnergy,
        rule: SplitRule | None,
    ) -> list[EnergyPart]:
        parts = []
        for one, share in zip(there, shares, strict=True):
            run = self.runs.setdefault(one.key, RunEnergy())
            run.co_residents.update(other.job_id for other in there if other.gpu_uuid == one.gpu_uuid)
            run.co_residents.discard(one.job_id)
            if rule is not None:
                run.rules.add(rule)
            method = measured.method
            if one.slices is not None and share is not None:
                method = EnergyMethod.DIVIDED
            partial = measured.partial or not one.since_start
            parts.append(
                EnergyPart(one.job_id, one.token, one.gpu_uuid, share, seconds, method, partial=partial)
            )
        return parts

    def _learn_idle(self, uuid: str, energy_j: float, seconds: float) -> None:
        seen_w = energy_j / seconds
        known_w = self._idle_w.get(uuid)
        if known_w is None:
            self._idle_w[uuid] = seen_w
        else:
            self._idle_w[uuid] = known_w + (seen_w - known_w) * min(1.0, seconds / IDLE_MEMORY_S)


def energy_between(before: DeviceLook, after: DeviceLook) -> MeasuredEnergy:
    """Return the energy of one device between two looks at it.

    From the counter where both have one; a counter that went back or jumped, or that only one of them has, is
    replaced by the integrated power, and unknown where that is not known either. Never negative, never a
    giant step: the next look starts from the counter as it is now.
    """
    seconds = after.at_s - before.at_s
    has_counter = before.energy_j is not None and after.energy_j is not None
    if before.energy_j is not None and after.energy_j is not None:
        counted_j = after.energy_j - before.energy_j
        if 0 <= counted_j <= MAX_POWER_W * (seconds + COUNTER_LAG_S):
            return MeasuredEnergy(counted_j, EnergyMethod.COUNTER)
    if before.power_w is None or after.power_w is None or seconds > MAX_INTEGRATED_S:
        return MeasuredEnergy(None, EnergyMethod.UNKNOWN, partial=True)
    mean_w = (before.power_w + after.power_w) / 2
    return MeasuredEnergy(mean_w * seconds, EnergyMethod.INTEGRATED, partial=has_counter)


def split_rule(there: Sequence[Consumer], strangers_pct: float | None = None) -> SplitRule:
    """Return the rule for the dynamic part: the best that is known of all of them."""
    if any(one.slices is not None for one in there):
        return SplitRule.SLICES if len(there) > 1 else SplitRule.ALONE
    sm_pct = [one.sm_pct for one in there]
    if (len(there) > 1 or strangers_pct) and None not in sm_pct and any(sm_pct):
        return SplitRule.SM_TIME
    if len(there) == 1:
        return SplitRule.ALONE
    solo_pct = [one.solo_pct for one in there]
    return SplitRule.PROFILE if None not in solo_pct and any(solo_pct) else SplitRule.EQUAL


def split_energy(total: float, idle: float, bases: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return each one's part of an amount: of its idle part by ``bases``, of what is above it by ``weights``.

    Joules or watts alike. Without a weight above 0 the bases count for both. There may be more weights than
    bases: those of strangers, who take nothing of the idle part. The parts add up to ``total``.
    """
    padded = [*bases, *(0.0 for _ in weights[len(bases) :])]
    dynamic = weights if math.fsum(weights) > 0 else padded
    base_sum, weight_sum = math.fsum(padded), math.fsum(dynamic)
    below = min(total, idle)
    parts = [
        below * base / base_sum + (total - below) * weight / weight_sum
        for base, weight in zip(padded, dynamic, strict=True)
    ]
    # What rounding leaves goes to the largest part, so that none turns negative.
    parts[parts.index(max(parts))] += total - math.fsum(parts)
    return parts


def _weights(there: Sequence[Consumer], rule: SplitRule) -> list[float]:
    if rule is SplitRule.SM_TIME:
        return [one.sm_pct or 0.0 for one in there]
    if rule is SplitRule.PROFILE:
        return [one.solo_pct or 0.0 for one in there]
    return _bases(there)


def _bases(there: Sequence[Consumer]) -> list[float]:
    """Return by what the idle part is split: equally, partitions by their size."""
    return [float(one.slices or 1) for one in there]
