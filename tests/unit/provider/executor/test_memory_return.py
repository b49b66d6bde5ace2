"""The lease of a run that has ended stands until the memory of its GPUs is back, within a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.energy.accounting import RunKey
from airflow_provider_eaco.provider.memory_return import BACK_WAIT_S, LEFT_BEHIND, Memory, MemoryReturn
from airflow_provider_eaco.provider.memory_watch import MemoryWatch
from airflow_provider_eaco.provider.services import NodeMeter
from tests.unit.provider.executor.lane_rig import FakeMeter, LaneRig, parts_in_memory


class Told:
    """A meter of memory that says what the test says, and remembers what it was asked."""

    def __init__(self, told: bool | None = False) -> None:
        self.told = told
        self.asked: list[tuple[RunKey, float]] = []

    def is_memory_back(self, run: RunKey, since_s: float) -> bool | None:
        self.asked.append((run, since_s))
        return self.told


class Watched:
    """A lane whose only task has just ended, with a meter of memory and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory, self.now_s = Told(), 50.0
        parts = parts_in_memory()
        meter = NodeMeter(parts.meter.telemetry, memory=self.memory)
        self.rig = LaneRig(monkeypatch, parts=replace(parts, meter=meter))
        self.rig.lane.memory = MemoryWatch(self.rig.services, self.rig.lane.groups, lambda: self.now_s)
        self.rig.queue("a", "first")
        self.rig.queue("b", "second")
        self.rig.beat()
        self.rig.become("a", "success")
        self.rig.dispatcher.end("a")
        self.rig.beat()

    def phases(self) -> list[str | None]:
        return [self.rig.phase(job_id) for job_id in "ab"]

    def events(self) -> list[tuple[str, str]]:
        return [(each.event, each.text) for each in self.rig.decisions.events if each.job_id == "a"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_c27_a_lease_falls_only_when_the_memory_is_back(watched: Watched) -> None:
    """Until then the next task waits for the GPUs, and the first one's end is not told to Airflow either."""
    assert watched.phases() == ["running", "waiting"]
    assert not watched.rig.host.ended
    watched.memory.told = True
    watched.rig.beat()
    assert watched.phases() == ["finished", "running"]
    assert [task for task, *_ in watched.rig.host.ended] == ["first"]
    assert "memory_left" not in dict(watched.events())


def test_c27_memory_that_does_not_come_back_holds_a_lease_for_a_bounded_time(watched: Watched) -> None:
    """Past the bound the lease falls, and the story says what was left behind."""
    watched.now_s += BACK_WAIT_S - 0.1
    watched.rig.beat()
    assert watched.phases() == ["running", "waiting"]
    watched.now_s += 0.1
    watched.rig.beat()
    assert watched.phases() == ["finished", "running"]
    assert watched.events().count(("memory_left", LEFT_BEHIND)) == 1


def test_c27_memory_that_is_left_is_told_once() -> None:
    """Whoever has to ask again about a run that nobody waits for any more hears nothing new."""
    now_s = [5.0]
    returns = MemoryReturn([NodeMeter(FakeMeter(), memory=Told())], lambda: now_s[0])
    assert returns.look(("a", 1)) is Memory.AWAITED
    now_s[0] += BACK_WAIT_S
    assert [returns.look(("a", 1)) for _ in range(2)] == [Memory.LEFT, Memory.UNKNOWN]


@pytest.mark.parametrize(
    ("told", "seen"), [([], Memory.UNKNOWN), ([None], Memory.UNKNOWN), ([None, True], Memory.BACK)]
)
def test_c27_nobody_waits_for_what_no_meter_can_tell(told: list[bool | None], seen: Memory) -> None:
    """Unknown memory delays nothing; of several machines the one that has the run answers."""
    meters = [NodeMeter(FakeMeter()), *(NodeMeter(FakeMeter(), memory=Told(each)) for each in told)]
    assert MemoryReturn(meters).look(("a", 1)) is seen


def test_c27_the_end_of_a_run_is_when_it_was_first_seen_to_be_gone() -> None:
    """A meter is asked about the first look, until the run is forgotten."""
    memory, now_s = Told(), [5.0]
    returns = MemoryReturn([NodeMeter(FakeMeter(), memory=memory)], lambda: now_s[0])
    for now_s[0] in (5.0, 6.0):
        returns.look(("a", 1))
    returns.keep([("a", 1)])
    returns.look(("a", 1))
    returns.keep([])
    now_s[0] = 7.0
    returns.look(("a", 1))
    assert memory.asked == [(("a", 1), since_s) for since_s in (5.0, 5.0, 5.0, 7.0)]
