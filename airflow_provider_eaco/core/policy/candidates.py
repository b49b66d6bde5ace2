"""Candidates: for jobs that need the same, all places that take them, kept up to date node by node.

A :class:`Table` answers for every kind of job that differs only in its own limits. When a launch has changed
a node, only that node is evaluated again: all others are recognised as the same objects.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import Finding, Reason, SetPrediction
from airflow_provider_eaco.core.model.job import GpuRequest
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import Spreading
from airflow_provider_eaco.core.model.profile import FamilySet, family_set
from airflow_provider_eaco.core.model.snapshot import NodeState
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.facts import CycleFacts, GpuGroup, NodeFacts, SetFacts
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle


@dataclass(frozen=True, slots=True)
class Shape:
    """What jobs have in common that meet the same candidates; their own limits come on top.

    ``alone``: they take free GPUs only. ``may_try``: a set that was never measured may be tried with them.
    """

    needs: Needs
    alone: bool
    may_try: bool
    insists: bool

    @classmethod
    def of(cls, request: GpuRequest, alone: bool, can_yield: bool) -> Shape:
        insists = filters.insists(request)
        return cls(Needs.of(request), alone, can_yield or insists, insists)


@dataclass(frozen=True, slots=True, eq=False)
class JoinClass:
    """Sets that a newcomer experiences alike: same families, model and time scale. One object a table."""

    model_rank: int
    families: FamilySet
    model: str
    time_scale: float
    prediction: SetPrediction

    @property
    def order(self) -> tuple[int, float, FamilySet]:
        """Busiest first within a model; families decide between equals."""
        return self.model_rank, -(self.prediction.utilisation_pct or 0.0), self.families


@dataclass(frozen=True, slots=True)
class FreePlace:
    """Free GPUs of one model on one node, enough for the shape."""

    order: tuple[int, int, str, str]
    placement: Placement

    @property
    def model_rank(self) -> int:
        return self.order[0]


Spot = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What one node offers a shape: sets to join, free GPUs, and what stands in the way."""

    fits: bool = False
    open: bool = False
    scopes: tuple[tuple[str, float], ...] = ()
    joins: tuple[tuple[JoinClass, Spot], ...] = ()
    free: tuple[FreePlace, ...] = ()
    free_count: int = 0
    obstacles: tuple[Obstacle, ...] = ()
    closed: tuple[str, ...] = ()
    sets: int = 0


_NOTHING = NodeOptions()


def _order(place: FreePlace) -> tuple[int, int, str, str]:
    return place.order


