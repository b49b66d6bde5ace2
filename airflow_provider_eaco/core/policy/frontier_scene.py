"""The held sets as the policy ``frontier`` weighs them in the middle of a cycle.

A set is weighed as of the last that happened in it, or of the last ten minutes if that is later: what was
found out about it then stands until the next. For limits that errs on the safe side alone: who bears its
present set bears more the further it has come. What the jobs of a set take longer than alone does not change
with the instant, as long as they run as predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.model.prices import EnergyPrices
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.changes import replaced
from airflow_provider_eaco.core.policy.cluster import host_free_mib
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetFacts, memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.frontier_members import (
    Member,
    Moment,
    class_of,
    resident_member,
    slowdown_of,
)
from airflow_provider_eaco.core.policy.frontier_worth import Classes, Rest, Worth

# How long a set in which nothing happens is weighed as it was.
LOOK_EVERY_S = 600.0
# Once trials went wrong: what a set that was never measured here may cost each member before it is undone,
# as a part of the time until all have a unit behind them and one has left at its next.
RISK = 0.25
TRIAL_S = 3000.0


@dataclass(slots=True, eq=False)
class Scene:
    """A held set: its members as they stood last, and what they take longer until they have ended.

    ``open``: newcomers may come. ``leaving``: ids of those who were asked to leave. ``excess_s``: by how much
    the rests together take longer than alone. ``seen_s``: the instant of all this.
    """

    held: GpuSet
    node: Node
    facts: SetFacts
    members: tuple[Member, ...]
    open: bool
    leaving: frozenset[str]
    host_free_mib: int | None
    rests: tuple[Rest, ...]
    excess_s: float
    seen_s: float
    losses_j: dict[Worth, float] = field(default_factory=dict)
    additions: dict[tuple[Worth, str, float, float], Addition | None] = field(default_factory=dict)
    without_j: dict[tuple[Worth, str], float] = field(default_factory=dict)
    levels: dict[Worth, LevelChoice | None] = field(default_factory=dict)

    def loss_j(self, worth: Worth) -> float:
        """Return what the members lose until they have ended."""
        known = self.losses_j.get(worth)
        if known is None:
            known = self.losses_j[worth] = worth.loss_j(self.rests)
        return known

    def loss_without_j(self, member: Member, worth: Worth) -> float:
        """Return what the others lose until they have ended, if this one leaves now."""
        asked = worth, member.job_id
        known = self.without_j.get(asked)
        if known is None:
            rests = [rest for rest, each in zip(self.rests, self.members, strict=True) if each is not member]
            known = self.without_j[asked] = worth.loss_j(rests)
        return known

    def with_members(self, members: Sequence[Member], classes: Classes) -> Scene:
        """Return the set with other members."""
        rests = tuple([(classes.number(member.key), member.left_s) for member in members])
        excess_s = classes.excess_s(rests)
        return replace(
            self,
            members=tuple(members),
            rests=rests,
            excess_s=excess_s,
            losses_j={},
            additions={},
            without_j={},
            levels={},
        )

    def free_s(self, mean_stretch: float) -> float:
        """Return what is left of the seconds that these may take longer under a mean stretch.

        A set without a job of the pool is not its to answer for; one that it shares counts with all that its
        members lose.
        """
        if not any(member.own for member in self.members):
            return 0.0
        free_s = -self.excess_s
        for member in self.members:
            if member.own and member.work_s is not None:
                free_s += mean_stretch * member.work_s - member.spent_s - member.left_s
        return free_s


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """The best power limit of a set. ``extra_s``: by how much longer its members take in all than at full
    power; ``worth_w``: joules that it saves for each of these seconds.
    """

    limit_w: float
    extra_s: float
    worth_w: float


@dataclass(frozen=True, slots=True)
class Addition:
    """What a newcomer adds to a set: joules above the prices, and seconds that all take longer than alone."""

    loss_j: float
    excess_s: float
    prediction: SetPrediction


class Scenes:
    """All held sets; those in which nothing has happened are not looked at again for some time."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self.all: list[Scene] = []
        self._of: dict[str, tuple[NodeState, list[Scene]]] = {}
        self._nodes: Mapping[str, NodeState] = {}
        self._limits_w: Mapping[Placement, float] = {}
        self._period = -math.inf

    def slack_s(self, prices: EnergyPrices) -> float:
        """Return how many seconds the pool's jobs may still take longer than alone, as things stand.

        The mean stretch of all that have ended and of all that run, each going on as it is now, is within the
        pool's limit as long as this is not negative.
        """
        limit = self.classes.facts.settings.mean_stretch
        running_s = math.fsum([scene.free_s(limit) for scene in self.all])
        return limit * prices.ended_work_s - prices.ended_run_s + running_s

    def forget_losses(self) -> None:
        """Drop what followed from other prices."""
        for scene in self.all:
            scene.losses_j.clear()
            scene.additions.clear()
            scene.without_j.clear()
            scene.levels.clear()

    def follow(self, snapshot: ClusterSnapshot) -> Sequence[str]:
        """Be about the nodes of this snapshot; return the ids of the jobs in sets that are looked at anew."""
        period, limits_w = snapshot.now_s // LOOK_EVERY_S, snapshot.pool.power_limits_w
        if period == self._period:
            same = limits_w is self._limits_w or limits_w == self._limits_w
            if same and snapshot.nodes is self._nodes:
                return ()
            told = {placement.node for placement, _ in limits_w.items() ^ self._limits_w.items()}
            names = sorted(told.union(replaced(self._nodes, snapshot.nodes)))
        else:
            self._of.clear()
            names = list(snapshot.nodes)
        for name in names:
            state = snapshot.nodes.get(name)
            if state is None:
                self._of.pop(name, None)
            else:
                self._of[name] = (state, list(self._scenes(state, snapshot)))
        if names:
            self.all = [scene for name in snapshot.nodes for scene in self._of[name][1]]
        self._nodes, self._limits_w, self._period = snapshot.nodes, limits_w, period
        anew = [scene for name in names if name in self._of for scene in self._of[name][1]]
        return [member.job_id for scene in anew for member in scene.members]

    def addition(self, scene: Scene, member: Member, needs: Needs, worth: Worth) -> Addition | None:
        """Return what the member adds to the set, ``None`` where it may not be."""
        if not scene.open:
            return None
        asked = worth, member.job_id, member.left_s, member.bears
        if asked not in scene.additions:
            scene.additions[asked] = self._addition(scene, member, needs, worth)
        return scene.additions[asked]

    def _addition(self, scene: Scene, member: Member, needs: Needs, worth: Worth) -> Addition | None:
        facts, kind = self.classes.facts, scene.facts.kind
        fits = kind.gpus == member.key.gpus and kind.model == member.key.gpu_model
        if not fits or len(scene.members) >= facts.settings.max_residents:
            return None
        prediction = bearable((*scene.members, member), self.classes)
        if prediction is None or not _has_room(scene, needs, member, facts):
            return None
        rests = (*scene.rests, (self.classes.number(member.key), member.left_s))
        return Addition(
            worth.loss_j(rests) - scene.loss_j(worth),
            self.classes.excess_s(rests) - scene.excess_s,
            prediction,
        )

    def _scenes(self, state: NodeState, snapshot: ClusterSnapshot) -> Iterator[Scene]:
        host_mib = host_free_mib(state)
        for held in state.sets:
            yield _scene(held, state.node, self.classes, snapshot, host_mib)


