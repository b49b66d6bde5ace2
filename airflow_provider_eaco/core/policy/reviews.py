"""Reviews of all sets of a cluster, each kept for as long as nothing changes on which it depends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.changes import replaced
from airflow_provider_eaco.core.policy.trial import review_set, trial_since_s


@quick_init
@dataclass(frozen=True, slots=True)
class _Reviewed:
    """A set's last review, which stands until ``until_s`` while its members' profiles alone stay."""

    held: GpuSet
    from_s: float
    until_s: float
    review: Review | None


class Reviews:
    """What :func:`~airflow_provider_eaco.core.policy.trial.review_set` says, computed when it may differ."""

    def __init__(self) -> None:
        # By node and by the GPUs that they hold.
        self._last: dict[str, dict[tuple[str, ...], _Reviewed]] = {}
        self._book: ProfileBook | None = None
        self._nodes: Mapping[str, NodeState] = {}
        self._now_s = -math.inf
        self._look_again_s: dict[str, float] = {}
        self._first_look_s = math.inf

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        """Return the review of a set with two residents or more."""
        for name in self._believe(snapshot.profiles):
            self._look_at(name, -math.inf)
        known, uuids = self._last.setdefault(held.placement.node, {}), held.placement.gpu_uuids
        present = known[uuids] = _present(held, known.get(uuids), snapshot)
        return present.review

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        """Return the sets about which something is to be done, with their reviews, by the names of nodes.

        Only nodes are looked at that are not the ones of the snapshot before, whose time has come, or of
        whose families other things are believed.
        """
        now_s = snapshot.now_s
        names = self._believe(snapshot.profiles)
        names.update(replaced(self._nodes, snapshot.nodes))
        if now_s < self._now_s:
            names.update(snapshot.nodes)
        elif now_s >= self._first_look_s:
            names.update(name for name, at_s in self._look_again_s.items() if at_s <= now_s)
        self._nodes, self._now_s = snapshot.nodes, now_s
        due: list[tuple[GpuSet, Review]] = []
        for name in sorted(names):
            state = snapshot.nodes.get(name)
            found = self._of_node(name, () if state is None else state.shared_sets, snapshot)
            due += [(each.held, each.review) for each in found if each.review is not None]
        if names:
            self._first_look_s = min(self._look_again_s.values(), default=math.inf)
        return due

    def _of_node(self, name: str, shared: Sequence[GpuSet], snapshot: ClusterSnapshot) -> Sequence[_Reviewed]:
        """Return the reviews of a node's sets, and note when they may differ."""
        if not shared:
            self._last.pop(name, None)
            self._look_again_s.pop(name, None)
            return ()
        known = self._last.get(name, {})
        found = [_present(held, known.get(held.placement.gpu_uuids), snapshot) for held in shared]
        self._last[name] = {each.held.placement.gpu_uuids: each for each in found}
        again_s = math.inf
        for each in found:
            # What is to be done is said in every cycle until it has been done.
            again_s = min(again_s, each.until_s if each.review is None else -math.inf)
        self._look_at(name, again_s)
        return found

    def _look_at(self, name: str, at_s: float) -> None:
        self._look_again_s[name] = at_s
        self._first_look_s = min(self._first_look_s, at_s)

    def _believe(self, book: ProfileBook) -> set[str]:
        """Forget what followed from other beliefs; return the nodes that this is about.

        A review compares what a set has measured with what its members do alone; what was believed of the set
        is not looked at.
        """
        names: set[str] = set()
        if self._book is not None and self._book is not book:
            changed = book.families_changed_alone_since(self._book)
            for name, found in self._last.items() if changed else ():
                gone = [place for place, each in found.items() if not changed.isdisjoint(each.held.families)]
                for place in gone:
                    del found[place]
                    names.add(name)
        self._book = book
        return names


def _present(held: GpuSet, last: _Reviewed | None, snapshot: ClusterSnapshot) -> _Reviewed:
    """Return the last review of those GPUs if it is of this very set and still stands, else a new one."""
    if last is not None and last.held is held and last.from_s <= snapshot.now_s < last.until_s:
        return last
    until_s = stands_until_s(held, snapshot.now_s, snapshot.pool.settings.trial_limit_s)
    return _Reviewed(held, snapshot.now_s, until_s, review_set(held, snapshot))


def stands_until_s(held: GpuSet, now_s: float, trial_limit_s: float) -> float:
    """Return the instant from which the same set with the same beliefs may have to be judged otherwise."""
    for resident in held.residents:
        if resident.job.request.deadline_s is not None:
            return now_s
    end_s = trial_since_s(held) + trial_limit_s
    return end_s if now_s < end_s else math.inf
