"""Our own policy: order, sharing and moves decided together, by joules above the price of work (ADR 0016).

Every set of jobs has a loss (:mod:`~airflow_provider_eaco.core.policy.frontier_worth`). A job goes where it
adds least: into a set, to GPUs of its own, or it waits for a better place. Who is left behind in a poor set
moves where that saves more than it costs. Limits are promises: no placement is taken under which a member's
own limits, or the pool's mean stretch, would not hold if everything went on as predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.prices import EnergyPrices
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy.base import Lever, Review, Steering
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.facts import CycleFacts, is_exclusive
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.frontier_members import Member, Moment, newcomer
from airflow_provider_eaco.core.policy.frontier_moves import Moves
from airflow_provider_eaco.core.policy.frontier_scene import Addition, Scene, Scenes
from airflow_provider_eaco.core.policy.frontier_worth import FORESIGHT_S, Classes, Worth
from airflow_provider_eaco.core.policy.reviews import Reviews

# Who waits for these lacks GPUs and nothing else.
_SHORTAGE = frozenset({Reason.WAITING_FOR_GPU, Reason.RESERVED_FOR_EARLIER_JOB})
# Joules that a node takes which has to be woken for one job and idles before it sleeps again: 120 s and 300 s
# at the idle draw of eight V100, less what others who come meanwhile save.
OPEN_J = 100e3
# A job joins a set at this loss rather than to wait on.
WAITS_UP_TO_W = 60.0
# For each second that another has waited longer, it may lose so much more and still go first.
AGE_W = 5.0


@dataclass(frozen=True, slots=True)
class _Option:
    """The best set for a kind of job."""

    scene: Scene
    added: Addition


class FrontierPolicy:
    """Weighs joining a set, GPUs of its own and waiting by predicted joules against the energy prices."""

    levers = frozenset({Lever.MEAN_STRETCH, Lever.MOVES})
    weighs_prices = True

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._alone = ExclusivePolicy(settings)
        self._reviews = Reviews()
        self._classes: Classes | None = None
        self._scenes: Scenes | None = None

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        return self._reviews.review(held, snapshot)

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        return self._reviews.all_due(snapshot)

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        # 1. What keeps it from every GPU, and where it would have GPUs of its own.
        alone = self._alone.decide(job, snapshot)
        short = all(finding.reason in _SHORTAGE for finding in alone.findings)
        me = self._newcomer(job, snapshot)
        if is_exclusive(job, self._settings) or (alone.placement is None and not short) or me is None:
            return alone
        # 2. The set to which it adds least, within everybody's limits and the pool's.
        scenes = self._scenes_of(snapshot)
        option = self._best(job, me, scenes, snapshot)
        if option is None:
            return alone
        # 3. That or GPUs of its own, whichever is cheaper.
        if alone.placement is not None:
            number = scenes.worth.classes.number(me.key)
            opened_j = scenes.worth.loss_j([(number, me.left_s)]) + OPEN_J
            if option.added.loss_j < opened_j:
                return _join(option, opened_j)
            return replace(alone, choice=_opens(option, opened_j))
        # 4. Or it waits: for a better partner, or since another of the queue should have the place.
        waits = self._waits(job, me, option, snapshot)
        return _join(option, None) if waits is None else hold(*alone.findings, waits)

    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        """Ask those to move who would do better elsewhere; with a queue, holes are filled from there."""
        if snapshot.waiting:
            return Steering()
        scenes = self._scenes_of(snapshot)
        return Steering(tuple(Moves(scenes, scenes.slack_s()).best()))

    def _best(self, job: Job, me: Member, scenes: Scenes, snapshot: ClusterSnapshot) -> _Option | None:
        needs = Needs.of(job.request)
        limit_s = scenes.slack_s()
        if job.progress.units_done == 0 and me.work_s is not None:
            limit_s += (self._settings.mean_stretch - 1) * me.work_s
        best: _Option | None = None
        for scene in scenes.all:
            if snapshot.barred and snapshot.barred.intersection(scene.held.placement.gpu_uuids):
                continue
            added = scenes.addition(scene, me, needs)
            if added is None or added.excess_s > limit_s:
                continue
            if best is None or added.loss_j < best.added.loss_j:
                best = _Option(scene, added)
        return best

    def _waits(self, job: Job, me: Member, option: _Option, snapshot: ClusterSnapshot) -> Finding | None:
        """Return why the job should not have the place now; who was interrupted never waits by choice."""
        if job.progress.units_done:
            return None
        if option.added.loss_j > WAITS_UP_TO_W * min(me.left_s, FORESIGHT_S):
            return _waits_for_partner(option, snapshot)
        scenes = self._scenes_of(snapshot)
        if self._another_first(job, option, scenes, snapshot):
            return Finding(Reason.BEHIND_IN_QUEUE)
        return None

    def _another_first(self, job: Job, option: _Option, scenes: Scenes, snapshot: ClusterSnapshot) -> bool:
        """Tell whether another kind of waiting job should have the place."""
        others: dict[JobKind, Job] = {}
        for other in snapshot.waiting:
            first = others.get(other.kind)
            if first is None or other.queued_s < first.queued_s:
                others[other.kind] = other
        for kind, other in others.items():
            if kind == job.kind or other.progress.units_done or is_exclusive(other, self._settings):
                continue
            them = self._newcomer(other, snapshot)
            if them is None or _placed(other, scenes):
                continue
            added = scenes.addition(option.scene, them, Needs.of(other.request))
            if added is None:
                continue
            earlier_s = other.queued_s - job.queued_s
            if added.loss_j + AGE_W * earlier_s < option.added.loss_j:
                return True
        return False

    def _newcomer(self, job: Job, snapshot: ClusterSnapshot) -> Member | None:
        """Return the job as a member on the first GPU model that it accepts and that is there."""
        groups = {group.model for state in snapshot.nodes.values() for group in state.node.hardware.groups}
        models = job.request.gpu_models or sorted(groups)
        found = (model for model in models if model in groups)
        model = next(found, None)
        if model is None:
            return None
        return newcomer(job, model, Moment(snapshot.now_s, snapshot.profiles))

    def _scenes_of(self, snapshot: ClusterSnapshot) -> Scenes:
        """Return the sets as they stand in this snapshot; what stays the same is not weighed anew."""
        prices = snapshot.prices or EnergyPrices(snapshot.now_s, 0.0)
        classes, scenes = self._classes, self._scenes
        if classes is None or not _are_about(classes, snapshot):
            classes = self._classes = Classes(CycleFacts(snapshot))
        if scenes is None or scenes.now_s != snapshot.now_s or scenes.worth.classes is not classes:
            worth = None if scenes is None else scenes.worth
            if worth is None or worth.classes is not classes or worth.prices.classes is not prices.classes:
                worth = Worth(classes, prices)
            worth.prices = prices
            scenes = self._scenes = Scenes(worth, snapshot.now_s)
        scenes.follow(snapshot)
        return scenes


def _are_about(classes: Classes, snapshot: ClusterSnapshot) -> bool:
    facts = classes.facts
    return (
        facts.book is snapshot.profiles
        and facts.settings == snapshot.pool.settings
        and facts.readings == snapshot.readings
    )


def _placed(job: Job, scenes: Scenes) -> bool:
    return any(member.job_id == job.job_id for scene in scenes.all for member in scene.members)


def _join(option: _Option, opened_j: float | None) -> AdmissionDecision:
    scene, added = option.scene, option.added
    families = " + ".join(scene.facts.kind.families)
    against = "no GPUs are free" if opened_j is None else f"GPUs of its own: {_megajoules(opened_j)}"
    return AdmissionDecision(
        Verdict.ADMIT,
        placement=scene.held.placement,
        co_residents=scene.facts.job_ids,
        prediction=added.prediction,
        choice=f"beside {families} it adds {_megajoules(added.loss_j)} above the price of its work, "
        f"less than in any other set; {against}",
    )


def _opens(option: _Option, opened_j: float) -> str:
    families = " + ".join(option.scene.facts.kind.families)
    return (
        f"GPUs of its own: {_megajoules(opened_j)} above the price of its work; "
        f"the best set to join, {families}: {_megajoules(option.added.loss_j)}"
    )


def _megajoules(energy_j: float) -> str:
    return f"{energy_j / 1e6:.2f} MJ"


def _waits_for_partner(option: _Option, snapshot: ClusterSnapshot) -> Finding:
    scene = option.scene
    ends_s = min(member.left_s * member.slowdown for member in scene.members)
    return Finding(
        Reason.WAITING_FOR_PARTNER, {"expected_s": snapshot.now_s + ends_s / scene.node.time_scale}
    )
