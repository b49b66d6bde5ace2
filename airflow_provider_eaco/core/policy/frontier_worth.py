"""What sets cost above the price of the work that they do, now and until their members have ended.

The loss of a set is its reduced cost in the configuration program: its power and the price of its members'
presence, less the price of the work that they do, in watts. Under the program's own prices no set's loss is
negative and the best sets have none: what a schedule takes above the bound is the sum of its losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from operator import itemgetter

from airflow_provider_eaco.core.energy.power_levels import Way, ways_of
from airflow_provider_eaco.core.model.decision import SetPrediction
from airflow_provider_eaco.core.model.prices import ClassKey, ClassPrice, EnergyPrices
from airflow_provider_eaco.core.model.profile import FamilySet, ProfileBook, ProfileSource, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.facts import CycleFacts

# What lies further ahead counts less: by then others will have come and gone.
FORESIGHT_S = 2 * 3600.0
# A set with room is weighed as if those who wait completed it as well as they can, or as if for this part of
# the time somebody came who completes it best, whichever is better.
COMPLETED = 0.35
# Below this weight nothing that lies ahead changes a choice.
_LEAST_WEIGHT = 1e-3
# Beyond so many larger sets of a set only those with fewer newcomers are looked at.
_MOST_GROWN = 1000
# Means of the same measurements differ by so much.
_ROUNDING = 1e-6

# Classes of a set by number, ascending; with each what is left of the member, in seconds of exclusive work.
Numbers = tuple[int, ...]
Rest = tuple[int, float]
# A larger set that a set may become, and the classes of those who come.
Growth = tuple[Numbers, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Physics:
    """How a set runs: power, the slowdowns of its members in their order, and whether it may be at all.

    ``limit_w``: under this power limit per board, ``None`` at full power. ``lasting``: all members keep their
    own limits if they are in it from their beginning to their end. ``proven``: it was measured here, or no
    trial was ever undone.
    """

    power_w: float
    slowdowns: tuple[float, ...]
    allowed: bool
    lasting: bool
    prediction: SetPrediction
    limit_w: float | None = None
    proven: bool = True


class Classes:
    """Numbers for classes and what is known of their sets under one book of profiles; prices come on top."""

    def __init__(self, facts: CycleFacts) -> None:
        self.facts = facts
        self._in_doubt = _was_wrong(facts.book)
        self.keys: list[ClassKey] = []
        self._number: dict[ClassKey, int] = {}
        self._ways: dict[Numbers, tuple[Physics, ...]] = {}
        # By families, GPU model and GPUs: what is predicted, how it may be run, whether it was measured here.
        self._predicted: dict[
            tuple[FamilySet, str, int], tuple[SetPrediction | None, tuple[Way, ...], bool]
        ] = {}
        self._grown: dict[tuple[Numbers, Numbers], Sequence[Growth]] = {}

    def follow(self, snapshot: ClusterSnapshot) -> bool:
        """Be about this snapshot, unless other things are believed there; return whether they are the same.

        Beliefs that have only gained evidence are the same.
        """
        facts = self.facts
        alike = facts.readings is snapshot.readings or facts.readings == snapshot.readings
        if not alike or facts.settings != snapshot.pool.settings:
            return False
        if facts.book is snapshot.profiles:
            return True
        if self._in_doubt != _was_wrong(snapshot.profiles):
            return False
        changed = facts.move_to(snapshot)
        touched = [key for key in self._predicted if not changed.isdisjoint(key[0])]
        return not facts.changed_alone and all(
            _are_alike(self._predicted[key][0], facts.predict(*key))
            and self._predicted[key][1:] == (facts.ways(*key), self._is_proven(*key))
            for key in touched
        )

    def number(self, key: ClassKey) -> int:
        """Return the class's number, the same one each time."""
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.keys)
            self.keys.append(key)
        return number

    def physics(self, numbers: Numbers, limit_w: float | None = None) -> Physics | None:
        """Return how the set runs, ``None`` where slowdowns or power are not known.

        :param limit_w: under this power limit; a set for which it is not one of the ways runs at full power.
        """
        ways = self.ways(numbers)
        if limit_w is None or len(ways) < 2:
            return ways[0] if ways else None
        return next((way for way in ways if way.limit_w == limit_w), ways[0])

    def ways(self, numbers: Numbers) -> tuple[Physics, ...]:
        """Return how the set runs at full power, then under limits that may serve; empty: not known."""
        known = self._ways.get(numbers)
        if known is None:
            known = self._ways[numbers] = tuple(self._find(numbers))
        return known

    def measured_ways(self, numbers: Numbers) -> tuple[Physics, ...]:
        """Return how the set would run under the limits that may serve, whether or not any is ever set."""
        return tuple(self._run(numbers, ways_of(*self._asked(numbers), self.facts.book)))

    def grown(self, numbers: Numbers, by: Numbers) -> Sequence[Growth]:
        """Return what the set may become by members of these classes, within the limit of each."""
        known = self._grown.get((numbers, by))
        if known is None:
            known = self._grown[numbers, by] = tuple(self._find_grown(numbers, by))
        return known

    def _find_grown(self, numbers: Numbers, by: Numbers) -> Iterator[Growth]:
        scope = self.keys[numbers[0]][1:3]
        alike = [number for number in by if self.keys[number][1:3] == scope]
        asked = 0
        for more in range(1, self.facts.settings.max_residents - len(numbers) + 1):
            asked += math.comb(len(alike) + more - 1, more)
            if more > 1 and asked > _MOST_GROWN:
                return
            for added in combinations_with_replacement(alike, more):
                grown = tuple(sorted((*numbers, *added)))
                physics = self.physics(grown)
                if physics is not None and physics.allowed and physics.lasting:
                    yield grown, frozenset(added)

    def excess_s(self, rests: Sequence[Rest], limit_w: float | None = None) -> float:
        """Return by how much these runs together take longer than alone at full power, if nobody comes.

        :param limit_w: the power limit that stays in force there.
        """
        left, excess_s = sorted(rests), 0.0
        while len(left) > 1 or (left and limit_w is not None):
            physics = self.physics(tuple([number for number, _ in left]), limit_w)
            if physics is None:
                return math.inf
            slowdowns = physics.slowdowns
            step_s = min([rest * slow for (_, rest), slow in zip(left, slowdowns, strict=True)])
            excess_s += sum([step_s * (1 - 1 / slow) for slow in slowdowns])
            left = _after(left, slowdowns, step_s)
        return excess_s

    def _find(self, numbers: Numbers) -> Iterator[Physics]:
        asked = self._asked(numbers)
        ways = self.facts.ways(*asked)
        self._predicted[asked] = self.facts.predict(*asked), ways, self._is_proven(*asked)
        return self._run(numbers, ways)

    def _is_proven(self, families: FamilySet, gpu_model: str, gpu_count: int) -> bool:
        if len(families) == 1 or not self._in_doubt:
            return True
        known = self.facts.book.coallocation_of(families, gpu_model, gpu_count)
        return known is not None and known.source is ProfileSource.MEASURED

    def _asked(self, numbers: Numbers) -> tuple[FamilySet, str, int]:
        keys = [self.keys[number] for number in numbers]
        return family_set(tuple(key.family for key in keys)), keys[0].gpu_model, keys[0].gpus

    def _run(self, numbers: Numbers, ways: Sequence[Way]) -> Iterator[Physics]:
        keys, asked = [self.keys[number] for number in numbers], self._asked(numbers)
        seen, proven = self.facts.predict(*asked), self._is_proven(*asked)
        if seen is None or seen.power_w is None:
            return
        busy_pct = math.inf if seen.utilisation_pct is None else seen.utilisation_pct
        allowed = len(keys) == 1 or busy_pct <= self.facts.settings.utilisation_limit_pct
        for way in ways:
            # Beside others nobody is faster than alone, whatever is believed.
            slowdowns = tuple(max(1.0, seen.slowdowns[key.family]) * way.slowdown for key in keys)
            lasting = all(
                key.stretch_limit is None or slowdown <= key.stretch_limit
                for key, slowdown in zip(keys, slowdowns, strict=True)
            )
            power_w = seen.power_w * way.power_ratio
            yield Physics(power_w, slowdowns, allowed, lasting, seen, way.limit_w, proven)


