"""Which tasks a sampler has in its table: by processes that live, end, are hidden, or cannot be listed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_provider_eaco.provider.sampler_tasks import LEFT_KEPT_S, SETTLE_S, TaskTable
from tests.contract.parts import ManualClock
from tests.nvml.rig import ListedProcesses


@dataclass
class Found:
    """The process of one task."""

    job_id: str
    pids: tuple[int, ...] = (10,)
    age_s: float = 0.0
    alive: bool = True

    @property
    def name(self) -> str:
        return f"process-of-{self.job_id}"


@dataclass
class Finder:
    """Names tasks by pid, and keeps what it was told to keep."""

    tasks: dict[int, Found] = field(default_factory=dict)
    kept: list[set[int]] = field(default_factory=list)

    def task_of(self, pid: int) -> Found | None:
        return self.tasks.get(pid)

    def keep(self, pids: set[int]) -> None:
        self.kept.append(pids)


@dataclass
class Bench:
    """A table over named processes, on a clock that the test moves."""

    clock: ManualClock = field(default_factory=ManualClock)
    finder: Finder = field(default_factory=Finder)
    visible: ListedProcesses = field(default_factory=ListedProcesses)

    def __post_init__(self) -> None:
        now_s = self.clock.now_s
        self.table = TaskTable("n1", self.finder, self.visible, clock=now_s, monotonic=now_s)

    def look(self, **pids: tuple[int, ...] | None) -> dict[str, tuple[str, ...]]:
        """Return who holds what after a look: GPUs by task."""
        return {each.job_id: each.placement.gpu_uuids for each in self.table.look(pids)}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_task_holds_what_its_processes_are_on_now(bench: Bench) -> None:
    """It takes GPUs, leaves them, and comes back; what it used last is still what it is told with."""
    bench.finder.tasks = {10: Found("a"), 11: Found("a")}
    assert bench.look(g0=(10,), g1=()) == {"a": ("g0",)}
    assert bench.look(g0=(10,), g1=(11,)) == {"a": ("g0", "g1")}
    assert bench.look(g0=(), g1=()) == {}
    [task] = bench.table.tasks()
    assert task.gpu_uuids == ("g0", "g1")
    assert bench.look(g0=(), g1=(11,)) == {"a": ("g1",)}


def test_where_nobody_can_be_listed_nobody_has_left(bench: Bench) -> None:
    """A task stays on a GPU whose processes cannot be read, and is not known to be alone there."""
    bench.finder.tasks = {10: Found("a")}
    bench.look(g0=(10,), g1=())
    [task] = bench.table.tasks()
    assert task.alone
    assert bench.look(g0=None, g1=()) == {"a": ("g0",)}
    assert not task.alone
    # What was found is not forgotten before it is known who is there.
    assert bench.finder.kept == [{10}]
    assert bench.look(g0=(), g1=None) == {}


def test_where_no_gpu_can_be_seen_a_task_still_ends(bench: Bench) -> None:
    """NVML is gone: whoever was there is there still, until its process is gone."""
    found = bench.finder.tasks[10] = Found("a")
    bench.look(g0=(10,))
    assert bench.look() == {"a": ("g0",)}
    [task] = bench.table.tasks()
    assert not task.alone
    assert bench.finder.kept == [{10}]
    found.alive = False
    assert bench.look() == {}
    assert task.ended_s is not None


@pytest.mark.parametrize(("other", "alone"), [(None, False), ("b", False), ("a", True)])
def test_alone_is_who_shares_no_gpu_with_another_process(
    other: str | None, alone: bool, bench: Bench
) -> None:
    """A stranger or another task on one of its GPUs, if only once, is company for good."""
    bench.finder.tasks = {10: Found("a")} | ({} if other is None else {11: Found(other)})
    if other == "a":
        bench.finder.tasks[11] = bench.finder.tasks[10]
    bench.look(g0=(10,), g1=(10, 11))
    bench.look(g0=(10,), g1=(10,))
    assert bench.table.tasks()[0].alone is alone


def test_a_task_is_due_once_it_has_settled_or_ended(bench: Bench) -> None:
    """With every new GPU the time begins anew; one that ends before is due at once, and for a while."""
    found = bench.finder.tasks[10] = Found("a")
    bench.look(g0=(10,), g1=())
    bench.clock.advance(SETTLE_S - 1)
    assert bench.table.due() == []
    bench.look(g0=(10,), g1=(10,))
    bench.clock.advance(SETTLE_S - 1)
    assert bench.table.due() == []
    bench.clock.advance(1)
    [task] = bench.table.due()
    found.alive = False
    bench.look(g0=(), g1=())
    assert (task.present, task.ended_s) == ((), bench.clock.now_s())
    bench.clock.advance(LEFT_KEPT_S)
    bench.table.forget()
    assert bench.table.due() == [task]
    bench.clock.advance(1)
    bench.table.forget()
    assert bench.table.due() == []


def test_what_a_task_leaves_behind_becomes_a_stranger(bench: Bench) -> None:
    """A process that outlives its task is on its way out for a while, and then somebody else's."""
    found = bench.finder.tasks[10] = Found("a")
    bench.look(g0=(10,))
    found.alive = False
    assert bench.look(g0=(10,)) == {}
    assert bench.table.owners_of({10}, ()) == {10: ("a", 1)}
    bench.clock.advance(LEFT_KEPT_S + 1)
    bench.table.forget()
    assert bench.table.owners_of({10}, ()) == {10: None}
    assert bench.look(g0=(10,)) == {}
    assert bench.table.tasks() == ()


def test_who_is_refused_is_a_stranger_until_its_process_is_gone(bench: Bench) -> None:
    """It holds nothing, is told of no more, and its processes are nobody's."""
    bench.finder.tasks = {10: Found("a"), 11: Found("b")}
    bench.look(g0=(10,), g1=(11,))
    bench.table.refuse({"a"})
    bench.clock.advance(SETTLE_S)
    assert bench.look(g0=(10,), g1=(11,)) == {"b": ("g1",)}
    assert [task.found.job_id for task in bench.table.due()] == ["b"]
    owners = bench.table.owners_of({10, 11}, ())
    assert (owners[10], (owners[11] or ("", 0))[0]) == (None, "b")


def test_processes_are_seen_as_far_as_this_machine_shows_them(bench: Bench) -> None:
    """Hidden ones are left out, a server of the driver is no stranger, a job of an executor of ours is."""
    bench.finder.tasks = {10: Found("a")}
    bench.visible = ListedProcesses(owners={20: ("", 0), 21: ("job", 7)}, hidden={30})
    bench.__post_init__()
    owners = bench.table.owners_of({10, 20, 21, 22, 30}, ())
    assert owners == {10: ("a", 1), 20: ("", 0), 21: None, 22: None}


def test_a_task_that_was_there_before_is_not_seen_from_its_start(bench: Bench) -> None:
    """Its age tells."""
    bench.clock.advance(100)
    bench.finder.tasks = {10: Found("a", age_s=100), 11: Found("b", age_s=100.5)}
    bench.look(g0=(10, 11))
    assert {task.found.job_id: task.from_start for task in bench.table.tasks()} == {"a": True, "b": False}
