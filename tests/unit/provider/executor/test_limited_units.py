"""Which units ran under a power limit, told from what is seen once in a heartbeat."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.engine.progress import Report, UnitTime
from airflow_provider_eaco.provider.limited_units import LimitedUnits
from tests.contract.parts import ManualClock

PLACE = Placement("n1", ("GPU-0",))
LEASE = Lease(7, "j1", PLACE, LeaseState.EXCLUSIVE, 1, 0.0)


@dataclass
class Beats:
    """Heartbeats, ten seconds apart: reports are read first, then limits are looked at."""

    clock: ManualClock = field(default_factory=ManualClock)
    units: int = 0

    def __post_init__(self) -> None:
        self.followed = LimitedUnits(self.clock.now_s)

    def beat(self, *, more: int = 0, limit: bool = False) -> list[int]:
        """Return the units that are marked in this heartbeat's report, of all so far."""
        self.clock.advance(10)
        self.units += more
        marked = self.read()
        self.followed.look([LEASE], {PLACE} if limit else set())
        return marked

    def read(self, token: int = 7) -> list[int]:
        recent = tuple(UnitTime(index, 5.0, 1, 1) for index in range(self.units))
        (report,) = self.followed.marked([Report("j1", token, self.units, recent=recent)])
        assert [unit.index for unit in report.recent] == list(range(self.units))
        return [unit.index for unit in report.recent if unit.limited]


@pytest.fixture
def beats() -> Beats:
    beats = Beats()
    beats.followed.look([], set())
    beats.beat()
    return beats


def test_units_without_a_limit_are_left_as_they_are(beats: Beats) -> None:
    """A limit that comes after a unit's end says nothing about it."""
    assert beats.beat(more=2) == []
    assert beats.beat(more=1, limit=True) == []


def test_a_unit_is_marked_if_a_limit_was_there_in_any_part_of_it(beats: Beats) -> None:
    """It came in the middle and was gone before the end; so it stays, however often it is reported."""
    beats.beat(more=1)
    beats.beat(limit=True)
    beats.beat()
    assert beats.beat(more=1) == [1]
    beats.beat()
    assert beats.read() == beats.read() == [1]


def test_a_unit_that_began_before_the_limit_was_lifted_is_marked(beats: Beats) -> None:
    """Unit 1 began at some time between the two looks, and the limit was still there at the first."""
    beats.beat(limit=True)
    assert beats.beat(more=1) == [0]
    assert beats.beat() == [0]
    assert beats.beat(more=1) == [0, 1]
    assert beats.beat(more=1) == [0, 1]


def test_a_unit_that_began_after_the_lifting_is_full_power_again(beats: Beats) -> None:
    """Its begin is later than the last look that saw the limit."""
    beats.beat(limit=True)
    beats.beat()
    assert beats.beat(more=1) == [0]
    assert beats.beat(more=1) == [0]


def test_what_was_there_before_this_process_counts_as_limited() -> None:
    """An adopted run's present unit may have begun under a limit that is gone; the next one has not."""
    beats = Beats()
    beats.beat()
    beats.beat()
    assert beats.beat(more=1) == [0]
    assert beats.beat(more=1) == [0]


def test_a_run_that_was_never_looked_at_is_marked(beats: Beats) -> None:
    """All that is known of it is that limits are in use."""
    beats.units = 2
    assert beats.read(token=8) == [0, 1]
