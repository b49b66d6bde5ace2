"""The cluster as it stands in the middle of a cycle: its nodes, with their held sets arranged in groups.

It follows snapshots node by node, within a cycle and from one cycle to the next: what has not changed is
recognised as the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.model.gpu import Hardware, Node
from airflow_provider_eaco.core.model.profile import FamilySet
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import GpuSet, NodeState
from airflow_provider_eaco.core.policy.changes import ChangeLog, replaced
from airflow_provider_eaco.core.policy.facts import Changed, CycleFacts, SetKind
from airflow_provider_eaco.core.policy.groups import HeldSet, SetGroup, SetOrder


def host_free_mib(state: NodeState) -> int | None:
    """Return the host memory that residents have not asked for, ``None`` when the node's is not known."""
    total_mib = state.node.host_memory_mib
    if total_mib is None:
        return None
    residents = (resident for held in state.sets for resident in held.residents)
    return total_mib - sum(resident.job.request.host_memory_mib or 0 for resident in residents)


@quick_init
@dataclass(frozen=True, slots=True)
class _Known:
    """A node as it is arranged: ``sets`` has one entry for each set of the state, in the state's order."""

    state: NodeState
    in_foreign_use: tuple[str, ...]
    hardware: Hardware
    host_free_mib: int | None
    sets: Mapping[SetOrder, HeldSet]

    def offers_as(self, other: _Known) -> bool:
        """Tell whether both offer the same free GPUs."""
        here, there = self.state, other.state
        return (
            (here is there or (here.node is there.node and here.free == there.free))
            and self.in_foreign_use == other.in_foreign_use
            and self.hardware is other.hardware
            and self.host_free_mib == other.host_free_mib
        )


_NO_SETS: Mapping[SetOrder, HeldSet] = {}
_NOBODY: frozenset[str] = frozenset()
# So many changes are kept in any case for those who have not followed for a while.
_KEPT_AT_LEAST = 1000