class Worth:
    """Losses of sets under one set of prices, while jobs of some classes wait.

    :param waiting: the classes of those who wait and could complete a set, ascending.
    """

    def __init__(self, classes: Classes, prices: EnergyPrices, waiting: Numbers = ()) -> None:
        self.classes = classes
        self.prices = prices
        self._waiting = frozenset(waiting)
        self._priced = tuple(sorted(classes.number(key) for key in prices.classes))
        self._best: dict[Numbers, tuple[float, Physics | None]] = {}
        self._ahead: dict[Numbers, float] = {}
        self._better: dict[Numbers, Sequence[tuple[float, frozenset[int]]]] = {}
        self._beside: dict[Numbers, Worth] = {waiting: self}

    def beside(self, waiting: Numbers) -> Worth:
        """Return the losses under the same prices while jobs of these classes wait."""
        other = self._beside.get(waiting)
        if other is None:
            other = self._beside[waiting] = Worth(self.classes, self.prices, waiting)
            other._best, other._better = self._best, self._better
            other._beside = self._beside
        return other

    def price(self, number: int) -> ClassPrice:
        """Return the class's price; one that the program did not have is worth what it takes alone."""
        key = self.classes.keys[number]
        known = self.prices.classes.get(key)
        if known is not None:
            return known
        alone = self.classes.physics((number,))
        power_w = 0.0 if alone is None else alone.power_w
        return ClassPrice(power_w + self.prices.stretch_w, self.prices.stretch_w)

    def loss_w(self, numbers: Numbers) -> float:
        """Return the set's loss at its best power limit, infinite where something of it is not known."""
        return self._at_best(numbers)[0]

    def ahead_w(self, numbers: Numbers) -> float:
        """Return the loss that is expected of the set, completed by who waits, or at times by who comes."""
        known = self._ahead.get(numbers)
        if known is None:
            own_w, better = self.loss_w(numbers), self._better_than(numbers)
            soon_w = next((w for w, added in better if added <= self._waiting), own_w)
            later_w = own_w + COMPLETED * (better[0][0] - own_w) if better else own_w
            known = self._ahead[numbers] = min(soon_w, later_w)
        return known

    def loss_j(self, rests: Sequence[Rest]) -> float:
        """Return the joules that these lose until all have ended; infinite if something is not known."""
        left = sorted(rests)
        total_w, passed_s, weight = 0.0, 0.0, 1.0
        while left and weight > _LEAST_WEIGHT:
            numbers = tuple([number for number, _ in left])
            physics = self._at_best(numbers)[1]
            if physics is None:
                return math.inf
            slowdowns = physics.slowdowns
            step_s = min([rest * slow for (_, rest), slow in zip(left, slowdowns, strict=True)])
            passed_s += step_s
            after = math.exp(-passed_s / FORESIGHT_S)
            total_w += self.ahead_w(numbers) * (weight - after)
            weight = after
            left = _after(left, slowdowns, step_s)
        return total_w * FORESIGHT_S

    def way_w(self, numbers: Numbers, way: Physics) -> float:
        """Return the loss of the set if it runs this way."""
        loss_w = way.power_w
        for number, slowdown in zip(numbers, way.slowdowns, strict=True):
            price = self.price(number)
            loss_w += price.presence_w - price.work_w / slowdown
        return loss_w

    def _at_best(self, numbers: Numbers) -> tuple[float, Physics | None]:
        """Return the least loss of the set, and how it runs then: at full power, or under a lasting limit."""
        known = self._best.get(numbers)
        if known is None:
            known = math.inf, None
            for way in self.classes.ways(numbers):
                if way.limit_w is None or way.lasting:
                    loss_w = self.way_w(numbers, way)
                    known = min(known, (loss_w, way), key=itemgetter(0))
            self._best[numbers] = known
        return known

    def _better_than(self, numbers: Numbers) -> Sequence[tuple[float, frozenset[int]]]:
        """Return the losses of what the set may become that are less than its own, the least first."""
        known = self._better.get(numbers)
        if known is None:
            own_w = self.loss_w(numbers)
            larger = [
                (self.loss_w(grown), added) for grown, added in self.classes.grown(numbers, self._priced)
            ]
            lower = [pair for pair in larger if pair[0] < own_w]
            known = self._better[numbers] = sorted(lower, key=itemgetter(0))
        return known


def _was_wrong(book: ProfileBook) -> bool:
    """Tell whether a trial was undone: then what nobody has measured here is not taken for granted."""
    return any(profile.undone for profile in book.coallocation.values())


def _are_alike(before: SetPrediction | None, now: SetPrediction | None) -> bool:
    """Tell whether two predictions differ by no more than the rounding of the same evidence."""
    if before is None or now is None or before.power_w is None or now.power_w is None:
        return before == now
    slow, slow_now = before.slowdowns, now.slowdowns
    return (
        math.isclose(before.power_w, now.power_w, rel_tol=_ROUNDING)
        and all(math.isclose(slow[name], slow_now[name], rel_tol=_ROUNDING) for name in slow)
        and before.utilisation_pct == now.utilisation_pct
        and (before.measured, before.undone) == (now.measured, now.undone)
    )


def _after(left: Sequence[Rest], slowdowns: Sequence[float], step_s: float) -> list[Rest]:
    """Return who is left once the first has ended."""
    rests = [(number, rest - step_s / slow) for (number, rest), slow in zip(left, slowdowns, strict=True)]
    return [(number, rest) for number, rest in rests if rest > 1.0]
