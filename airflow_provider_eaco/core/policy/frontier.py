"""Our own policy: order, sharing and moves decided together, by joules above the price of work (ADR 0016).

Every set of jobs has a loss (:mod:`~airflow_provider_eaco.core.policy.frontier_worth`). A job goes where it
adds least: into a set, to GPUs of its own, or it waits for a better place. Who is left behind in a poor set
moves where that saves more than it costs. Limits are promises: no placement is taken under which a member's
own limits, or the pool's mean stretch, would not hold if everything went on as predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.instruction import SetPowerLimit, Yield
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy.base import Lever, Review, Steering
from airflow_provider_eaco.core.policy.bookings import nodes_booked
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.facts import is_exclusive
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.frontier_levels import Levels, advice
from airflow_provider_eaco.core.policy.frontier_members import Member
from airflow_provider_eaco.core.policy.frontier_moves import Moves
from airflow_provider_eaco.core.policy.frontier_reviews import FrontierReviews
from airflow_provider_eaco.core.policy.frontier_scene import Addition, Scene
from airflow_provider_eaco.core.policy.frontier_view import View, nodes_down
from airflow_provider_eaco.core.policy.frontier_worth import FORESIGHT_S, Worth

# Who waits for these lacks GPUs and nothing else.
_SHORTAGE = frozenset({Reason.WAITING_FOR_GPU, Reason.RESERVED_FOR_EARLIER_JOB})
# Joules that a node takes which has to be woken for one job and idles before it sleeps again: 120 s and 300 s
# at the idle draw of eight V100, less what others who come meanwhile save.
OPEN_J = 100e3
# A job joins a set at this loss rather than to wait on, and at so much more for each second it has waited.
WAITS_UP_TO_W = 5.0
AGE_W = 0.2
# While GPUs are free, nobody waits for a better partner once one of its class has waited for so long: most
# jobs come in crowds, some minutes after one another. Device seconds.
PARTNER_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True)
class _Option:
    """The best set for a kind of job."""

    scene: Scene
    added: Addition


class FrontierPolicy:
    """Weighs joining a set, GPUs of its own and waiting by predicted joules against the energy prices."""

    levers = frozenset({Lever.MEAN_STRETCH, Lever.MOVES, Lever.POWER_LIMITS})
    weighs_prices = True

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._alone = ExclusivePolicy(settings)
        self._reviews = FrontierReviews(self._members_of)
        self._view: View | None = None

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        return self._reviews.review(held, snapshot)

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        return self._reviews.all_due(snapshot)

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        decision = self._placed(job, snapshot)
        advises = self._settings.power_limits is PowerLimits.ADVISE
        return self._with_advice(decision, job, snapshot) if advises and decision.placement else decision

    def _placed(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        # 1. What keeps it from every GPU, and where it would have GPUs of its own.
        alone = self._by_itself(job, snapshot)
        short = all(finding.reason in _SHORTAGE for finding in alone.findings)
        view = self._view_of(snapshot)
        me = view.newcomer(job, snapshot.now_s, snapshot.profiles)
        if is_exclusive(job, self._settings) or (alone.placement is None and not short) or me is None:
            return alone
        # 2. The set to which it adds least, within everybody's limits and the pool's.
        worth = view.worth_beside(job)
        option = self._best(job, me, worth, view, snapshot)
        alone_j = worth.loss_j([(view.classes.number(me.key), me.left_s)])
        least_j = alone_j if option is None else min(alone_j, option.added.loss_j)
        weighs = alone.placement is not None and math.isfinite(alone_j)
        hope = self._hope(job, me, least_j, snapshot) if weighs else None
        if option is None or hope is not None:
            return alone if hope is None else hold(hope)
        # 3. That or GPUs of its own, whichever is cheaper; who was interrupted wakes no node for it.
        interrupted = bool(job.progress.units_done)
        if alone.placement is not None and not (interrupted and alone.placement.node in nodes_down(snapshot)):
            opened_j = alone_j + OPEN_J
            if option.added.loss_j < opened_j:
                return _join(option, opened_j)
            return replace(alone, choice=_opens(option, opened_j))
        # 4. Or it waits: for a better partner, or since others of the queue do better there.
        waits = self._waits(job, me, option, view, snapshot)
        return _join(option, None) if waits is None else hold(*alone.findings, waits)

    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        """Ask those to move who would do better elsewhere, and say at which power limits sets are to run.

        With a queue, holes are filled from there; where power is limited, those too may move who lose by it
        that nobody of the queue fits.
        """
        limits_power = self._settings.power_limits is PowerLimits.APPLY
        look_again_s = _look_again_s(snapshot)
        if snapshot.waiting and not limits_power:
            return Steering(look_again_s=look_again_s)
        view = self._view_of(snapshot)
        told: list[Yield | SetPowerLimit] = []
        if limits_power or not snapshot.waiting:
            closed = nodes_down(snapshot) | nodes_booked(snapshot)
            told += Moves(view.scenes, view.worth, view.slack_s, closed).best()
        if limits_power:
            levels = Levels(view.scenes, view.worth, view.slack_s)
            told += levels.changes(snapshot.pool.power_limits_w)
        return Steering(tuple(told), look_again_s)

    def _by_itself(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        """Return where the job would have GPUs of its own: on a node that is up, if there is one."""
        alone, down = self._alone.decide(job, snapshot), nodes_down(snapshot)
        if alone.placement is None or alone.placement.node not in down:
            return alone
        states = [state for name, state in snapshot.nodes.items() if name in down]
        asleep = {gpu.uuid for state in states for gpu in state.node.gpus}
        up = self._alone.decide(job, replace(snapshot, barred=snapshot.barred | asleep))
        return alone if up.placement is None else up

    def _best(
        self, job: Job, me: Member, worth: Worth, view: View, snapshot: ClusterSnapshot
    ) -> _Option | None:
        needs, scenes = Needs.of(job.request), view.scenes
        limit_s, down = view.slack_s, frozenset[str]()
        if job.progress.units_done:
            # Waiting on takes from the mean as well, and more than any set; so does the waking of a node.
            limit_s, down = math.inf, nodes_down(snapshot)
        elif me.work_s is not None:
            limit_s += (self._settings.mean_stretch - 1) * me.work_s
        best: _Option | None = None
        for scene in scenes.all:
            if scene.node.name in down:
                continue
            if snapshot.barred and snapshot.barred.intersection(scene.held.placement.gpu_uuids):
                continue
            added = scenes.addition(scene, me, needs, worth)
            if added is None or added.excess_s > limit_s:
                continue
            if best is None or added.loss_j < best.added.loss_j:
                best = _Option(scene, added)
        return best

    def _with_advice(
        self, decision: AdmissionDecision, job: Job, snapshot: ClusterSnapshot
    ) -> AdmissionDecision:
        """Return the admission with the power limit that the set should have, which nobody sets."""
        view = self._view_of(snapshot)
        me = view.newcomer(job, snapshot.now_s, snapshot.profiles)
        if me is None:
            return decision
        beside = [
            member
            for scene in view.scenes.all
            if decision.co_residents and scene.held.placement == decision.placement
            for member in scene.members
        ]
        said = [text for text in (decision.choice, advice([*beside, me], view.worth)) if text]
        return replace(decision, choice="; ".join(said))

    def _waits(
        self, job: Job, me: Member, option: _Option, view: View, snapshot: ClusterSnapshot
    ) -> Finding | None:
        """Return why the job should not have the place now; who was interrupted never waits by choice."""
        bears_j = WAITS_UP_TO_W * min(me.left_s, FORESIGHT_S) + AGE_W * (snapshot.now_s - job.queued_s)
        if job.progress.units_done or option.added.loss_j <= bears_j:
            return None
        without_queue = view.scenes.addition(option.scene, me, Needs.of(job.request), view.worth)
        if without_queue is not None and without_queue.loss_j <= bears_j:
            return Finding(Reason.BEHIND_IN_QUEUE)
        return _waits_for_partner(option, snapshot)

    def _hope(self, job: Job, me: Member, least_j: float, snapshot: ClusterSnapshot) -> Finding | None:
        """Return why the job leaves free GPUs alone for now: wherever it went, much would be lost.

        Nobody does where nobody else is, or where more wait than have room on the free GPUs. Who was
        interrupted or has a deadline never does.

        :param least_j: what is lost where it loses least.
        """
        small = least_j <= WAITS_UP_TO_W * min(me.left_s, FORESIGHT_S)
        if small or job.progress.units_done or job.deadline_at_s is not None:
            return None
        view = self._view_of(snapshot)
        free = sum(len(state.free) for state in snapshot.nodes.values())
        nobody = view.waiting < 2 and not view.scenes.all
        if nobody or view.waiting * job.request.gpus > free * self._settings.max_residents:
            return None
        until_s = view.first_queued_s(job) + _patience_s(snapshot)
        if snapshot.now_s >= until_s:
            return None
        return Finding(Reason.WAITING_FOR_PARTNER, {"expected_s": until_s})

    def _members_of(self, held: GpuSet, snapshot: ClusterSnapshot) -> Sequence[Member]:
        """Return the members of a set that is held in the snapshot, in the order of its residents."""
        scenes = self._view_of(snapshot).scenes.all
        return next(scene.members for scene in scenes if scene.held.placement == held.placement)

    def _view_of(self, snapshot: ClusterSnapshot) -> View:
        """Return the snapshot as it is weighed; what stays the same is not weighed anew."""
        view = self._view
        if view is None or not view.classes.follow(snapshot):
            view = self._view = View(snapshot)
        view.follow(snapshot)
        return view


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


def _patience_s(snapshot: ClusterSnapshot) -> float:
    """Return for how long a job waits for a better partner while GPUs are free."""
    fastest = max((state.node.time_scale for state in snapshot.nodes.values()), default=1.0)
    return PARTNER_WITHIN_S / fastest


def _look_again_s(snapshot: ClusterSnapshot) -> float | None:
    """Return when the next of those who wait takes free GPUs, whoever has come until then."""
    if not snapshot.waiting or not any(state.free for state in snapshot.nodes.values()):
        return None
    patience_s = _patience_s(snapshot)
    ends_s = (job.queued_s + patience_s for job in snapshot.waiting)
    return min((end_s for end_s in ends_s if end_s > snapshot.now_s), default=None)


def _waits_for_partner(option: _Option, snapshot: ClusterSnapshot) -> Finding:
    scene = option.scene
    ends_s = min(member.left_s * member.slowdown for member in scene.members)
    return Finding(
        Reason.WAITING_FOR_PARTNER, {"expected_s": snapshot.now_s + ends_s / scene.node.time_scale}
    )