def bearable(members: Sequence[Member], classes: Classes) -> SetPrediction | None:
    """Return what is expected of these together from now on, ``None`` if somebody's own limit would break."""
    ordered = sorted([(classes.number(member.key), member.bears) for member in members])
    physics = classes.physics(tuple([number for number, _ in ordered]))
    if physics is None or not physics.allowed:
        return None
    kept = all(slow <= bears for slow, (_, bears) in zip(physics.slowdowns, ordered, strict=True))
    affordable = physics.proven or all(map(_affords_a_trial, members))
    return physics.prediction if kept and affordable else None


def _affords_a_trial(member: Member) -> bool:
    """Tell whether the member's own limits hold should a set that nobody has tried do much worse."""
    return (member.bears - 1) * member.left_s >= RISK * min(member.left_s, TRIAL_S)


def _scene(
    held: GpuSet, node: Node, classes: Classes, snapshot: ClusterSnapshot, host_mib: int | None
) -> Scene:
    facts = classes.facts
    prediction = facts.predict(family_set(held.families), held.gpus[0].model, len(held.gpus))
    there = facts.held(held, node)
    states = {resident.state for resident in held.residents}
    # The trial of a set that was measured before has nothing to tell that newcomers have to wait for.
    known = prediction is not None and prediction.measured and states <= {LeaseState.TRIAL}
    seen_s = _seen_s(held, snapshot.now_s)
    moment = Moment(seen_s, snapshot.profiles, node.time_scale)
    present, slowest = _rises(held, classes, snapshot.pool.power_limits_w.get(held.placement))
    members = tuple(
        resident_member(
            resident,
            held,
            present * full,
            moment,
            own=resident.job.pool not in snapshot.pool.others,
            slowest=slowest * full,
        )
        for resident in held.residents
        for full in (slowdown_of(prediction, resident.job.request.family),)
    )
    leaving = frozenset(
        resident.job.job_id for resident in held.residents if resident.state is LeaseState.YIELDING
    )
    rests = tuple([(classes.number(member.key), member.left_s) for member in members])
    excess_s = classes.excess_s(rests)
    is_open = there.closed is None or known
    return Scene(held, node, there, members, is_open, leaving, host_mib, rests, excess_s, seen_s)


def _rises(held: GpuSet, classes: Classes, limit_w: float | None) -> tuple[float, float]:
    """Return by how much power limits slow the set down: the one in force, and the slowest at most.

    Nobody tells since when a limit is in force. What is left of a job is reckoned by the one that is there
    now, which the next report puts right; of its own limits nothing is risked on that.
    """
    model = held.gpus[0].model
    numbers = tuple(sorted(classes.number(class_of(resident.job, model)) for resident in held.residents))
    ways, now = classes.ways(numbers), classes.physics(numbers, limit_w)
    if now is None:
        return 1.0, 1.0
    full = ways[0].slowdowns[0]
    return now.slowdowns[0] / full, max(way.slowdowns[0] for way in ways) / full


def _seen_s(held: GpuSet, now_s: float) -> float:
    """Return the instant as of which the set is weighed: of the last that happened, or of the present period.

    It follows from the snapshot alone, so that the same snapshot is weighed alike whenever it is looked at.
    """
    seen_s = now_s // LOOK_EVERY_S * LOOK_EVERY_S
    for resident in held.residents:
        told_s = resident.job.progress.reported_s
        seen_s = max(seen_s, resident.granted_s, told_s or -math.inf, resident.trial_since_s or -math.inf)
    return min(seen_s, now_s)


def _has_room(scene: Scene, needs: Needs, member: Member, facts: CycleFacts) -> bool:
    kind = scene.facts.kind
    if filters.host_memory(needs, kind.model, scene.host_free_mib) is not None:
        return False
    solo = facts.book.solo_of(member.key.family, kind.model, kind.gpus)
    peak_mib = memory_peak_mib(needs.gpu_memory_mib, solo)
    needed_mib = None if peak_mib is None else peak_mib + facts.settings.memory_margin_mib
    return filters.memory(needed_mib, scene.facts) is None
