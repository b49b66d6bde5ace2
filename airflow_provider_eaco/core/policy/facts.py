"""What a newcomer has to know of nodes and held sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_eaco.core.energy.learned import make_predictor
from airflow_provider_eaco.core.energy.power_levels import FULL_POWER, Way, ways_of
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Hardware, Node
from airflow_provider_eaco.core.model.job import Job, JobKind, Share
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits, PredictorName
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook, SoloProfile, family_set
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy.bearing import Bearing, Tolerance
from airflow_provider_eaco.core.policy.trial import resident_profile


class SetKind(NamedTuple):
    """What sets have in common that a newcomer experiences alike."""

    families: FamilySet
    model: str
    gpus: int
    time_scale: float


@quick_init
@dataclass(frozen=True, slots=True)
class SetFacts:
    """A held set as a newcomer meets it. ``closed`` says why it takes nobody, whoever comes; ``full`` that it
    has as many residents as the pool allows.

    ``free_mib`` per GPU is what peaks leave of ``usable_mib``; ``None`` is unknown, which forbids sharing.
    ``dated``: what its residents bear changes as time goes by, since one has a deadline. Of a set that takes
    nobody neither memory nor what its residents bear (``bearing``) are told.
    """

    kind: SetKind
    placement: Placement
    job_ids: tuple[str, ...]
    closed: str | None
    full: bool
    usable_mib: int | None
    free_mib: int | None
    bearing: Bearing | None
    dated: bool

    @property
    def tolerances(self) -> tuple[Tolerance, ...]:
        """How much slowdown those of its residents bear who have a limit."""
        return () if self.bearing is None else self.bearing.tolerances

    def after_reports(self, held: GpuSet) -> SetFacts:
        """Return the set with what has been reported since; :meth:`CycleFacts.meets_alike` has to hold."""
        bearing = None if self.bearing is None else self.bearing.after_reports(held)
        if bearing is self.bearing:
            return self
        return SetFacts(
            self.kind,
            self.placement,
            self.job_ids,
            self.closed,
            self.full,
            self.usable_mib,
            self.free_mib,
            bearing,
            dated=self.dated,
        )


_Predicted = tuple[FamilySet, str, int]


class Changed(NamedTuple):
    """What is believed otherwise than before: all that one of ``families`` has to do with, and of sets of
    several families exactly ``sets``.
    """

    families: frozenset[str] = frozenset()
    sets: frozenset[FamilySet] = frozenset()

    def concerns(self, members: FamilySet) -> bool:
        """Tell whether something else may be predicted of the set."""
        return members in self.sets or not self.families.isdisjoint(members)

    def newcomers(self) -> Mapping[FamilySet, set[str]]:
        """Return, by the residents, the families that would make one of ``sets`` with them."""
        found: dict[FamilySet, set[str]] = {}
        for members in self.sets:
            for place, family in enumerate(members):
                residents = FamilySet(members[:place] + members[place + 1 :])
                found.setdefault(residents, set()).add(family)
        return found


class CycleFacts:
    """Facts under one instant, one book of profiles, one set of readings and one pool's settings.

    :param predictor: how the policy predicts sets by itself; the pool's setting of that name comes first.
    """

    def __init__(
        self, snapshot: ClusterSnapshot, predictor: PredictorName = PredictorName.CONSERVATIVE
    ) -> None:
        self.settings: PoolSettings = snapshot.pool.settings
        self.predictor = make_predictor(self.settings.predictor or predictor, self.settings.estimate_error)
        self.book: ProfileBook = snapshot.profiles
        self.changed = Changed()
        self.changed_alone: frozenset[str] = frozenset()
        self._predictions: dict[_Predicted, SetPrediction | None] = {}
        self._predicted_of: dict[str, set[_Predicted]] = {}
        self.move_to(snapshot)

    def move_to(self, snapshot: ClusterSnapshot) -> frozenset[str]:
        """Be about another snapshot with the same settings; return the families of which facts differ.

        ``changed`` tells this set by set, and ``changed_alone`` has those of which what they do alone has
        changed.
        """
        self.changed, self.changed_alone = Changed(), frozenset()
        if snapshot.profiles is not self.book:
            self._believe(snapshot.profiles)
        self.now_s = snapshot.now_s
        self._nodes = snapshot.nodes
        self._alike: Mapping[Hardware, frozenset[str]] | None = None
        self.readings: Mapping[str, GpuReading] = snapshot.readings
        # Who computes there, or holds more than the margin (which is there for it), is in the way.
        margin_mib = self.settings.memory_margin_mib
        self._foreign = {
            uuid: reading for uuid, reading in self.readings.items() if reading.is_used_by_others(margin_mib)
        }
        return self.changed.families.union(*self.changed.sets)

    def _believe(self, book: ProfileBook) -> None:
        self.changed_alone = book.families_changed_alone_since(self.book)
        if self.predictor.learns_across:
            self.changed = Changed(self.predictor.families_changed(self.book, book))
        else:
            self.changed = Changed(self.changed_alone, book.sets_changed_since(self.book))
        self.book = book
        for family in self.changed.families:
            for key in self._predicted_of.pop(family, ()):
                self._predictions.pop(key, None)
        for members in self.changed.sets:
            for key in self._predicted_of.get(members[0], ()):
                if key[0] == members:
                    self._predictions.pop(key, None)

    def are_of(self, snapshot: ClusterSnapshot) -> bool:
        """Tell whether these are the facts of that snapshot, whichever launches it has seen."""
        return (
            self.now_s == snapshot.now_s
            and self.book is snapshot.profiles
            and self.readings is snapshot.readings
        )

    def predict(self, families: FamilySet, gpu_model: str, gpu_count: int) -> SetPrediction | None:
        key = (families, gpu_model, gpu_count)
        if key not in self._predictions:
            self._predictions[key] = self.predictor.predict(families, gpu_model, gpu_count, self.book)
            for family in families:
                self._predicted_of.setdefault(family, set()).add(key)
        return self._predictions[key]

    def ways(self, families: FamilySet, gpu_model: str, gpu_count: int) -> tuple[Way, ...]:
        """Return at which power limits such a set may be run: full power first, or alone."""
        if self.settings.power_limits is not PowerLimits.APPLY:
            return (FULL_POWER,)
        return ways_of(families, gpu_model, gpu_count, self.book)

    def is_sound(self, gpu: Gpu) -> bool:
        """Tell whether new work may start there: healthy, and nobody else's."""
        return gpu.health is GpuHealth.HEALTHY and gpu.uuid not in self._foreign

    def hardware(self, node: Node) -> Hardware:
        """Return what the node offers beside those who are not ours."""
        return node.hardware_beside(self._foreign) if self.in_foreign_use(node) else node.hardware

    def in_foreign_use(self, node: Node) -> tuple[str, ...]:
        """Return the GPUs of the node that somebody else uses."""
        foreign = self._foreign
        return tuple(gpu.uuid for gpu in node.gpus if gpu.uuid in foreign) if foreign else ()

    def alike(self) -> Mapping[Hardware, frozenset[str]]:
        """Return the snapshot's nodes by what they offer; no launch changes it."""
        if self._alike is None:
            names: dict[Hardware, list[str]] = {}
            for name, state in self._nodes.items():
                names.setdefault(self.hardware(state.node), []).append(name)
            self._alike = {built: frozenset(alike) for built, alike in names.items()}
        return self._alike

    def held(self, held: GpuSet, node: Node) -> SetFacts:
        """Return the set as a newcomer meets it; nothing of it depends on the instant."""
        residents = held.residents
        kind = SetKind(family_set(held.families), held.gpus[0].model, len(held.gpus), node.time_scale)
        job_ids = tuple(resident.job.job_id for resident in residents)
        closed = self._closed(held, node)
        full = len(residents) >= self.settings.max_residents
        if full or closed is not None:
            return SetFacts(kind, held.placement, job_ids, closed, full, None, None, None, dated=False)
        usable = [gpu.memory_usable_mib for gpu in held.gpus]
        known_usable = [amount for amount in usable if amount is not None]
        usable_mib = min(known_usable) if len(known_usable) == len(usable) else None
        reserved_mib = self._reserved_mib(held)
        return SetFacts(
            kind,
            held.placement,
            job_ids,
            closed,
            full,
            usable_mib,
            None if usable_mib is None or reserved_mib is None else usable_mib - reserved_mib,
            Bearing(held, [resident_profile(each, held, self.book) for each in residents], node.time_scale),
            dated=any(resident.job.request.deadline_s is not None for resident in residents),
        )

    def meets_alike(self, before: GpuSet, held: GpuSet) -> bool:
        """Tell whether the sets, on the same GPUs, are open, closed and full alike, whatever was reported."""
        if len(before.residents) != len(held.residents):
            return False
        for was, now in zip(before.residents, held.residents, strict=True):
            before_job, job = was.job, now.job
            if (
                before_job.request is not job.request
                or was.state is not now.state
                or before_job.job_id != job.job_id
                or before_job.priority != job.priority
                or before_job.progress.out_of_memory != job.progress.out_of_memory
            ):
                return False
        return True

    def _closed(self, held: GpuSet, node: Node) -> str | None:
        if node.draining or not node.available or not all(map(self.is_sound, held.gpus)):
            return "its node or GPUs take no new work"
        if self._is_held_apart(held):
            return "held exclusively"
        states = [resident.state for resident in held.residents]
        if LeaseState.YIELDING in states:
            return "a resident is leaving"
        if LeaseState.UNCONFIRMED in states:
            return "its trial ended unconfirmed"
        if len(held.residents) > 1 and LeaseState.TRIAL in states and not self._is_known(held):
            return "its trial is not over"
        return None

    def _is_held_apart(self, held: GpuSet) -> bool:
        for resident in held.residents:
            if is_exclusive(resident.job, self.settings):
                return True
        return any(gpu.is_partition for gpu in held.gpus)

    def _is_known(self, held: GpuSet) -> bool:
        """Tell whether such sets were measured and never undone: a newcomer spoils no evidence there."""
        present = self.predict(family_set(held.families), held.gpus[0].model, len(held.gpus))
        return present is not None and present.measured and not present.undone

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


def is_exclusive(job: Job, settings: PoolSettings) -> bool:
    """Tell whether the job has GPUs of its own, whatever the policy."""
    return exclusive_because(job, settings) is not None


def exclusive_because(job: Job | JobKind, settings: PoolSettings) -> str | None:
    """Say why the job has GPUs of its own: by its own wish, because its priority buys them, or because the
    memory of shared ones did not suffice for it (C38). ``None``: it may share.
    """
    if job.request.share is Share.NEVER:
        return "the task asks for GPUs of its own"
    if settings.exclusive_priority is not None and job.priority >= settings.exclusive_priority:
        return "its priority buys GPUs of its own"
    if job.progress.out_of_memory > 0:
        return "it ran out of memory beside others, so it takes GPUs of its own"
    return None


def memory_peak_mib(requested_mib: int | None, solo: SoloProfile | None) -> int | None:
    """Return what a job has to be given per GPU beside others: the larger of what it asks and what was seen.

    A request smaller than the whole-run peak that was measured does not make the job smaller (C37), and a
    peak does not become untrue with age. ``None``: neither is known.
    """
    profiled_mib = None if solo is None else solo.memory_peak_mib
    known = [amount for amount in (requested_mib, profiled_mib) if amount is not None]
    return max(known, default=None)
