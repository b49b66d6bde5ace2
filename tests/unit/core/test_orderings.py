"""Orderings beyond fifo and sjf: their keys, backfill's promise, and the plan of ``horizon``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.pool import DemandCurve, PoolSettings
from airflow_provider_eaco.core.policy.registry import make_ordering
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched

HOUR_S = 3600.0
BOOK = make_book(
    *(
        make_solo(f"{hours}h", "V100", gpus, unit_s=hours * HOUR_S, units_total=1)
        for hours in (1, 2, 3, 4, 8)
        for gpus in (1, 2, 4, 8)
    ),
    make_solo("steps", "V100", 1, unit_s=60.0, units_total=100),
)


@pytest.mark.parametrize(
    ("name", "ranked"),
    [
        ("priority", ["urgent", "late-run", "waits-long", "short", "half-done"]),
        ("remaining_work", ["urgent", "half-done", "short", "late-run", "waits-long"]),
        ("edf", ["urgent", "short", "late-run", "waits-long", "half-done"]),
        ("las", ["urgent", "waits-long", "short", "late-run", "half-done"]),
    ],
)
def test_each_key_ranks_within_a_priority(name: str, ranked: list[str]) -> None:
    """Priority first, then the key; what it cannot tell comes last, and fifo order decides between equals."""
    jobs = [
        make_job("urgent", "8h", 8, priority=1, run_after_s=9.0, queued_s=NOW_S),
        make_job("waits-long", "8h", 8, run_after_s=1.0, queued_s=NOW_S - 60),
        make_job("short", "1h", 2, run_after_s=2.0, queued_s=NOW_S - 50, deadline_s=5000.0),
        make_job("late-run", "2h", 4, run_after_s=5.0, queued_s=NOW_S - 90, deadline_s=8000.0),
        make_job(
            "half-done", "steps", 1, run_after_s=6.0, queued_s=NOW_S, progress=make_progress(50, 100, 60.0)
        ),
    ]
    found = make_ordering(name).order(jobs, make_snapshot(make_node(), profiles=BOOK))
    assert [job.job_id for job in found] == ranked


def test_backfill_promises_the_head_alone() -> None:
    """Who delays the head waits; who ends before it starts now, even past another that waits."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "4h", 4), granted_s=NOW_S))
    waiting = [
        make_job("head", "1h", 8, run_after_s=1.0),
        make_job("too-long", "8h", 1, run_after_s=2.0),
        make_job("fits", "4h", 4, run_after_s=3.0),
    ]
    settings = PoolSettings(policy="exclusive", ordering="backfill")
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert set(launched(plan)) == {"fits"}
    assert codes_of(plan, "too-long") == ["reserved_for_earlier_job"]


def test_backfill_lets_nobody_in_whose_end_is_unknown() -> None:
    """A job without a profile never starts on reserved GPUs, and does beside them."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "4h", 4), granted_s=NOW_S))
    for wanted, starts in ((8, False), (4, True)):
        head = make_job("head", "1h", wanted, run_after_s=1.0)
        unknown = make_job("unknown", "never-seen", 1, run_after_s=2.0)
        settings = PoolSettings(policy="exclusive", ordering="backfill")
        plan = run_checked(make_snapshot(node, waiting=[head, unknown], profiles=BOOK, settings=settings))
        assert ("head" in launched(plan)) is starts
        assert "unknown" not in launched(plan)


def test_horizon_keeps_the_shape_of_a_gang_free() -> None:
    """Long gangs first: a small job waits or lies where it breaks no block that the plan needs."""
    node = make_node()
    waiting = [
        make_job("gang", "8h", 4, run_after_s=9.0),
        make_job("one", "3h", 1, run_after_s=1.0),
        make_job("two", "3h", 1, run_after_s=2.0),
        make_job("pair", "3h", 2, run_after_s=3.0),
    ]
    settings = PoolSettings(policy="exclusive", ordering="horizon", aligned=True)
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert set(launched(plan)) == {"gang", "one", "two", "pair"}
    gang = sorted(launched(plan)["gang"].placement.gpu_uuids)
    assert gang in ([f"node-a-gpu{n:02d}" for n in range(4)], [f"node-a-gpu{n:02d}" for n in range(4, 8)])


def test_horizon_leaves_gpus_idle_for_what_pays_more_later() -> None:
    """An 8-GPU job that could start in an hour is not delayed for hours by a long small one."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "1h", 4), granted_s=NOW_S))
    waiting = [make_job("wide", "8h", 8, run_after_s=2.0), make_job("small", "8h", 1, run_after_s=1.0)]
    settings = PoolSettings(policy="exclusive", ordering="horizon", aligned=True)
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert launched(plan) == {}
    assert plan.order == ("wide", "small")


def test_horizon_obeys_priority_before_gpu_time() -> None:
    """The small job is more important: it starts, although the plan could use more GPU time without it."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "1h", 4), granted_s=NOW_S))
    waiting = [
        make_job("wide", "8h", 8, run_after_s=2.0),
        make_job("small", "8h", 1, run_after_s=1.0, priority=1),
    ]
    settings = PoolSettings(policy="exclusive", ordering="horizon", aligned=True)
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert set(launched(plan)) == {"small"}


def test_horizon_plans_nobody_who_cannot_start() -> None:
    """A job on hold takes no place in the plan, and its GPUs go to others."""
    waiting = [make_job("held", "8h", 8, on_hold=True), make_job("other", "1h", 8, run_after_s=5.0)]
    settings = PoolSettings(policy="exclusive", ordering="horizon")
    plan = run_checked(make_snapshot(make_node(), waiting=waiting, profiles=BOOK, settings=settings))
    assert set(launched(plan)) == {"other"}
    assert codes_of(plan, "held") == ["on_hold"]


def test_a_start_that_the_policy_refuses_ends_the_plan_of_this_cycle() -> None:
    """What the plan did not know (no host memory) keeps others from free GPUs only by head of line."""
    nodes = [make_node("node-a", gpus=2, host_memory_mib=1000), make_node("node-b", gpus=4)]
    waiting = [
        make_job("thirsty", "8h", 2, host_memory_mib=9000, priority=9),
        make_job("other", "1h", 4),
    ]
    settings = PoolSettings(policy="exclusive", ordering="horizon")
    plan = run_checked(make_snapshot(*nodes, waiting=waiting, profiles=BOOK, settings=settings))
    assert "thirsty" not in launched(plan)
    assert "host_memory" in codes_of(plan, "thirsty")


@pytest.mark.parametrize("ordering", ["fifo", "backfill", "horizon"])
def test_nobody_is_on_gpus_that_demand_needs_before_it_ends(ordering: str) -> None:
    """A job takes GPUs of the curve only in the hours in which it is over by then."""
    at_s = 24 * HOUR_S * 10
    curve = DemandCurve("node-a", (*(0,) * 2, *(4,) * 22))
    settings = PoolSettings(policy="exclusive", ordering=ordering, aligned=True, demand=(curve,))
    for family, starts in (("2h", True), ("3h", False)):
        running = make_resident(make_job("r", "8h", 4), granted_s=at_s)
        node = make_node()
        upper = [gpu for gpu in node.free if gpu.index >= 4]
        lower = [gpu for gpu in node.free if gpu.index < 4]
        node = hold_gpus(replace(node, free=(*upper, *lower)), running)
        waiting = [make_job("w", family, 4)]
        plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings, now_s=at_s))
        assert ("w" in launched(plan)) is starts