class Table:
    """All candidates of one shape."""

    def __init__(self, shape: Shape, facts: CycleFacts) -> None:
        self.shape = shape
        self._facts = facts
        self._nodes: Mapping[str, NodeState] | None = None
        self._states: dict[str, NodeState] = {}
        self._options: dict[str, NodeOptions] = {}
        self._spots: dict[JoinClass, list[Spot]] = {}
        self._free: list[FreePlace] = []
        self._classes: dict[tuple[FamilySet, str, float], JoinClass | Obstacle] = {}
        self._summary: Summary | None = None

    def sync(self, nodes: Mapping[str, NodeState]) -> None:
        """Bring the table to these nodes; afterwards every answer is about them."""
        if nodes is self._nodes:
            return
        for name in self._states.keys() - nodes.keys():
            self._forget(name)
            del self._states[name], self._options[name]
        for name, state in nodes.items():
            if self._states.get(name) is not state:
                self._forget(name)
                self._states[name] = state
                self._learn(name, self._evaluate(self._facts.of_node(state)))
        self._nodes = nodes

    def joins(self) -> Iterator[tuple[JoinClass, Spot]]:
        """Return for each class of sets its first by node name and UUID."""
        return ((cls, spots[0]) for cls, spots in self._spots.items())

    def first_free(self, kept_nodes: frozenset[str]) -> FreePlace | None:
        """Return the preferred free GPUs that are not kept for an earlier job."""
        return next((place for place in self._free if place.placement.node not in kept_nodes), None)

    def kept_free(self, kept_nodes: frozenset[str]) -> int:
        """Return how many free GPUs on fitting nodes are kept for earlier jobs."""
        return sum(
            self._options[place.placement.node].free_count
            for place in self._free
            if place.placement.node in kept_nodes
        )

    @property
    def summary(self) -> Summary:
        if self._summary is None:
            self._summary = Summary.of(self._options.values())
        return self._summary

    def _forget(self, name: str) -> None:
        self._summary = None
        options = self._options.get(name, _NOTHING)
        for cls, spot in options.joins:
            spots = self._spots[cls]
            del spots[bisect_left(spots, spot)]
            if not spots:
                del self._spots[cls]
        for place in options.free:
            del self._free[bisect_left(self._free, place.order, key=_order)]

    def _learn(self, name: str, options: NodeOptions) -> None:
        self._options[name] = options
        for cls, spot in options.joins:
            insort(self._spots.setdefault(cls, []), spot)
        for place in options.free:
            insort(self._free, place, key=_order)

    def _evaluate(self, node: NodeFacts) -> NodeOptions:
        needs = self.shape.needs
        fitting = filters.fitting_groups(needs, node, self._facts)
        if not fitting:
            return _NOTHING
        scopes = tuple((model, node.time_scale) for model in sorted(fitting))
        trouble = filters.node_trouble(needs, node, fitting)
        if trouble:
            return NodeOptions(fits=True, scopes=scopes, obstacles=tuple(trouble))
        sized = [
            held
            for held in node.sets
            if len(held.placement.gpu_uuids) == needs.gpus and held.model in fitting
        ]
        free_count = max(sum(len(group.free) for group in groups) for groups in fitting.values())
        short = filters.host_memory(needs, node)
        if short is not None:
            return NodeOptions(True, True, scopes, free_count=free_count, obstacles=(short,), sets=len(sized))
        free = tuple(self._free_places(node, fitting))
        joins, obstacles, closed = [], [], []
        for held in () if self.shape.alone else sized:
            answer = self._meet(held, node.time_scale)
            if isinstance(answer, JoinClass):
                joins.append((answer, (node.name, held.placement.gpu_uuids, held.job_ids)))
            elif isinstance(answer, Obstacle):
                obstacles.append(answer)
            else:
                closed.append(answer)
        return NodeOptions(
            True, True, scopes, tuple(joins), free, free_count, tuple(obstacles), tuple(closed), len(sized)
        )

    def _free_places(self, node: NodeFacts, fitting: dict[str, list[GpuGroup]]) -> Iterator[FreePlace]:
        needs, packs = self.shape.needs, self._facts.settings.spreading is Spreading.PACK
        for model, groups in fitting.items():
            free = sorted(uuid for group in groups for uuid in group.free)
            if len(free) >= needs.gpus:
                fullness = len(free) if packs else -len(free)
                order = (self._rank(model), fullness, node.name, model)
                yield FreePlace(order, Placement(node.name, tuple(free[: needs.gpus])))

    def _rank(self, model: str) -> int:
        models = self.shape.needs.gpu_models
        return models.index(model) if models else 0

    def _meet(self, held: SetFacts, time_scale: float) -> JoinClass | Obstacle | str:
        """Return how the shape meets this set: it may join, something stands in the way, or it is closed."""
        settings = self._facts.settings
        if held.closed is not None:
            return held.closed
        needs = self.shape.needs
        solo = self._facts.book.solo_of(needs.family, held.model, needs.gpus)
        obstacle = filters.resident_limit(held, settings) or filters.memory(needs, held, solo, settings)
        if obstacle is not None:
            return obstacle
        key = (held.families, held.model, time_scale)
        met = self._classes.get(key)
        if met is None:
            met = self._classes[key] = self._class(held, time_scale)
        if isinstance(met, Obstacle):
            return met
        return filters.resident_limits(held, met.prediction) or met

    def _class(self, held: SetFacts, time_scale: float) -> JoinClass | Obstacle:
        needs, facts = self.shape.needs, self._facts
        prediction = facts.predict(family_set((*held.families, needs.family)), held.model, needs.gpus)
        solo = facts.book.fresh_solo_of(needs.family, held.model, needs.gpus)
        if prediction is None or solo is None:
            return filters.profile_missing(needs, held, facts)
        if not (prediction.measured or self.shape.may_try or solo.checkpoints):
            return filters.profile_missing(needs, held, facts)
        obstacle = filters.utilisation(needs, held, prediction, facts.settings)
        if obstacle is None and not self.shape.insists:
            obstacle = filters.energy_gain(needs, held, solo, prediction, facts)
        return obstacle or JoinClass(
            self._rank(held.model), held.families, held.model, time_scale, prediction
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands between a shape and the cluster, over all nodes."""

    fits: bool
    open: bool
    scopes: tuple[tuple[str, float], ...]
    free_best: int
    findings: tuple[Finding, ...]
    sharing: str

    @classmethod
    def of(cls, all_options: Iterable[NodeOptions]) -> Summary:
        """Put the nodes' answers together.

        A node's own trouble (draining, unhealthy, used by others, gone) is a reason only where every fitting
        node has some: else the others are merely busy. So is a full set, where every set is full.
        """
        fitting = [options for options in all_options if options.fits]
        usable = [options for options in fitting if options.open]
        obstacles = [obstacle for options in usable or fitting for obstacle in options.obstacles]
        best = filters.nearest(obstacles)
        closed = [why for options in usable for why in options.closed]
        if closed or any(obstacle.reason is not Reason.RESIDENT_LIMIT for obstacle in obstacles):
            best.pop(Reason.RESIDENT_LIMIT, None)
        if Reason.DRAINING in best:
            names = sorted(o.where for o in obstacles if o.reason is Reason.DRAINING)
            best[Reason.DRAINING] = Obstacle(Reason.DRAINING, 0, "", {"nodes": ", ".join(names)})
        return cls(
            bool(fitting),
            bool(usable),
            tuple(sorted({scope for options in fitting for scope in options.scopes})),
            max((options.free_count for options in usable), default=0),
            tuple(obstacle.finding for obstacle in best.values()),
            _sharing(closed, sum(options.sets for options in usable)),
        )


def _sharing(closed: list[str], sets: int) -> str:
    if not sets:
        return "no job holds that many GPUs there"
    counts = {why: closed.count(why) for why in sorted(set(closed))}
    parts = [f"{why} ({count} of {sets})" for why, count in counts.items()]
    return ", ".join(parts) or "see the other reasons"
