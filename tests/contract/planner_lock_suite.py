"""The contract of the planner lock; every adapter runs it as a subclass with the fixture ``lock``."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_eaco.core.ports import PlannerLock
from tests.contract.parts import ManualClock


class PlannerLockContract:
    """What holds for every :class:`PlannerLock`. The fixture ``lock`` is free, on the fixture ``clock``."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def lock(self, clock: ManualClock) -> PlannerLock:
        raise NotImplementedError

    def test_one_owner_at_a_time(self, lock: PlannerLock) -> None:
        """While one holds the lock, nobody else gets it."""
        assert lock.acquire("a", 10)
        assert not lock.acquire("b", 10)

    def test_the_owner_renews_its_own(self, lock: PlannerLock, clock: ManualClock) -> None:
        """Acquiring again counts the time from then on."""
        assert lock.acquire("a", 10)
        clock.advance(9)
        assert lock.acquire("a", 10)
        clock.advance(9)
        assert not lock.acquire("b", 10)

    def test_the_lock_expires(self, lock: PlannerLock, clock: ManualClock) -> None:
        """A holder that died keeps nobody out for longer than its time."""
        assert lock.acquire("a", 10)
        clock.advance(10.5)
        assert lock.acquire("b", 10)
        assert not lock.acquire("a", 10)

    def test_releasing_frees_it_at_once(self, lock: PlannerLock) -> None:
        """The next planner need not wait for the expiry; releasing twice does nothing."""
        assert lock.acquire("a", 10)
        lock.release("a")
        lock.release("a")
        assert lock.acquire("b", 10)

    def test_only_the_holder_releases(self, lock: PlannerLock) -> None:
        """A release by somebody else, or by an owner that has lost the lock, does nothing."""
        assert lock.acquire("a", 10)
        lock.release("b")
        assert not lock.acquire("c", 10)

    def test_one_of_many_wins(self, lock: PlannerLock) -> None:
        """Of many that try at once exactly one holds the lock."""
        barrier = threading.Barrier(8)
        winners: list[str] = []

        def race(owner: str) -> None:
            barrier.wait(30)
            if lock.acquire(owner, 60):
                winners.append(owner)

        threads = [threading.Thread(target=race, args=(f"owner-{index}",)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(winners) == 1
