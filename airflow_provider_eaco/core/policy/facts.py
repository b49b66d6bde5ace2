"""What is derived once from the parts that successive snapshots of a cycle share.

Snapshots share structure: a launch replaces the state of one node and leaves all others the same objects. So
everything here is kept by the identity of the state it was derived from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.energy.interference import predict
from airflow_provider_eaco.core.energy.outlook import (
    slowdown_within_deadline,
    slowdown_within_stretch,
    units_left,
    units_total_of,
)
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading
from airflow_provider_eaco.core.model.job import Job, Share
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook, SoloProfile, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState, Resident
from airflow_provider_eaco.core.policy.trial import resident_profile, resident_unit_s


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs of one model and one memory size on a node. ``free`` are usable ones, sorted by UUID."""

    model: str
    usable_mib: int | None
    total: int
    sound: int
    unhealthy: tuple[str, ...]
    foreign_mib: int
    free: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest slowdown that one resident bears.

    ``slowdown`` credits what the run has saved so far; ``plain`` is the bare stretch limit, used for a set
    that was undone before. ``slowdown`` is ``None`` when it cannot be told.
    """

    family: str
    who: str
    slowdown: float | None
    plain: float


@dataclass(frozen=True, slots=True)
class SetFacts:
    """A held set as a newcomer meets it. ``closed`` says why it takes nobody, whoever comes.

    ``usable_mib`` and ``reserved_mib`` are per GPU; ``None`` means unknown, which forbids sharing.
    """

    placement: Placement
    model: str
    families: FamilySet
    job_ids: tuple[str, ...]
    closed: str | None
    usable_mib: int | None
    reserved_mib: int | None
    tolerances: tuple[Tolerance, ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as a newcomer meets it."""

    name: str
    time_scale: float
    groups: tuple[GpuGroup, ...]
    sets: tuple[SetFacts, ...]
    host_free_mib: int | None
    draining: bool
    available: bool