class Cluster:
    """All nodes with their held sets.

    ``nodes`` are those of the snapshot that it followed last; ``changes`` names every node that was replaced.

    :param shares: whether anybody asks about held sets; if not, there are none in it.
    """

    def __init__(self, facts: CycleFacts, *, shares: bool = True) -> None:
        self.facts = facts
        self._shares = shares
        self.changes: ChangeLog[str] = ChangeLog()
        self.nodes: Mapping[str, NodeState] = {}
        self._known: dict[str, _Known] = {}
        self._groups: dict[int, dict[SetKind, SetGroup]] = {}
        self._dated: dict[SetGroup, None] = {}
        self._touched: dict[int, ChangeLog[SetGroup]] = {}
        self._full: Counter[tuple[int, str]] = Counter()
        self._closed: dict[int, Counter[str]] = {}
        self._counts: Counter[int] = Counter()
        # By the families of a set of several: on which nodes there are such, and how many.
        self._nodes_of: dict[FamilySet, Counter[str]] = {}

    def begin(self, *, read_anew: bool) -> None:
        """Begin a cycle at the facts' new instant, with what is believed now.

        :param read_anew: whether other readings came with it.
        """
        self._pass_time()
        changed = self.facts.changed
        if changed != Changed():
            self._believe_anew(changed)
        for name in list(self._known if read_anew else self._holders(changed)):
            known = self._known[name]
            kept = _NO_SETS if read_anew else self._without(known.sets, changed)
            if read_anew or kept is not known.sets:
                self._exchange(name, known, self._arrange(known.state, known, kept))
        # Beyond this it is less work to look at everything than to catch up.
        self.changes.keep(4 * len(self._known) + _KEPT_AT_LEAST)
        for gpus, touched in self._touched.items():
            touched.keep(4 * len(self._groups.get(gpus, ())) + _KEPT_AT_LEAST)

    def _pass_time(self) -> None:
        for group in list(self._dated):
            if group.dated:
                group.pass_time()
                self.touched(group.kind.gpus).add(group)
            else:
                del self._dated[group]

    def _believe_anew(self, changed: Changed) -> None:
        newcomers = changed.newcomers()
        for gpus, groups in self._groups.items():
            for kind, group in list(groups.items()):
                joining = newcomers.get(kind.families, _NOBODY)
                if changed.concerns(kind.families):
                    groups[kind] = anew = group.made_anew()
                    self.touched(gpus).extend((group, anew))
                    if anew.dated:
                        self._dated[anew] = None
                elif joining or changed.families:
                    group.forget(joining | changed.families)
                    # Whoever is of a family that is believed otherwise looks at all groups anew.
                    if joining:
                        self.touched(gpus).add(group)

    def _holders(self, changed: Changed) -> Iterable[str]:
        """Return the nodes with sets of which a newcomer may meet something else, and maybe more."""
        if changed.families:
            return self._known
        return dict.fromkeys(name for members in changed.sets for name in self._nodes_of.get(members, ()))

    def sync(self, nodes: Mapping[str, NodeState]) -> None:
        """Follow a snapshot; afterwards every answer is about these nodes."""
        if nodes is not self.nodes:
            for name in replaced(self.nodes, nodes):
                before, state = self._known.get(name), nodes.get(name)
                kept = _NO_SETS if before is None else before.sets
                self._exchange(name, before, None if state is None else self._arrange(state, before, kept))
            self.nodes = nodes

    def groups(self, gpus: int) -> Iterable[SetGroup]:
        """Return the groups of sets of that many GPUs, in the order in which they came up."""
        return self._groups.get(gpus, {}).values()

    def touched(self, gpus: int) -> ChangeLog[SetGroup]:
        """Return the log of the groups of sets of that many GPUs that changed."""
        log = self._touched.get(gpus)
        if log is None:
            log = self._touched[gpus] = ChangeLog()
        return log

    def full(self, gpus: int) -> Collection[str]:
        """Return the GPU models of the open sets of that many GPUs with all the residents they may have."""
        return [model for (count, model), sets in self._full.items() if count == gpus and sets]

    def sharing(self, gpus: int) -> str:
        """Say in words what keeps newcomers from the sets of that many GPUs, whoever comes."""
        if not self._counts[gpus]:
            return "no job holds that many GPUs there"
        closed = sorted((why, count) for why, count in self._closed.get(gpus, {}).items() if count)
        return ", ".join(f"{why} ({count} of {self._counts[gpus]})" for why, count in closed) or "see above"

    def all_open(self, gpus: int) -> bool:
        """Tell whether every set of that many GPUs is open to newcomers."""
        return not any(self._closed.get(gpus, {}).values())

    def _exchange(self, name: str, before: _Known | None, after: _Known | None) -> None:
        """Put the node in the place of the one with its name; only what newcomers see change is touched."""
        if after is None:
            self._known.pop(name, None)
        else:
            self._known[name] = after
        if before is None or after is None or not after.offers_as(before):
            self.changes.add(name)
        gone = _NO_SETS if before is None else before.sets
        come = _NO_SETS if after is None else after.sets
        learned: list[HeldSet] = []
        # Most sets of a node stay the same object, which is seen at once; comparing their facts takes longer.
        for order in replaced(gone, come):
            was, held = gone.get(order), come.get(order)
            if was == held:
                continue
            if was is not None and held is not None and _differ_in_bearing(was, held):
                self._renew(was, held)
                continue
            if was is not None:
                self._forget(was)
            if held is not None:
                learned.append(held)
        for held in learned:
            self._learn(held)

    def _arrange(self, state: NodeState, before: _Known | None, kept: Mapping[SetOrder, HeldSet]) -> _Known:
        """Return the node's arrangement; of ``kept`` stays what is the same object under the same node."""
        hardware, in_foreign_use = self.facts.hardware(state.node), self.facts.in_foreign_use(state.node)
        host_mib = host_free_mib(state)
        if not self._shares:
            return _Known(state, in_foreign_use, hardware, host_mib, _NO_SETS)
        if before is not None and kept is before.sets and _hold_the_same(before.state, state):
            sets = dict(kept)
            for order, was, held in zip(kept, before.state.sets, state.sets, strict=True):
                if held is not was:
                    sets[order] = self._present(held, state.node, (was, kept[order]), host_mib)
            return _Known(state, in_foreign_use, hardware, host_mib, sets)
        known: dict[tuple[str, ...], tuple[GpuSet, HeldSet]] = {}
        if before is not None and before.state.node is state.node:
            for held, order in zip(before.state.sets, before.sets, strict=True):
                if order in kept:
                    known[order[1]] = held, kept[order]
        sets = {}
        for held in state.sets:
            present = self._present(held, state.node, known.get(held.placement.gpu_uuids), host_mib)
            sets[present.order] = present
        return _Known(state, in_foreign_use, hardware, host_mib, sets)

    def _present(
        self, held: GpuSet, node: Node, before: tuple[GpuSet, HeldSet] | None, host_free_mib: int | None
    ) -> HeldSet:
        """Return what newcomers meet in the set: what they met before on the same node, if it is still so."""
        if before is not None and before[1].host_free_mib == host_free_mib:
            was, known = before
            if was is held:
                return known
            if self.facts.meets_alike(was, held):
                return known.after_reports(held)
        return HeldSet.of(self.facts.held(held, node), host_free_mib)

    def _learn(self, held: HeldSet) -> None:
        kind, closed = held.facts.kind, held.facts.closed
        self._counts[kind.gpus] += 1
        if len(kind.families) > 1:
            self._nodes_of.setdefault(kind.families, Counter())[held.facts.placement.node] += 1
        if closed is not None:
            self._closed.setdefault(kind.gpus, Counter())[closed] += 1
        elif held.facts.full:
            self._full[kind.gpus, kind.model] += 1
        else:
            groups = self._groups.setdefault(kind.gpus, {})
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = SetGroup(kind, self.facts)
            group.add(held)
            if held.facts.dated:
                self._dated[group] = None
            self.touched(kind.gpus).add(group)

    def _renew(self, before: HeldSet, after: HeldSet) -> None:
        kind = after.facts.kind
        group = self._groups[kind.gpus][kind]
        if group.renew(before, after):
            self.touched(kind.gpus).add(group)

    def _forget(self, held: HeldSet) -> None:
        kind, closed = held.facts.kind, held.facts.closed
        self._counts[kind.gpus] -= 1
        if len(kind.families) > 1:
            self._leave(kind.families, held.facts.placement.node)
        if closed is not None:
            self._closed[kind.gpus][closed] -= 1
        elif held.facts.full:
            self._full[kind.gpus, kind.model] -= 1
        else:
            group = self._groups[kind.gpus][kind]
            group.remove(held)
            self.touched(kind.gpus).add(group)

    def _leave(self, families: FamilySet, name: str) -> None:
        nodes = self._nodes_of[families]
        nodes[name] -= 1
        if not nodes[name]:
            del nodes[name]

    def _without(self, sets: Mapping[SetOrder, HeldSet], changed: Changed) -> Mapping[SetOrder, HeldSet]:
        """Return the sets that are as before; of a job alone only what its family does alone matters."""
        alone = Changed(self.facts.changed_alone)

        def stays(members: FamilySet) -> bool:
            return not (changed if len(members) > 1 else alone).concerns(members)

        kept = {order: held for order, held in sets.items() if stays(held.facts.kind.families)}
        return sets if len(kept) == len(sets) else kept


def _hold_the_same(before: NodeState, state: NodeState) -> bool:
    """Tell whether the same GPUs of a node are held together as before, in the same order."""
    return before.node is state.node and _held_gpus(before) == _held_gpus(state)


def _held_gpus(state: NodeState) -> list[tuple[str, ...]]:
    return [held.placement.gpu_uuids for held in state.sets]


def _differ_in_bearing(one: HeldSet, other: HeldSet) -> bool:
    """Tell whether two sets on the same GPUs are open, and differ at most in what their residents bear."""
    here, there = one.facts, other.facts
    return (
        here.bearing is not None
        and there.bearing is not None
        and here.job_ids == there.job_ids
        and here.kind == there.kind
        and here.dated == there.dated
        and here.free_mib == there.free_mib
        and here.usable_mib == there.usable_mib
        and one.host_free_mib == other.host_free_mib
    )
