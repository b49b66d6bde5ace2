"""Moves of the policy ``frontier``: who should leave a set for a better one, at its next unit boundary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_provider_eaco.core.model.instruction import Yield
from airflow_provider_eaco.core.model.snapshot import Resident
from airflow_provider_eaco.core.policy.filters import Needs
from airflow_provider_eaco.core.policy.frontier_members import RESTART_S, Member
from airflow_provider_eaco.core.policy.frontier_scene import Addition, Scene, Scenes
from airflow_provider_eaco.core.policy.frontier_worth import Worth

# A move has to save so much beside what it costs: predictions are not exact, and others may come first.
LEAST_GAIN_J = 200e3
# Nobody moves for a rest that is shorter than this.
LEAST_LEFT_S = 900.0
_MOST_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class _Move:
    """Members of one set with where each goes; sets are meant by their place in the list."""

    gain_j: float
    source: int
    goals: tuple[tuple[Member, int], ...]


class Moves:
    """Finds moves among the sets of one instant, the best first.

    :param down: the nodes that sleep or wake: who is interrupted would have to wait there.
    """

    def __init__(self, scenes: Scenes, worth: Worth, slack_s: float, down: frozenset[str]) -> None:
        self._scenes = scenes
        self._worth = worth
        self._classes = scenes.classes
        self._slack_s = slack_s
        self._down = down
        self._sets = list(scenes.all)
        self._losses_j = [scene.loss_j(worth) for scene in self._sets]
        # Nobody is asked to leave a set into or out of which somebody is moving.
        self._still = [not scene.leaving for scene in self._sets]
        self._expect_those_who_leave()

    # Few cycles find a set to which anybody might move.
    @cached_property
    def _needs(self) -> Mapping[str, Needs]:
        residents = (resident for scene in self._scenes.all for resident in scene.held.residents)
        return {resident.job.job_id: Needs.of(resident.job.request) for resident in residents}

    def best(self) -> Iterator[Yield]:
        """Yield whom to ask, until no move saves enough."""
        for _ in range(_MOST_AT_ONCE):
            best: _Move | None = None
            losing = self._losing_at_least(LEAST_GAIN_J)
            for source, scene in enumerate(self._sets):
                if self._still[source]:
                    for move in self._moves_out_of(source, scene, losing):
                        best = move if best is None or move.gain_j > best.gain_j else best
            if best is None or best.gain_j < LEAST_GAIN_J:
                return
            yield from self._asked(best)

    def _expect_those_who_leave(self) -> None:
        for source, scene in enumerate(list(self._sets)):
            for member in scene.members:
                if member.job_id in scene.leaving:
                    goal = self._goal(member, source, range(len(self._sets)))
                    if goal is not None:
                        self._carry(member, source, goal[0])

    def _moves_out_of(self, source: int, scene: Scene, losing: Sequence[int]) -> Iterator[_Move]:
        able = [member for member in scene.members if self._may_move(member)]
        loses = self._losses_j[source] >= LEAST_GAIN_J
        if len(scene.members) > 1:
            for member in able:
                move = self._one(source, scene, member, None if loses else losing)
                if move is not None:
                    yield move
        if loses and scene.members and len(able) == len(scene.members):
            move = self._everybody(source, scene)
            if move is not None:
                yield move

    def _losing_at_least(self, loss_j: float, among: Sequence[int] | None = None) -> Sequence[int]:
        """Return the sets that lose so much; ``among`` all by default."""
        losses_j = self._losses_j
        if among is None:
            return [place for place, lost_j in enumerate(losses_j) if lost_j >= loss_j]
        return [place for place in among if losses_j[place] >= loss_j]

    def _one(self, source: int, scene: Scene, member: Member, goals: Sequence[int] | None) -> _Move | None:
        left_j = scene.loss_without_j(member, self._worth) + self._price_j(member)
        saved_j = self._losses_j[source] - left_j
        # Nobody loses less than nothing: a set gains at most what it loses now.
        worthwhile = self._losing_at_least(LEAST_GAIN_J - saved_j, goals)
        goal = self._goal(member, source, worthwhile)
        return None if goal is None else _Move(saved_j - goal[1].loss_j, source, ((member, goal[0]),))

    def _everybody(self, source: int, scene: Scene) -> _Move | None:
        present, self._sets = self._sets, list(self._sets)
        gain_j, goals = self._losses_j[source], []
        places: Sequence[int] = range(len(self._sets))
        if len(scene.members) == 1:
            places = self._losing_at_least(LEAST_GAIN_J - gain_j + self._price_j(scene.members[0]))
        for member in sorted(scene.members, key=lambda each: (-each.left_s, each.job_id)):
            goal = self._goal(member, source, places)
            if goal is None:
                self._sets = present
                return None
            gain_j -= goal[1].loss_j + self._price_j(member)
            goals.append((member, goal[0]))
            grown = self._sets[goal[0]]
            self._sets[goal[0]] = grown.with_members((*grown.members, member), self._classes)
        self._sets = present
        return _Move(gain_j, source, tuple(goals))

    def _goal(self, member: Member, source: int, places: Sequence[int]) -> tuple[int, Addition] | None:
        """Return the set to which the member adds least, after a restart there."""
        if not places:
            return None
        restarted = replace(member, bears=member.bears - RESTART_S / member.left_s)
        best: tuple[int, Addition] | None = None
        for place in places:
            scene = self._sets[place]
            if place != source and scene.members and scene.node.name not in self._down:
                added = self._scenes.addition(scene, restarted, self._needs[member.job_id], self._worth)
                if added is None or added.excess_s + RESTART_S > self._slack_s:
                    continue
                if best is None or added.loss_j < best[1].loss_j:
                    best = place, added
        return best

    def _asked(self, move: _Move) -> Iterator[Yield]:
        scene = self._sets[move.source]
        residents: dict[str, Resident] = {each.job.job_id: each for each in scene.held.residents}
        for member, goal in move.goals:
            where = self._sets[goal].held.placement.node
            self._carry(member, move.source, goal)
            yield Yield(
                member.job_id,
                scene.held.placement,
                residents[member.job_id].set_version,
                f"in its set too much power goes into too little work; it moves to {where}, "
                f"which saves {move.gain_j / 1e6:.2f} MJ beside the restart",
                undo=False,
            )

    def _carry(self, member: Member, source: int, goal: int) -> None:
        left, joined = self._sets[source], self._sets[goal]
        rest = [each for each in left.members if each is not member]
        self._sets[source] = left.with_members(rest, self._classes)
        self._sets[goal] = joined.with_members((*joined.members, member), self._classes)
        self._still[source] = self._still[goal] = False
        for place in (source, goal):
            self._losses_j[place] = self._sets[place].loss_j(self._worth)

    def _may_move(self, member: Member) -> bool:
        long = member.work_s is not None and member.left_s > LEAST_LEFT_S
        return member.own and member.movable and long and member.bears > 1 + 2 * RESTART_S / member.left_s

    def _price_j(self, member: Member) -> float:
        """Return what the restart is worth: work that is not done while somebody is present."""
        return RESTART_S * self._worth.price(self._classes.number(member.key)).work_w
