"""Whose are the processes and the memory on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from airflow_provider_eaco.core.model.gpu import ForeignProcess
from airflow_provider_eaco.telemetry.nvml_attribution import (
    MOST_NAMED,
    NOBODY,
    UNLEASED_S,
    Attribution,
    Unleased,
    attribute,
    with_users,
)
from airflow_provider_eaco.telemetry.nvml_sample import MemoryUse, ProcessUse

A, B = ("a", 1), ("b", 2)
OURS, OTHER = ProcessUse(10, True, 4000, 30.0), ProcessUse(20, True, 2000, 50.0)
DESKTOP = ProcessUse(30, False, 200, 0.0)
OWNERS = {10: A, 11: B, 20: None, 30: None}


def used(mib: int, reserved: int | None = 300) -> MemoryUse:
    return MemoryUse(16384, mib, reserved)


class Case(NamedTuple):
    """What is on a GPU, who holds it, and the foreign memory, processes and SM time that follow."""

    processes: tuple[ProcessUse, ...] | None
    memory: MemoryUse | None
    holders: frozenset[tuple[str, int]]
    foreign: tuple[int | None, int | None, float | None]


HELD, FREE = frozenset({A}), frozenset[tuple[str, int]]()
CASES = {
    "nobody": Case((), used(3), FREE, (0, 0, None)),
    "ours alone": Case((OURS,), used(4003), HELD, (0, 0, None)),
    "a stranger on a free one": Case((OTHER,), used(2003), FREE, (2003, 1, 50.0)),
    "a stranger beside ours": Case((OURS, OTHER), used(6003), HELD, (2000, 1, 50.0)),
    "a desktop": Case((DESKTOP,), used(203), FREE, (203, 0, None)),
    "ours on its way out": Case((OURS,), used(4003), FREE, (0, 0, None)),
    "a stranger that hides its memory": Case((ProcessUse(20, True),), used(5003), FREE, (5003, 1, 0.0)),
    "the same beside ours": Case((OURS, ProcessUse(20, True)), used(5003), HELD, (1003, 1, 0.0)),
    "nobody can tell how much": Case((OURS, ProcessUse(20, True)), None, HELD, (None, 1, 0.0)),
    "no list, free": Case(None, used(30_000), FREE, (30_000, None, None)),
    "no list, held": Case(None, used(30_000), HELD, (None, None, None)),
    "no list, nothing in use": Case(None, used(3), FREE, (0, None, None)),
    "no list, reserve unknown": Case(None, used(303, None), FREE, (None, None, None)),
    "an empty list, free": Case((), used(30_000), FREE, (30_000, 0, None)),
    "pids of another world, free": Case((ProcessUse(99, True, 9000),), used(9003), FREE, (9003, 1, 0.0)),
    "pids of another world, held": Case((ProcessUse(99, True, 9000),), used(9003), HELD, (None, None, None)),
    "one of another world": Case((OURS, ProcessUse(99, True, 9000)), used(13_003), HELD, (9000, 1, 0.0)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_c48_what_is_in_use_is_never_free(case: Case) -> None:
    """Strangers count by their processes where these can be told, else by the memory that nobody of ours can
    have; beside our own runs memory without an owner is unknown.
    """
    use = attribute(case.processes, case.memory, OWNERS, case.holders, HELD if case.holders else FREE)
    assert (use.foreign_memory_mib, use.foreign_processes, use.strangers_pct) == case.foreign


def test_runs_have_their_own_memory_and_work() -> None:
    """Several processes of one run add up; a holder without a process has done nothing."""
    second = ProcessUse(12, True, 100, 5.0)
    use = attribute((OURS, second), used(4103), {10: A, 12: A}, {A, B}, {A, B})
    assert (use.memory_mib, use.sm_pct) == ({A: 4100}, {A: 35.0, B: 0.0})
    hidden = attribute((OURS, ProcessUse(12, True)), used(4103), {10: A, 12: A}, {A}, {A})
    assert (hidden.memory_mib, hidden.sm_pct) == ({A: None}, None)


def test_c43_a_run_on_a_gpu_that_it_does_not_hold_is_named() -> None:
    """Our own process on a GPU that was not granted to it counts as somebody else's."""
    use = attribute((OURS,), used(4003), OWNERS, {B}, {A, B})
    assert use == Attribution(
        sm_pct={B: 0.0},
        foreign_memory_mib=4000,
        foreign_processes=1,
        strangers_pct=30.0,
        trespassers=frozenset({A}),
        foreign_by=(ForeignProcess(10),),
    )


def test_servers_of_the_driver_are_nobody_s() -> None:
    """An MPS server works for others: it neither holds a GPU nor keeps anybody from it."""
    use = attribute((ProcessUse(40, True, 30),), used(33), {40: ("", 0)}, FREE, HELD)
    assert (use.foreign_memory_mib, use.foreign_processes) == (0, 0)


def test_c34_foreign_processes_are_named_as_far_as_they_can_be_told() -> None:
    """By pid, with the user where that is known, few of many and rather those that compute; ours are not."""
    use = attribute((DESKTOP, OURS, OTHER), used(6203), OWNERS, HELD, HELD)
    assert use.foreign_by == (ForeignProcess(20), ForeignProcess(30))
    named = with_users({"GPU-0": use}, lambda pids: {pid: "alice" for pid in pids if pid == 20})
    assert named["GPU-0"].foreign_by == (ForeignProcess(20, "alice"), ForeignProcess(30, None))
    assert attribute(None, used(30_000), OWNERS, FREE, FREE).foreign_by == ()
    desktops = [ProcessUse(100 + n, False) for n in range(MOST_NAMED)]
    crowd = attribute((*desktops, OTHER), used(9000), OWNERS, FREE, FREE)
    assert [each.pid for each in crowd.foreign_by] == [20, *range(100, 100 + MOST_NAMED - 1)]


def test_users_are_asked_for_only_where_somebody_else_is() -> None:
    """A machine without strangers reads nothing more than before."""
    use = attribute((OURS,), used(4003), OWNERS, HELD, HELD)

    def never(pids: object) -> dict[int, str]:
        raise AssertionError(f"asked for {pids}")

    assert with_users({"GPU-0": use}, never) == {"GPU-0": use}


def test_c28_processes_of_a_run_without_a_gpu_are_left_behind_after_a_while() -> None:
    """On its way out at first; a run that held a GPU meanwhile begins anew; servers never are."""
    owners, book = {10: A, 40: NOBODY, 20: None}, Unleased()
    assert book.left_behind(owners, HELD, 0.0) == frozenset()
    assert book.left_behind(owners, FREE, 100.0) == frozenset()
    assert book.left_behind(owners, FREE, 100.0 + UNLEASED_S) == frozenset()
    assert book.left_behind(owners, FREE, 100.1 + UNLEASED_S) == {A}
    assert book.left_behind(owners, HELD, 150.0) == frozenset()
    assert book.left_behind(owners, FREE, 200.0) == frozenset()
