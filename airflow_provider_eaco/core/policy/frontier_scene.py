"""The held sets as the policy ``frontier`` weighs them in the middle of a cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.prices import EnergyPrices
from airflow_provider_eaco.core.model.profile import family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.cluster import host_free_mib
from airflow_provider_eaco.core.policy.facts import CycleFacts, SetFacts, memory_peak_mib
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.frontier_members import (
    Member,
    Moment,
    resident_member,
    slowdown_of,
)
from airflow_provider_eaco.core.policy.frontier_worth import Classes, Rest, Worth


@dataclass(slots=True, eq=False)
class Scene:
    """A held set: its members now, what they lose until they have ended, and what they take longer.

    ``open``: newcomers may come. ``leaving``: ids of those who were asked to leave.
    """

    held: GpuSet
    node: Node
    facts: SetFacts
    members: tuple[Member, ...]
    open: bool
    leaving: frozenset[str]
    host_free_mib: int | None
    loss_j: float = 0.0
    excess_s: float = 0.0

    def rests(self, classes: Classes) -> list[Rest]:
        return [(classes.number(member.key), member.left_s) for member in self.members]

    def with_members(self, members: Sequence[Member], worth: Worth) -> Scene:
        """Return the set with other members, weighed anew."""
        scene = replace(self, members=tuple(members))
        scene.weigh(worth)
        return scene

    def weigh(self, worth: Worth) -> None:
        rests = self.rests(worth.classes)
        self.loss_j = worth.loss_j(rests)
        self.excess_s = worth.excess_s(rests)


@dataclass(frozen=True, slots=True)
class Addition:
    """What a newcomer adds to a set: joules above the prices, and seconds that all take longer than alone."""

    loss_j: float
    excess_s: float
    prediction: SetPrediction


class Scenes:
    """All held sets at one instant; those whose nodes stay the same objects are not looked at again."""

    def __init__(self, worth: Worth, now_s: float) -> None:
        self.worth = worth
        self.now_s = now_s
        self._of: dict[str, tuple[NodeState, list[Scene]]] = {}
        self._nodes: Mapping[str, NodeState] = {}
        self.all: list[Scene] = []

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, facts: CycleFacts, prices: EnergyPrices) -> Scenes:
        """Return the sets of one snapshot."""
        scenes = cls(Worth(Classes(facts), prices), snapshot.now_s)
        scenes.follow(snapshot)
        return scenes

    def slack_s(self) -> float:
        """Return how many seconds the pool's jobs may still take longer than alone, as things stand.

        The mean stretch of all that have ended and of all that run, each going on as it is now, is within the
        pool's limit as long as this is not negative.
        """
        limit = self.worth.classes.facts.settings.mean_stretch
        prices = self.worth.prices
        free_s = limit * prices.ended_work_s - prices.ended_run_s
        for scene in self.all:
            for member in scene.members:
                if member.work_s is not None:
                    free_s += limit * member.work_s - member.spent_s - member.left_s
            free_s -= scene.excess_s
        return free_s

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Be about the nodes of this snapshot of the same instant."""
        if snapshot.nodes is self._nodes:
            return
        for name, state in snapshot.nodes.items():
            known = self._of.get(name)
            if known is None or known[0] is not state:
                self._of[name] = (state, list(self._scenes(state, snapshot)))
        self._nodes = snapshot.nodes
        self.all = [scene for name in snapshot.nodes for scene in self._of[name][1]]

    def addition(self, scene: Scene, member: Member, needs: Needs) -> Addition | None:
        """Return what the member adds to the set, ``None`` where it may not be."""
        facts, kind = self.worth.classes.facts, scene.facts.kind
        fits = kind.gpus == member.key.gpus and kind.model == member.key.gpu_model
        if not scene.open or not fits or len(scene.members) >= facts.settings.max_residents:
            return None
        prediction = bearable((*scene.members, member), self.worth.classes)
        if prediction is None or not _has_room(scene, needs, member, facts):
            return None
        rests = scene.rests(self.worth.classes)
        rests.append((self.worth.classes.number(member.key), member.left_s))
        return Addition(
            self.worth.loss_j(rests) - scene.loss_j,
            self.worth.excess_s(rests) - scene.excess_s,
            prediction,
        )

    def _scenes(self, state: NodeState, snapshot: ClusterSnapshot) -> Iterator[Scene]:
        host_mib = host_free_mib(state)
        for held in state.sets:
            scene = _scene(held, state.node, self.worth.classes.facts, snapshot, host_mib)
            scene.weigh(self.worth)
            yield scene


def bearable(members: Sequence[Member], classes: Classes) -> SetPrediction | None:
    """Return what is expected of these together from now on, ``None`` if somebody's own limit would break."""
    ordered = sorted((classes.number(member.key), member.bears) for member in members)
    physics = classes.physics(tuple([number for number, _ in ordered]))
    if physics is None or not physics.allowed:
        return None
    kept = all(slow <= bears for slow, (_, bears) in zip(physics.slowdowns, ordered, strict=True))
    return physics.prediction if kept else None


def _scene(
    held: GpuSet, node: Node, facts: CycleFacts, snapshot: ClusterSnapshot, host_mib: int | None
) -> Scene:
    prediction = facts.predict(family_set(held.families), held.gpus[0].model, len(held.gpus))
    there = facts.held(held, node)
    states = {resident.state for resident in held.residents}
    # The trial of a set that was measured before has nothing to tell that newcomers have to wait for.
    known = prediction is not None and prediction.measured and states <= {LeaseState.TRIAL}
    moment = Moment(snapshot.now_s, snapshot.profiles, node.time_scale)
    members = tuple(
        resident_member(resident, held, slowdown_of(prediction, resident.job.request.family), moment)
        for resident in held.residents
    )
    leaving = frozenset(
        resident.job.job_id for resident in held.residents if resident.state is LeaseState.YIELDING
    )
    return Scene(held, node, there, members, there.closed is None or known, leaving, host_mib)


def _has_room(scene: Scene, needs: Needs, member: Member, facts: CycleFacts) -> bool:
    kind = scene.facts.kind
    if filters.host_memory(needs, kind.model, scene.host_free_mib) is not None:
        return False
    solo = facts.book.solo_of(member.key.family, kind.model, kind.gpus)
    peak_mib = memory_peak_mib(needs.gpu_memory_mib, solo)
    needed_mib = None if peak_mib is None else peak_mib + facts.settings.memory_margin_mib
    return filters.memory(needed_mib, scene.facts) is None
