"""Places: where jobs with equal needs find free GPUs in the middle of a cycle."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_eaco.core.model.gpu import Gpu, GpuGroup, Hardware, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy import filters
from airflow_provider_eaco.core.policy.blocks import bit_of, block_table, largest_block, mask_of
from airflow_provider_eaco.core.policy.cluster import Cluster, host_free_mib
from airflow_provider_eaco.core.policy.filters import Needs, Obstacle

PlaceOrder = tuple[int, int, str, str]
# More than a node has GPUs: two counts in one number, the first decides.
_BITS = 16
# So many kinds of hardware that no node has now are remembered beside those that nodes have.
_GROUNDS_KEPT = 64


@dataclass(frozen=True, slots=True)
class FreePlace:
    """Free GPUs of one model on one node, enough for the job; ``free`` are all that it could choose from."""

    order: PlaceOrder
    placement: Placement
    free: tuple[Gpu, ...]

    @property
    def model_rank(self) -> int:
        return self.order[0]


class Kept(NamedTuple):
    """Free GPUs that another is to have, who asks for ``wanted`` on one node (0: they are promised to it)."""

    free: int
    wanted: int


_NOTHING_KEPT = Kept(0, 0)


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
        self._grounds: dict[Hardware, Ground] = {}
        self._alike: Counter[Hardware] = Counter()
        self._nodes: dict[str, tuple[Hardware, tuple[FreePlace, ...], int]] = {}
        self._free: Counter[int] = Counter()
        self._places: list[FreePlace] = []
        self._picked: tuple[Mapping[str, int], frozenset[str], FreePlace | None, Kept] | None = None
        self._blocks = block_table(needs.gpus, cluster.facts.settings.aligned)
        for name, state in cluster.nodes.items():
            self._learn(name, state)
        self._seen = cluster.changes.end

    @property
    def can_follow(self) -> bool:
        """Whether the cluster still knows all that has changed since it was followed last."""
        return self._cluster.changes.reaches(self._seen)

    def sync(self) -> None:
        """Follow the cluster."""
        changes = self._cluster.changes
        if self._seen == changes.end:
            return
        self._picked = None
        for name in changes.since(self._seen):
            self._forget(name)
            state = self._cluster.nodes.get(name)
            if state is not None:
                self._learn(name, state)
        self._seen = changes.end
        # What somebody else holds on a GPU may differ in each cycle, and so does then what its node offers.
        if len(self._grounds) > len(self._nodes) + _GROUNDS_KEPT:
            self._alike = +self._alike
            self._grounds = {built: self._grounds[built] for built in self._alike}

    @property
    def scopes(self) -> list[tuple[str, float]]:
        """The models that fit, with the time scale of their nodes; empty: no node could ever take the job."""
        fitting = ((built, self._grounds[built].fitting) for built, nodes in self._alike.items() if nodes)
        return sorted({(model, built.time_scale) for built, models in fitting for model in models})

    def rank(self, model: str) -> int | None:
        """Return the model's place in the job's order of preference, ``None`` if it is not acceptable."""
        models = self.needs.gpu_models
        if not models:
            return 0
        return models.index(model) if model in models else None

    def pick(self, snapshot: ClusterSnapshot) -> tuple[FreePlace | None, Kept]:
        """Return the preferred free GPUs that are not kept or barred, and what is.

        Where a place is offered, it is this one or none.
        """
        if snapshot.offered is not None:
            return self._offered(snapshot.offered), _NOTHING_KEPT
        kept_nodes, barred = snapshot.kept_nodes, snapshot.barred
        if self._picked is None or self._picked[0] is not kept_nodes or self._picked[1] is not barred:
            self._picked = kept_nodes, barred, *self._pick(kept_nodes, barred)
        return self._picked[2:]

    def _pick(self, kept_nodes: Mapping[str, int], barred: frozenset[str]) -> tuple[FreePlace | None, Kept]:
        if not kept_nodes and not barred:
            return (self._places[0] if self._places else None), _NOTHING_KEPT
        open_to = [place for place in self._places if place.placement.node not in kept_nodes]
        behind = [place for place in self._places if place.placement.node in kept_nodes]
        free = sum(len(place.free) for place in behind)
        wanted = kept_nodes[behind[0].placement.node] if behind else 0
        if not barred:
            return (open_to[0] if open_to else None), Kept(free, wanted)
        best: FreePlace | None = None
        for place in open_to:
            left = tuple(gpu for gpu in place.free if gpu.uuid not in barred)
            free += len(place.free) - len(left)
            beside = self._place(place.order[2], place.order[3], left)
            if beside is not None and (best is None or beside.order < best.order):
                best = beside
        return best, Kept(free, wanted)

    def _offered(self, offered: Placement) -> FreePlace | None:
        for place in self._nodes[offered.node][1] if offered.node in self._nodes else ():
            if {gpu.uuid for gpu in place.free}.issuperset(offered.gpu_uuids):
                return FreePlace(place.order, offered, place.free)
        return None

    def free_best(self) -> int:
        """Return the largest number of free GPUs on one node that fits."""
        return max((free for free, nodes in self._free.items() if nodes), default=0)

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
                state = self._cluster.nodes.get(name)
                if state is not None and not places and free >= self.needs.gpus:
                    found.append(filters.host_memory(self.needs, name, host_free_mib(state)))
        return [obstacle for obstacle in found if obstacle is not None]

    def _learn(self, name: str, state: NodeState) -> None:
        built = self._cluster.facts.hardware(state.node)
        ground = self._grounds.get(built)
        if ground is None:
            ground = self._grounds[built] = self._ground(state.node, built)
        if not ground.fitting:
            return
        self._alike[built] += 1
        places: tuple[FreePlace, ...] = ()
        free_best = 0
        if ground.sound and state.free:
            free_by_model = self._free_by_model(state, ground)
            free_best = max(map(self._usable, free_by_model.values()))
            if filters.host_memory(self.needs, name, host_free_mib(state)) is None:
                found = (self._place(name, model, tuple(free)) for model, free in free_by_model.items())
                places = tuple(place for place in found if place is not None)
        for place in places:
            insort(self._places, place, key=_order_of_place)
        self._nodes[name] = (built, places, free_best)
        self._free[free_best] += 1

    def _forget(self, name: str) -> None:
        known = self._nodes.pop(name, None)
        if known is not None:
            built, places, free_best = known
            self._free[free_best] -= 1
            self._alike[built] -= 1
            for place in places:
                del self._places[bisect_left(self._places, place.order, key=_order_of_place)]

    def _ground(self, node: Node, built: Hardware) -> Ground:
        fitting = filters.fitting_groups(self.needs, built, self._cluster.facts)
        trouble = filters.node_trouble(self.needs, node.name, built, fitting)
        return Ground(fitting, bool(fitting) and not trouble)

    def _free_by_model(self, state: NodeState, ground: Ground) -> dict[str, list[Gpu]]:
        free: dict[str, list[Gpu]] = {model: [] for model in ground.fitting}
        for gpu in state.free:
            groups = ground.fitting.get(gpu.model, ())
            fits = any(group.usable_mib == gpu.memory_usable_mib for group in groups)
            if fits and self._cluster.facts.is_sound(gpu):
                free[gpu.model].append(gpu)
        return free

    def _usable(self, free: Sequence[Gpu]) -> int:
        aligned = self._cluster.facts.settings.aligned
        return largest_block(mask_of(free)) if aligned else len(free)

    def _place(self, name: str, model: str, free: tuple[Gpu, ...]) -> FreePlace | None:
        """Return the GPUs to take of these; ``None``: too few, or no block in an aligned pool."""
        settings = self._cluster.facts.settings
        if len(free) < self.needs.gpus:
            return None
        if settings.aligned:
            mask = mask_of(free)
            taken = self._blocks[mask]
            if not taken:
                return None
            chosen = tuple(sorted(gpu.uuid for gpu in free if bit_of(gpu) & taken))
            # The smallest block first, so that large shapes stay whole; then the fullest node.
            packed = (self._blocks.block_size[mask] << _BITS) + len(free)
        else:
            chosen = tuple(sorted(gpu.uuid for gpu in free)[: self.needs.gpus])
            packed = len(free)
        preferred = packed if settings.spreading is Spreading.PACK else -len(free)
        return FreePlace((self.rank(model) or 0, preferred, name, model), Placement(name, chosen), free)
