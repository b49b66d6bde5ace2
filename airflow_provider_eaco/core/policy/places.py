"""Places: the cluster as it stands in the middle of a cycle, arranged for those who look for GPUs.

:class:`Cluster` arranges the held sets, :class:`Site` the free GPUs for jobs with equal needs. Both follow
the snapshots of a cycle node by node: what has not changed is recognised as the same object.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import Spreading
from airflow_provider_eaco.core.model.snapshot import NodeState
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.facts import CycleFacts, GpuGroup, Hardware, SetFacts, SetKind
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle


@dataclass(frozen=True, slots=True)
class HeldSet:
    """One open set, with the host memory that its node has left."""

    order: tuple[str, tuple[str, ...]]
    facts: SetFacts
    host_free_mib: int | None


GroupOrder = tuple[float, str, float, tuple[str, ...]]


@dataclass(slots=True, eq=False)
class SetGroup:
    """The open sets of one kind, by node and UUID. ``version`` grows with every change.

    ``order`` ranks groups: busiest first; model, time scale and families decide between equals.
    """

    kind: SetKind
    utilisation_pct: float
    order: GroupOrder
    sets: list[HeldSet] = field(default_factory=list)
    version: int = 0


def _order_of_set(held: HeldSet) -> tuple[str, tuple[str, ...]]:
    return held.order


class Cluster:
    """All nodes, their free GPUs and their sets; ``changes`` names every node that was replaced, in order."""

    def __init__(self, facts: CycleFacts) -> None:
        self.facts = facts
        self.states: dict[str, NodeState] = {}
        self.changes: list[str] = []
        self._nodes: Mapping[str, NodeState] = {}
        self._groups: dict[SetKind, SetGroup] = {}
        self._by_gpus: dict[int, list[SetGroup]] = {}
        self._closed: dict[int, Counter[str]] = {}
        self._counts: Counter[int] = Counter()

    def sync(self, nodes: Mapping[str, NodeState]) -> None:
        """Follow a snapshot of the cycle; afterwards every answer is about these nodes."""
        if nodes is self._nodes:
            return
        for name in _replaced(self._nodes, nodes):
            if name in self.states:
                self._forget(self.states.pop(name))
            if name in nodes:
                self.states[name] = nodes[name]
                self._learn(nodes[name])
            self.changes.append(name)
        self._nodes = nodes

    def groups(self, gpus: int) -> list[SetGroup]:
        """Return the groups of sets of that many GPUs, in the order in which they came up."""
        return self._by_gpus.get(gpus, [])

    def sharing(self, gpus: int) -> str:
        """Say in words what keeps newcomers from the sets of that many GPUs, whoever comes."""
        if not self._counts[gpus]:
            return "no job holds that many GPUs there"
        closed = sorted((why, count) for why, count in self._closed.get(gpus, {}).items() if count)
        return ", ".join(f"{why} ({count} of {self._counts[gpus]})" for why, count in closed) or "see above"

    def all_open(self, gpus: int) -> bool:
        """Tell whether every set of that many GPUs is open to newcomers."""
        return not any(self._closed.get(gpus, {}).values())

    def _learn(self, state: NodeState) -> None:
        host_mib = host_free_mib(state)
        for held in state.sets:
            facts = self.facts.held(held, state.node)
            gpus = facts.kind.gpus
            self._counts[gpus] += 1
            if facts.closed is not None:
                self._closed.setdefault(gpus, Counter())[facts.closed] += 1
            else:
                group = self._group(facts.kind)
                insort(group.sets, HeldSet(_set_order(facts), facts, host_mib), key=_order_of_set)
                group.version += 1

    def _forget(self, state: NodeState) -> None:
        for held in state.sets:
            facts = self.facts.held(held, state.node)
            gpus = facts.kind.gpus
            self._counts[gpus] -= 1
            if facts.closed is not None:
                self._closed[gpus][facts.closed] -= 1
            else:
                group = self._groups[facts.kind]
                del group.sets[bisect_left(group.sets, _set_order(facts), key=_order_of_set)]
                group.version += 1

    def _group(self, kind: SetKind) -> SetGroup:
        group = self._groups.get(kind)
        if group is None:
            present = self.facts.predict(kind.families, kind.model, kind.gpus)
            busy_pct = 0.0 if present is None else present.utilisation_pct or 0.0
            order = -busy_pct, kind.model, kind.time_scale, kind.families
            group = self._groups[kind] = SetGroup(kind, busy_pct, order)
            self._by_gpus.setdefault(kind.gpus, []).append(group)
        return group


def _replaced(before: Mapping[str, NodeState], after: Mapping[str, NodeState]) -> list[str]:
    """Return the names under which another object stands, or one came or went.

    Snapshots of one cycle have the same names in the same order; then no name has to be looked up.
    """
    if len(before) == len(after) and all(map(operator.is_, before, after)):
        return list(compress(after, map(operator.is_not, before.values(), after.values())))
    gone = [name for name in before if name not in after]
    return gone + [name for name, state in after.items() if before.get(name) is not state]


def _set_order(facts: SetFacts) -> tuple[str, tuple[str, ...]]:
    return facts.placement.node, facts.placement.gpu_uuids


def host_free_mib(state: NodeState) -> int | None:
    """Return the host memory that residents have not asked for, ``None`` when the node's is not known."""
    total_mib = state.node.host_memory_mib
    if total_mib is None:
        return None
    residents = (resident for held in state.sets for resident in held.residents)
    return total_mib - sum(resident.job.request.host_memory_mib or 0 for resident in residents)


PlaceOrder = tuple[int, int, str, str]


@dataclass(frozen=True, slots=True)
class FreePlace:
    """Free GPUs of one model on one node, enough for the job; ``count`` are free there in all."""

    order: PlaceOrder
    placement: Placement
    count: int

    @property
    def model_rank(self) -> int:
        return self.order[0]


