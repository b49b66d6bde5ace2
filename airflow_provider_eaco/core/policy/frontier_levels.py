"""Power limits of the policy ``frontier``: at which of the measured levels each set should run from now on.

A level is chosen as a set is: by the joules that it takes above the price of the work. Placements keep every
limit at full power. Levels spend what is left then, and are lifted as soon as it is needed: who waits for a
place never waits for a level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.policy.frontier_members import Member
from airflow_provider_eaco.core.policy.frontier_scene import LevelChoice, Scene, Scenes
from airflow_provider_eaco.core.policy.frontier_worth import Physics, Worth


class Levels:
    """Chooses levels for all sets of one instant.

    :param slack_s: seconds that the pool's jobs may still take longer than they do at full power.
    """

    def __init__(self, scenes: Scenes, worth: Worth, slack_s: float) -> None:
        self._scenes = scenes
        self._worth = worth
        self._slack_s = slack_s

    def changes(self, in_force: Mapping[Placement, float]) -> Iterator[SetPowerLimit]:
        """Yield what is to be set or lifted where another level is in force than the best."""
        wanted = self._wanted()
        for scene in self._scenes.all:
            placement = scene.held.placement
            limit_w = wanted.get(placement)
            ours = any(member.own for member in scene.members)
            if ours and limit_w != in_force.get(placement):
                yield SetPowerLimit(placement, limit_w)

    def _wanted(self) -> dict[Placement, float]:
        """Return the levels that the slack suffices for, those first that save most with it."""
        choices = [
            (choice, scene.held.placement)
            for scene in self._scenes.all
            if (choice := self._choice(scene)) is not None
        ]
        choices.sort(key=lambda pair: (-pair[0].worth_w, pair[1].node, pair[1].gpu_uuids))
        left_s, found = self._slack_s, {}
        for choice, placement in choices:
            if choice.extra_s <= left_s:
                left_s -= choice.extra_s
                found[placement] = choice.limit_w
        return found

    def _choice(self, scene: Scene) -> LevelChoice | None:
        if self._worth not in scene.levels:
            scene.levels[self._worth] = self._best(scene)
        return scene.levels[self._worth]

    def _best(self, scene: Scene) -> LevelChoice | None:
        """Return the level at which the set loses least, ``None``: full power.

        A set with a job of another pool stays at full power: its time is not this pool's to spend.
        """
        classes = self._scenes.classes
        numbers = tuple([number for number, _ in sorted(scene.rests)])
        ways = classes.ways(numbers)
        if not ways or not all(member.own for member in scene.members):
            return None
        best = best_way(ways, scene.members, self._worth)
        if best.limit_w is None:
            return None
        extra_s = classes.excess_s(scene.rests, best.limit_w) - scene.excess_s
        saved_w = self._worth.way_w(numbers, ways[0]) - self._worth.way_w(numbers, best)
        return LevelChoice(best.limit_w, extra_s, saved_w / _longer(best, ways[0]))


def best_way(ways: Sequence[Physics], members: Sequence[Member], worth: Worth) -> Physics:
    """Return the way in which these lose least within their own limits; the first if they bear none.

    :param ways: of the set of these members.
    """
    borne = sorted([(worth.classes.number(member.key), member.bears) for member in members])
    numbers = tuple([number for number, _ in borne])
    able = [
        way
        for way in ways
        if all(slow <= bears for slow, (_, bears) in zip(way.slowdowns, borne, strict=True))
    ]
    return min(able, key=lambda way: worth.way_w(numbers, way), default=ways[0])


def advice(members: Sequence[Member], worth: Worth) -> str | None:
    """Return in words at which measured level these would lose least, ``None``: at full power."""
    numbers = tuple(sorted([worth.classes.number(member.key) for member in members]))
    ways = worth.classes.measured_ways(numbers)
    best = best_way(ways, members, worth) if ways else None
    if best is None or best.limit_w is None:
        return None
    less_pct = 100 * (1 - best.power_w / ways[0].power_w)
    longer_pct = 100 * (best.slowdowns[0] / ways[0].slowdowns[0] - 1)
    return (
        f"held to {best.limit_w:g} W a board it would draw {less_pct:.0f} % less there "
        f"and take {longer_pct:.0f} % longer"
    )


def _longer(way: Physics, full: Physics) -> float:
    """Return how many seconds more than at full power are lost in one second, over all members."""
    return sum([1 / fast - 1 / slow for fast, slow in zip(full.slowdowns, way.slowdowns, strict=True)])
