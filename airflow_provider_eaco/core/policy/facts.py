"""What a newcomer has to know of nodes and held sets, derived once a cycle.

Snapshots share structure: a launch replaces one node's state and leaves all others the same objects. So what
is derived here is kept by the identity of what it was derived from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.energy.outlook import (
    slowdown_within_deadline,
    slowdown_within_stretch,
    units_left,
    units_total_of,
)
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.job import Job, Share
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook, SoloProfile, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, Resident
from airflow_provider_eaco.core.policy.trial import resident_profile, resident_unit_s


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs of one model and memory size on a node; ``sound`` ones are healthy and nobody else's."""

    model: str
    usable_mib: int | None
    total: int
    sound: int
    unhealthy: tuple[str, ...] = ()
    foreign_mib: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """The part of a node that no launch changes; one object for all nodes that are alike in it."""

    groups: tuple[GpuGroup, ...]
    time_scale: float
    available: bool
    draining: bool


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest slowdown that one resident bears.

    ``slowdown`` credits what the run has saved so far, ``None`` when it cannot be told; ``plain`` is the bare
    stretch limit, which counts for a set that was undone before.
    """

    family: str
    who: str
    slowdown: float | None
    plain: float


class SetKind(NamedTuple):
    """What sets have in common that a newcomer experiences alike."""

    families: FamilySet
    model: str
    gpus: int
    time_scale: float


@dataclass(frozen=True, slots=True)
class SetFacts:
    """A held set as a newcomer meets it. ``closed`` says why it takes nobody, whoever comes.

    ``free_mib`` per GPU is what peaks leave of ``usable_mib``; ``None`` is unknown, which forbids sharing.
    """

    kind: SetKind
    placement: Placement
    job_ids: tuple[str, ...]
    closed: str | None
    usable_mib: int | None
    free_mib: int | None
    tolerances: tuple[Tolerance, ...]


class CycleFacts:
    """Facts under one instant, one book of profiles, one set of readings and one pool's settings."""

    def __init__(self, snapshot: ClusterSnapshot, before: CycleFacts | None = None) -> None:
        """Begin with nothing known, or with the predictions of ``before`` where the beliefs are the same."""
        self.settings: PoolSettings = snapshot.pool.settings
        self.now_s = snapshot.now_s
        self.book: ProfileBook = snapshot.profiles
        self.readings: Mapping[str, GpuReading] = snapshot.readings
        self._hardware: dict[int, tuple[Node, Hardware]] = {}
        self._built: dict[tuple[object, ...], Hardware] = {}
        self._sets: dict[int, tuple[GpuSet, SetFacts]] = {}
        self.predictions: dict[tuple[FamilySet, str, int], SetPrediction | None] = {}
        if before is not None and self.believes_as(before):
            self.predictions = before.predictions

    def hold_for(self, snapshot: ClusterSnapshot) -> bool:
        """Tell whether these facts are also those of ``snapshot``."""
        return (
            self.now_s == snapshot.now_s
            and self.settings is snapshot.pool.settings
            and self.book is snapshot.profiles
            and self.readings is snapshot.readings
        )

    def believes_as(self, other: CycleFacts) -> bool:
        """Tell whether both predict alike: same profiles, same settings."""
        return self.settings is other.settings and self.book is other.book

    def predict(self, families: FamilySet, gpu_model: str, gpu_count: int) -> SetPrediction | None:
        key = (families, gpu_model, gpu_count)
        if key not in self.predictions:
            self.predictions[key] = predict(
                families, gpu_model, gpu_count, self.book, self.settings.estimate_error
            )
        return self.predictions[key]

    def is_sound(self, gpu: Gpu) -> bool:
        """Tell whether new work may start there: healthy, and nobody else's."""
        return gpu.health is GpuHealth.HEALTHY and not self._foreign_mib(gpu)

    def hardware(self, node: Node) -> Hardware:
        known = self._hardware.get(id(node))
        if known is None:
            # The node is kept with its facts, so that its id stays its own; so are the sets below.
            known = self._hardware[id(node)] = (node, self._hardware_of(node))
        return known[1]

    def held(self, held: GpuSet, node: Node) -> SetFacts:
        known = self._sets.get(id(held))
        if known is None:
            known = self._sets[id(held)] = (held, self._set_facts(held, node))
        return known[1]

    def _hardware_of(self, node: Node) -> Hardware:
        by_size: dict[tuple[str, int | None], list[Gpu]] = {}
        for gpu in node.gpus:
            by_size.setdefault((gpu.model, gpu.memory_usable_mib), []).append(gpu)
        groups = [
            GpuGroup(
                model,
                usable_mib,
                len(gpus),
                sum(self.is_sound(gpu) for gpu in gpus),
                tuple(sorted(gpu.uuid for gpu in gpus if gpu.health is not GpuHealth.HEALTHY)),
                max(self._foreign_mib(gpu) for gpu in gpus),
            )
            for (model, usable_mib), gpus in by_size.items()
        ]
        groups.sort(key=lambda group: (group.model, group.usable_mib or 0))
        parts = tuple(groups), node.time_scale, node.available, node.draining
        return self._built.setdefault(parts, Hardware(*parts))

    def _foreign_mib(self, gpu: Gpu) -> int:
        """Return the memory that somebody else holds there, 0 up to the margin (which is there for it)."""
        reading = self.readings.get(gpu.uuid)
        held_mib = 0 if reading is None else reading.foreign_memory_mib or 0
        return held_mib if held_mib > self.settings.memory_margin_mib else 0

    def _set_facts(self, held: GpuSet, node: Node) -> SetFacts:
        usable = [gpu.memory_usable_mib for gpu in held.gpus]
        known_usable = [amount for amount in usable if amount is not None]
        usable_mib = min(known_usable) if len(known_usable) == len(usable) else None
        reserved_mib = self._reserved_mib(held)
        return SetFacts(
            SetKind(family_set(held.families), held.gpus[0].model, len(held.gpus), node.time_scale),
            held.placement,
            tuple(resident.job.job_id for resident in held.residents),
            self._closed(held, node),
            usable_mib,
            None if usable_mib is None or reserved_mib is None else usable_mib - reserved_mib,
            tuple(self._tolerance(resident, held, node.time_scale) for resident in held.residents),
        )

    def _closed(self, held: GpuSet, node: Node) -> str | None:
        states = {resident.state for resident in held.residents}
        if node.draining or not node.available or not all(self.is_sound(gpu) for gpu in held.gpus):
            return "its node or GPUs take no new work"
        if any(is_exclusive(resident.job, self.settings) for resident in held.residents):
            return "held exclusively"
        if LeaseState.YIELDING in states:
            return "a resident is leaving"
        if LeaseState.UNCONFIRMED in states:
            return "its trial ended unconfirmed"
        if len(held.residents) > 1 and LeaseState.TRIAL in states:
            return "its trial is not over"
        return None

    def _reserved_mib(self, held: GpuSet) -> int | None:
        """Return what is taken per GPU: all peaks, or what is in use already where that is more."""
        total_mib = 0
        for resident in held.residents:
            request = resident.job.request
            solo = self.book.solo_of(request.family, held.gpus[0].model, len(held.gpus))
            peak_mib = memory_peak_mib(request.gpu_memory_mib, solo)
            if peak_mib is None:
                return None
            total_mib += peak_mib
        readings = [self.readings[gpu.uuid] for gpu in held.gpus if gpu.uuid in self.readings]
        return max([total_mib, *(reading.memory_used_mib or 0 for reading in readings)])

    def _tolerance(self, resident: Resident, held: GpuSet, time_scale: float) -> Tolerance:
        request, progress = resident.job.request, resident.job.progress
        plain = math.inf if request.max_stretch is None else request.max_stretch
        solo = resident_profile(resident, held, self.book)
        unit_s = resident_unit_s(resident, solo)
        left = units_left(progress, solo)
        stretch = slowdown_within_stretch(
            progress, units_total_of(progress, solo), unit_s, request.max_stretch
        )
        left_s = None if left is None or unit_s is None else left * unit_s
        until = slowdown_within_deadline(left_s, resident.job.deadline_at_s, self.now_s, time_scale)
        bears = None if until is None else min(stretch, until)
        return Tolerance(request.family, resident.job.label, bears, plain)


def is_exclusive(job: Job, settings: PoolSettings) -> bool:
    """Tell whether the job has GPUs of its own: by its own wish, or because its priority buys them."""
    bought = settings.exclusive_priority is not None and job.priority >= settings.exclusive_priority
    return bought or job.request.share is Share.NEVER


def memory_peak_mib(requested_mib: int | None, solo: SoloProfile | None) -> int | None:
    """Return what a job has to be given per GPU beside others: the larger of what it asks and what was seen.

    A request smaller than the whole-run peak that was measured does not make the job smaller (C37), and a
    peak does not become untrue with age. ``None``: neither is known.
    """
    profiled_mib = None if solo is None else solo.memory_peak_mib
    known = [amount for amount in (requested_mib, profiled_mib) if amount is not None]
    return max(known, default=None)