def _order_of_place(place: FreePlace) -> PlaceOrder:
    return place.order


@dataclass(frozen=True, slots=True)
class Ground:
    """What the hardware of a node offers jobs with these needs: the fitting groups of each fitting model."""

    fitting: Mapping[str, list[GpuGroup]]
    sound: bool


class Site:
    """The cluster for jobs with equal needs: which nodes fit at all, and where GPUs are free now."""

    def __init__(self, needs: Needs, cluster: Cluster) -> None:
        self.needs = needs
        self._cluster = cluster
        self._seen = 0
        self._grounds: dict[Hardware, Ground] = {}
        self._scopes: Counter[tuple[str, float]] = Counter()
        self._nodes: dict[str, tuple[Hardware, tuple[FreePlace, ...], int]] = {}
        self._places: list[FreePlace] = []
        self._free_best: int | None = None
        self._picked: tuple[frozenset[str], FreePlace | None, int] | None = None

    def sync(self) -> None:
        """Follow the cluster."""
        changes = self._cluster.changes
        if self._seen == len(changes):
            return
        self._picked = self._free_best = None
        for name in dict.fromkeys(changes[self._seen :]):
            self._forget(name)
            state = self._cluster.states.get(name)
            if state is not None:
                self._learn(name, state)
        self._seen = len(changes)

    @property
    def scopes(self) -> list[tuple[str, float]]:
        """The models that fit, with the time scale of their nodes; empty: no node could ever take the job."""
        return sorted(scope for scope, count in self._scopes.items() if count)

    def rank(self, model: str) -> int | None:
        """Return the model's place in the job's order of preference, ``None`` if it is not acceptable."""
        models = self.needs.gpu_models
        if not models:
            return 0
        return models.index(model) if model in models else None

    def pick(self, kept_nodes: frozenset[str]) -> tuple[FreePlace | None, int]:
        """Return the preferred free GPUs that are not kept, and how many free ones are kept."""
        if self._picked is None or self._picked[0] is not kept_nodes:
            first = next((place for place in self._places if place.placement.node not in kept_nodes), None)
            kept = sum(place.count for place in self._places if place.placement.node in kept_nodes)
            self._picked = kept_nodes, first, kept
        return self._picked[1:]

    def free_best(self) -> int:
        """Return the largest number of free GPUs on one node that fits."""
        if self._free_best is None:
            self._free_best = max((free for _, _, free in self._nodes.values()), default=0)
        return self._free_best

    def trouble(self) -> list[Obstacle]:
        """Return what is wrong with the nodes if all that fit have something; else they are just busy."""
        found = []
        for name, (built, _, _) in self._nodes.items():
            ground = self._grounds[built]
            if ground.sound:
                return []
            found.extend(filters.node_trouble(self.needs, name, built, ground.fitting))
        return found

    def short_of_host_memory(self) -> list[Obstacle]:
        """Return the nodes that have the GPUs free, but not the host memory."""
        found = []
        if self.needs.host_memory_mib is not None:
            for name, (_, places, free) in self._nodes.items():
                if not places and free >= self.needs.gpus:
                    host_mib = host_free_mib(self._cluster.states[name])
                    found.append(filters.host_memory(self.needs, name, host_mib))
        return [obstacle for obstacle in found if obstacle is not None]

    def _learn(self, name: str, state: NodeState) -> None:
        built = self._cluster.facts.hardware(state.node)
        ground = self._grounds.get(built)
        if ground is None:
            ground = self._grounds[built] = self._ground(state.node, built)
        if not ground.fitting:
            return
        self._scopes.update((model, built.time_scale) for model in ground.fitting)
        places: tuple[FreePlace, ...] = ()
        free_best = 0
        if ground.sound and state.free:
            free_by_model = self._free_by_model(state, ground)
            free_best = max(map(len, free_by_model.values()))
            if filters.host_memory(self.needs, name, host_free_mib(state)) is None:
                places = tuple(self._free_places(name, free_by_model))
        for place in places:
            insort(self._places, place, key=_order_of_place)
        self._nodes[name] = (built, places, free_best)

    def _forget(self, name: str) -> None:
        known = self._nodes.pop(name, None)
        if known is not None:
            built, places, _ = known
            self._scopes.subtract((model, built.time_scale) for model in self._grounds[built].fitting)
            for place in places:
                del self._places[bisect_left(self._places, place.order, key=_order_of_place)]

    def _ground(self, node: Node, built: Hardware) -> Ground:
        fitting = filters.fitting_groups(self.needs, built, self._cluster.facts)
        trouble = filters.node_trouble(self.needs, node.name, built, fitting)
        return Ground(fitting, bool(fitting) and not trouble)

    def _free_by_model(self, state: NodeState, ground: Ground) -> dict[str, list[str]]:
        free: dict[str, list[str]] = {model: [] for model in ground.fitting}
        for gpu in state.free:
            groups = ground.fitting.get(gpu.model, ())
            fits = any(group.usable_mib == gpu.memory_usable_mib for group in groups)
            if fits and self._cluster.facts.is_sound(gpu):
                free[gpu.model].append(gpu.uuid)
        return free

    def _free_places(self, name: str, free_by_model: Mapping[str, list[str]]) -> Iterator[FreePlace]:
        packs = self._cluster.facts.settings.spreading is Spreading.PACK
        for model, free in free_by_model.items():
            if len(free) >= self.needs.gpus:
                count = len(free)
                order = (self.rank(model) or 0, count if packs else -count, name, model)
                chosen = tuple(sorted(free)[: self.needs.gpus])
                yield FreePlace(order, Placement(name, chosen), count)