class CycleFacts:
    """Facts under one instant, one book of profiles, one set of readings and one pool's settings."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.settings: PoolSettings = snapshot.pool.settings
        self.now_s = snapshot.now_s
        self.book: ProfileBook = snapshot.profiles
        self.readings: Mapping[str, GpuReading] = snapshot.readings
        self._nodes: dict[str, tuple[NodeState, NodeFacts]] = {}
        self._sets: dict[int, tuple[GpuSet, SetFacts]] = {}
        self._predictions: dict[tuple[FamilySet, str, int], SetPrediction | None] = {}

    def hold_for(self, snapshot: ClusterSnapshot) -> bool:
        """Tell whether these facts are also those of ``snapshot``."""
        return (
            self.now_s == snapshot.now_s
            and self.settings is snapshot.pool.settings
            and self.book is snapshot.profiles
            and self.readings is snapshot.readings
        )

    def of_node(self, state: NodeState) -> NodeFacts:
        name = state.node.name
        known = self._nodes.get(name)
        if known is not None and known[0] is state:
            return known[1]
        facts = self._node_facts(state)
        self._nodes[name] = (state, facts)
        return facts

    def predict(self, families: FamilySet, gpu_model: str, gpu_count: int) -> SetPrediction | None:
        key = (families, gpu_model, gpu_count)
        if key not in self._predictions:
            self._predictions[key] = predict(
                families, gpu_model, gpu_count, self.book, self.settings.estimate_error
            )
        return self._predictions[key]

    def foreign_mib(self, gpu: Gpu) -> int:
        """Return the memory that somebody else holds there, 0 up to the margin (which is there for it)."""
        reading = self.readings.get(gpu.uuid)
        held_mib = 0 if reading is None else reading.foreign_memory_mib or 0
        return held_mib if held_mib > self.settings.memory_margin_mib else 0

    def _node_facts(self, state: NodeState) -> NodeFacts:
        node = state.node
        host_mib = node.host_memory_mib
        if host_mib is not None:
            host_mib -= sum(
                resident.job.request.host_memory_mib or 0
                for held in state.sets
                for resident in held.residents
            )
        return NodeFacts(
            node.name,
            node.time_scale,
            self._groups(state),
            tuple(self._set_facts(held, node.time_scale) for held in state.sets),
            host_mib,
            node.draining,
            node.available,
        )

    def _groups(self, state: NodeState) -> tuple[GpuGroup, ...]:
        free = {gpu.uuid for gpu in state.free}
        by_size: dict[tuple[str, int | None], list[Gpu]] = {}
        for gpu in state.node.gpus:
            by_size.setdefault((gpu.model, gpu.memory_usable_mib), []).append(gpu)
        groups = []
        for (model, usable_mib), gpus in by_size.items():
            unhealthy = tuple(sorted(gpu.uuid for gpu in gpus if gpu.health is not GpuHealth.HEALTHY))
            foreign = {gpu.uuid: held_mib for gpu in gpus if (held_mib := self.foreign_mib(gpu))}
            sound = {gpu.uuid for gpu in gpus} - set(unhealthy) - foreign.keys()
            groups.append(
                GpuGroup(
                    model,
                    usable_mib,
                    len(gpus),
                    len(sound),
                    unhealthy,
                    max(foreign.values(), default=0),
                    tuple(sorted(sound & free)),
                )
            )
        return tuple(sorted(groups, key=lambda group: (group.model, group.usable_mib or 0)))

    def _set_facts(self, held: GpuSet, time_scale: float) -> SetFacts:
        known = self._sets.get(id(held))
        if known is not None:
            return known[1]
        usable = [gpu.memory_usable_mib for gpu in held.gpus]
        known_usable = [amount for amount in usable if amount is not None]
        facts = SetFacts(
            held.placement,
            held.gpus[0].model,
            family_set(held.families),
            tuple(resident.job.job_id for resident in held.residents),
            self._closed(held),
            min(known_usable) if len(known_usable) == len(usable) else None,
            self._reserved_mib(held),
            tuple(self._tolerance(resident, held, time_scale) for resident in held.residents),
        )
        # The set is kept with its facts, so that its id stays its own.
        self._sets[id(held)] = (held, facts)
        return facts

    def _closed(self, held: GpuSet) -> str | None:
        states = {resident.state for resident in held.residents}
        if LeaseState.YIELDING in states:
            return "a resident is leaving"
        if any(is_exclusive(resident.job, self.settings) for resident in held.residents):
            return "held exclusively"
        if LeaseState.UNCONFIRMED in states:
            return "its trial ended unconfirmed"
        if len(held.residents) > 1 and LeaseState.TRIAL in states:
            return "its trial is not over"
        if any(gpu.health is not GpuHealth.HEALTHY or self.foreign_mib(gpu) for gpu in held.gpus):
            return "a GPU is unhealthy or used by somebody else"
        return None

    def _reserved_mib(self, held: GpuSet) -> int | None:
        total_mib = 0
        for resident in held.residents:
            request = resident.job.request
            solo = self.book.solo_of(request.family, held.gpus[0].model, len(held.gpus))
            peak_mib = memory_peak_mib(request.gpu_memory_mib, solo)
            if peak_mib is None:
                return None
            total_mib += peak_mib
        in_use = [self.readings[gpu.uuid].memory_used_mib for gpu in held.gpus if gpu.uuid in self.readings]
        return max([total_mib, *(used for used in in_use if used is not None)])

    def _tolerance(self, resident: Resident, held: GpuSet, time_scale: float) -> Tolerance:
        job = resident.job
        solo = resident_profile(resident, held, self.book)
        unit_s = resident_unit_s(resident, solo)
        left = units_left(job.progress, solo)
        stretch = slowdown_within_stretch(
            job.progress, units_total_of(job.progress, solo), unit_s, job.request.max_stretch
        )
        deadline = slowdown_within_deadline(
            None if left is None or unit_s is None else left * unit_s,
            job.kind.deadline_at_s,
            self.now_s,
            time_scale,
        )
        return Tolerance(
            job.request.family,
            job.label,
            None if deadline is None else min(stretch, deadline),
            math.inf if job.request.max_stretch is None else job.request.max_stretch,
        )


def is_exclusive(job: Job, settings: PoolSettings) -> bool:
    """Tell whether the job has GPUs of its own: by its own wish, or because its priority buys them."""
    bought = settings.exclusive_priority is not None and job.priority >= settings.exclusive_priority
    return bought or job.request.share is Share.NEVER


def memory_peak_mib(requested_mib: int | None, solo: SoloProfile | None) -> int | None:
    """Return what a job has to be given per GPU beside others: the larger of what it asks and what was seen.

    A request smaller than the whole-run peak that was measured does not make the job smaller (C37), and a
    peak does not become untrue with age.
    """
    profiled_mib = None if solo is None else solo.memory_peak_mib
    known = [amount for amount in (requested_mib, profiled_mib) if amount is not None]
    return max(known, default=None)
