"""Which sets have something to be reviewed: so that no cycle is run to see that nothing is to be done.

A cycle without anybody in the queue, of a policy that steers nothing, does its reviews and no more. Where a
review follows from the set itself (:func:`~airflow_provider_eaco.core.policy.base.judges_sets_alone`), the
sets that changed can be judged one by one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.snapshot import GpuSet
from airflow_provider_eaco.core.policy.base import Review
from airflow_provider_eaco.core.policy.reviews import stands_until_s
from airflow_provider_eaco.core.ports import Member, ProfileStore

# The set of these members with what a cycle would do about it; ``None``: nobody can be judged.
JudgeSet = Callable[[Node, tuple[Member, ...], float], tuple[GpuSet, Review | None] | None]


class _Judged(NamedTuple):
    """A set about which nothing was to be done, and from which instant that may differ."""

    placement: Placement
    node: Node
    families: tuple[str, ...]
    until_s: float


class SetWatch:
    """Judges sets anew where something has changed on which their review depends.

    :param trial_limit_s: after which time a trial ends without evidence.
    :param members: returns who holds exactly this placement, oldest first.
    """

    def __init__(
        self,
        judge: JudgeSet,
        trial_limit_s: float,
        profiles: ProfileStore,
        members: Callable[[Placement], tuple[Member, ...]],
    ) -> None:
        self._judge = judge
        self._trial_limit_s = trial_limit_s
        self._profiles = profiles
        self._members = members
        self._book = profiles.book()
        # Both by the UUIDs of the GPUs that are held: no GPU is on two nodes.
        self._touched: dict[tuple[str, ...], tuple[Placement, Node]] = {}
        self._judged: dict[tuple[str, ...], _Judged] = {}
        # When a judgement may end, in which order it was made, and of whom.
        self._ends: list[tuple[float, int, tuple[str, ...]]] = []
        self._pushed = 0

    def touch(self, placement: Placement, node: Node) -> None:
        """Note that the members of a set, or what is known of them, may have changed."""
        self._touched[placement.gpu_uuids] = placement, node

    def is_due(self, now_s: float) -> bool:
        """Return whether a review of any set has something to say at ``now_s``.

        All have to be touched that were granted, changed, reported on, or left, since the last time.
        """
        self._follow_beliefs()
        self._follow_time(now_s)
        while self._touched:
            uuids, (placement, node) = next(iter(self._touched.items()))
            if self._has_review(placement, node, now_s):
                # It is said again until it has been done.
                return True
            del self._touched[uuids]
        return False

    def _has_review(self, placement: Placement, node: Node, now_s: float) -> bool:
        uuids = placement.gpu_uuids
        self._judged.pop(uuids, None)
        members = self._members(placement)
        judged = self._judge(node, members, now_s) if len(members) > 1 else None
        if judged is None:
            return False
        held, review = judged
        if review is not None:
            return True
        until_s = stands_until_s(held, now_s, self._trial_limit_s)
        self._judged[uuids] = _Judged(placement, node, held.families, until_s)
        if until_s < math.inf:
            self._pushed += 1
            heapq.heappush(self._ends, (until_s, self._pushed, uuids))
        return False

    def _follow_time(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            until_s, _, uuids = heapq.heappop(self._ends)
            known = self._judged.get(uuids)
            if known is not None and known.until_s == until_s:
                self._touched.setdefault(uuids, (known.placement, known.node))

    def _follow_beliefs(self) -> None:
        book = self._profiles.book()
        if book is not self._book:
            changed = book.families_changed_alone_since(self._book)
            self._book = book
            for uuids, judged in self._judged.items() if changed else ():
                if not changed.isdisjoint(judged.families):
                    self._touched.setdefault(uuids, (judged.placement, judged.node))
