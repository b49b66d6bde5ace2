"""What rules promise, on whole days: cases C01, C05, C07 and C08, under several orderings and policies."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import FairShare, PoolSettings, TeamSource
from airflow_provider_eaco.core.policy.registry import make_rules
from airflow_provider_eaco.core.policy.rules_fair_share import decayed_s, used_by_team
from tests.builders import (
    NOW_S,
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import run_checked
from tests.unit.core.day_rig import Day
from tests.unit.core.plans import codes_of, launched, texts_of

MINUTE_S = 60.0
HOUR_S = 3600.0
BOOK = make_book(
    *(make_solo("short", gpu_count=gpus, unit_s=60.0, units_total=1) for gpus in (1, 2, 4)),
    *(make_solo("long", gpu_count=gpus, unit_s=1200.0, units_total=1) for gpus in (1, 2, 4)),
)
ORDERINGS = ("fifo", "priority", "sjf", "remaining_work", "edf", "las", "backfill", "horizon")


def pool(ordering: str = "fifo", policy: str = "exclusive", *rules: str, **changes: object) -> PoolSettings:
    """A pool with these rules."""
    return PoolSettings(ordering=ordering, policy=policy, rules=rules, **changes)  # type: ignore[arg-type]  # by name


def stream(name: str, count: int, every_s: float, family: str = "short", **changes: object) -> list[Job]:
    """Jobs that come one by one."""
    return [
        make_job(
            f"{name}-{number:03d}",
            family,
            1,
            queued_s=number * every_s,
            run_after_s=number * every_s,
            **changes,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("policy", ["exclusive", "eaco"])
@pytest.mark.parametrize("ordering", ORDERINGS)
def test_c01_a_big_job_of_high_priority_is_next_within_one_small_job(ordering: str, policy: str) -> None:
    """Small jobs that would delay it wait, with the reason; it starts within one small job's length."""
    small = stream("small", 20, 20.0, priority=1, share="never")
    big = make_job("big", "long", 2, priority=10, queued_s=100.0, run_after_s=100.0)
    day = Day([make_node(gpus=2, model="T4")], pool(ordering, policy), BOOK, _run_times([*small, big]))
    day.go([*small, big])
    assert 100.0 <= day.starts_s["big"] <= 100.0 + MINUTE_S
    delayed = [job for job in small if 100.0 <= day.starts_s[job.job_id] < day.starts_s["big"]]
    assert delayed == []
    told = {code for plan in day.plans if plan.now_s == 120.0 for code in codes_of(plan, "small-006")}
    if day.starts_s["big"] > 120.0:
        assert "waiting_for_gpu" in told or "reserved_for_earlier_job" in told


def test_c01_backfill_lets_a_small_job_in_that_ends_before_the_big_one_can_start() -> None:
    """By its profile it ends earlier, so it delays nobody; a longer one waits and is told for whom."""
    running = make_resident(make_job("r", "long", 1), granted_s=NOW_S)
    waiting = [
        make_job("big", "long", 2, priority=10),
        make_job("short", "short", 1, priority=1),
        make_job("long", "long", 1, priority=1, run_after_s=1.0),
    ]
    node = hold_gpus(make_node(gpus=2, model="T4"), running)
    settings = pool("backfill", "exclusive")
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert set(launched(plan)) == {"short"}
    later = run_checked(make_snapshot(node, waiting=[waiting[0], waiting[2]], profiles=BOOK, settings=pool()))
    assert codes_of(later, "long") == ["reserved_for_earlier_job"]
    # The long one fits beside the big one's reservation only if it is gone by then, which it is: both are
    # equally long, and the running one began earlier or at the same instant.
    longer = make_book(
        make_solo("long", gpu_count=2, unit_s=1200.0, units_total=1),
        make_solo("long", gpu_count=1, unit_s=1200.0, units_total=1),
        make_solo("longer", gpu_count=1, unit_s=1201.0, units_total=1),
    )
    over = make_job("over", "longer", 1, priority=1)
    plan = run_checked(make_snapshot(node, waiting=[waiting[0], over], profiles=longer, settings=settings))
    assert launched(plan) == {}
    assert codes_of(plan, "over") == ["reserved_for_earlier_job"]


@pytest.mark.parametrize("ordering", ["fifo", "sjf", "backfill", "horizon"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_c05_with_fair_share_a_flood_lets_the_other_dag_in_after_one_job_per_gpu(
    ordering: str, gpus: int
) -> None:
    """DAG B's only task starts after at most one more of A's per GPU; without the rule it waits for all."""
    flood = [
        make_job(
            f"a-{n:03d}", "short", 1, dag_id="A", task_id="t", map_index=n, queued_s=0.0, run_after_s=0.0
        )
        for n in range(40)
    ]
    other = make_job("b", "short", 1, dag_id="B", queued_s=90.0, run_after_s=90.0)
    starts = {}
    for rules in ((), ("fair_share",)):
        settings = pool(ordering, "exclusive", *rules, fair_share=FairShare(by=TeamSource.DAG))
        day = Day([make_node(gpus=gpus, model="T4")], settings, BOOK, _run_times([*flood, other]))
        day.go([*flood, other])
        starts[rules] = day.starts_s["b"]
        between = [
            job
            for job in flood
            if day.starts_s[job.job_id] >= 90.0 and day.starts_s[job.job_id] < starts[rules]
        ]
        if rules:
            assert len(between) <= gpus
    assert starts["fair_share",] == 120.0
    assert starts[()] > starts["fair_share",]


@pytest.mark.parametrize("ordering", ["fifo", "sjf", "priority", "backfill", "horizon"])
def test_c07_a_job_of_low_priority_starts_within_the_ageing_bound(ordering: str) -> None:
    """A constant stream of higher priority cannot pass it for longer than the points between them."""
    draw = random.Random(7)
    urgent, at_s = [], 0.0
    for number in range(90):
        urgent.append(make_job(f"u{number:03d}", "short", 1, priority=10, queued_s=at_s, run_after_s=at_s))
        at_s += draw.expovariate(1 / 29.0)
    low = make_job("low", "short", 1, priority=1, queued_s=30.0, run_after_s=30.0)
    starts = {}
    for rules in ((), ("ageing",)):
        settings = pool(ordering, "exclusive", *rules, ageing_s=40.0)
        day = Day([make_node(gpus=2, model="T4")], settings, BOOK, _run_times([*urgent, low]))
        day.go([*urgent, low])
        starts[rules] = day.starts_s["low"]
    # Jobs that come within (10 - 1) steps, and one step for whole points, may pass it; their work on two GPUs
    # and the runs that are under way then bound its start.
    passing = [job for job in urgent if job.queued_s <= 30.0 + 10 * 40.0]
    bound_s = max(30.0 + 10 * 40.0, len(passing) * MINUTE_S / 2) + 2 * MINUTE_S
    assert starts["ageing",] <= bound_s
    assert starts[()] > bound_s


@pytest.mark.parametrize("ordering", ["sjf", "remaining_work", "las", "backfill", "horizon", "fifo"])
def test_c08_a_gang_gets_all_its_gpus_at_once_although_small_jobs_always_wait(ordering: str) -> None:
    """With ``reserve`` a job that was passed over has its turn; two gangs do not block each other."""
    small = stream("small", 60, 14.0)
    gangs = [make_job(f"gang-{n}", "long", 4, queued_s=100.0 + n, run_after_s=100.0 + n) for n in range(2)]
    settings = pool(ordering, "exclusive", "reserve")
    day = Day([make_node(gpus=4, model="T4")], settings, BOOK, _run_times([*small, *gangs]))
    day.go([*small, *gangs])
    # It is passed over once at most: a round of small jobs, and one of those that came before it.
    assert day.starts_s["gang-0"] <= 101.0 + 3 * MINUTE_S
    assert day.starts_s["gang-1"] <= day.ends_s["gang-0"] + 2 * MINUTE_S
    if ordering in {"sjf", "remaining_work"}:
        bare = Day([make_node(gpus=4, model="T4")], pool(ordering), BOOK, _run_times([*small, *gangs]))
        bare.go([*small, *gangs])
        assert bare.starts_s["gang-0"] > day.starts_s["gang-0"]


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_promise_is_kept_by_joins_too(ordering: str) -> None:
    """Who would still share the reserved GPUs when they are promised does not join there."""
    running = make_resident(make_job("r", "short", 2, queued_s=NOW_S - 5), granted_s=NOW_S)
    passed = make_job("passed", "short", 2, queued_s=NOW_S - 50, share="never")
    joiner = make_job("joiner", "long", 2, queued_s=NOW_S, max_stretch=None)
    book = make_book(*BOOK.solo.values(), make_pair({"short": 1.0, "long": 1.0}, gpu_count=2))
    node = hold_gpus(make_node(gpus=2, model="T4"), running)
    for rules, joins in (((), True), (("reserve",), False)):
        settings = pool(ordering, "eaco", *rules)
        plan = run_checked(make_snapshot(node, waiting=[passed, joiner], profiles=book, settings=settings))
        if ordering != "backfill":
            assert ("joiner" in launched(plan)) is joins, rules
    assert "joiner" not in launched(plan)


def test_a_promise_without_a_predicted_start_keeps_the_nodes() -> None:
    """Unknown ends never weaken it: then nobody else gets free GPUs on a node that could serve the job."""
    unknown = make_resident(make_job("r", "never-seen", 1, queued_s=NOW_S), granted_s=NOW_S)
    node = hold_gpus(make_node(gpus=2, model="T4"), unknown)
    waiting = [make_job("passed", "long", 2, queued_s=NOW_S - 9), make_job("other", "short", 1)]
    settings = pool("sjf", "exclusive", "reserve")
    plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
    assert launched(plan) == {}
    assert codes_of(plan, "other") == ["reserved_for_earlier_job"]


def test_reserve_waits_for_its_patience() -> None:
    """A job that was passed over but has not waited ``reserve_after_s`` is promised nothing yet."""
    running = make_resident(make_job("r", "short", 1, queued_s=NOW_S), granted_s=NOW_S)
    node = hold_gpus(make_node(gpus=2, model="T4"), running)
    waiting = [make_job("passed", "long", 2, queued_s=NOW_S - 9), make_job("other", "long", 1)]
    for patience_s, first in ((0.0, "passed"), (60.0, "other")):
        settings = pool("remaining_work", "exclusive", "reserve", reserve_after_s=patience_s)
        plan = run_checked(make_snapshot(node, waiting=waiting, profiles=BOOK, settings=settings))
        assert plan.order[0] == first


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_team_beyond_its_quota_waits_and_is_told_by_how_much(ordering: str) -> None:
    """Without borrowing it gets nothing; with it, what nobody within theirs can use."""
    fair = {"by": TeamSource.BUNDLE, "quotas_gpu_h": (("red", 2.0),)}
    jobs = [
        make_job("red", "short", 1, bundle="red", priority=5),
        make_job("blue", "short", 1, bundle="blue"),
        make_job("blue-2", "short", 2, bundle="blue", run_after_s=2.0),
    ]
    for borrowing in (False, True):
        settings = pool(
            ordering, "exclusive", "fair_share", fair_share=FairShare(**fair, borrowing=borrowing)
        )
        snapshot = make_snapshot(
            make_node(gpus=2, model="T4"), waiting=jobs[:2], profiles=BOOK, settings=settings
        )
        past = {"red": 3 * HOUR_S, "blue": 30 * HOUR_S}
        snapshot = replace(snapshot, pool=replace(snapshot.pool, past_gpu_s=past))
        plan = run_checked(snapshot)
        assert set(launched(plan)) == ({"red", "blue"} if borrowing else {"blue"})
        if not borrowing:
            assert codes_of(plan, "red") == ["over_quota"]
            assert "red has used 3.0 of 2.0 GPU hours" in texts_of(plan, "red")
        else:
            crowded = run_checked(replace(snapshot, waiting=(jobs[0], jobs[2])))
            assert set(launched(crowded)) == {"blue-2"}


def test_residents_are_charged_what_they_shared() -> None:
    """Alone for 60 s, then two for 40 s: 80 s and 20 s on each of two GPUs; a third changes what follows."""
    first, second = (
        make_resident(make_job(name, "short", 2, bundle=name), granted_s=NOW_S - held_s)
        for name, held_s in (("red", 100.0), ("blue", 40.0))
    )
    first = replace(first, charged_s=60.0, charged_until_s=NOW_S - 40)
    fair = FairShare(by=TeamSource.BUNDLE, half_life_s=1e9)
    node = hold_gpus(make_node(gpus=2, model="T4"), first, second)
    snapshot = make_snapshot(node, settings=pool(fair_share=fair))
    expected = {"red": 160.0, "blue": 40.0}
    assert used_by_team(snapshot) == pytest.approx(expected, rel=1e-6)
    third = make_job("green", "short", 2, bundle="green")
    joined = snapshot.with_launch(third, snapshot.nodes[node.node.name].sets[0].placement)
    assert used_by_team(joined) == pytest.approx({**expected, "green": 0.0}, rel=1e-6)
    later = replace(joined, now_s=NOW_S + 30)
    used = {team: seconds + 20.0 for team, seconds in {**expected, "green": 0.0}.items()}
    assert used_by_team(later) == pytest.approx(used, rel=1e-6)


def test_past_use_counts_half_after_each_half_life() -> None:
    """An hour that ended a half-life ago counts about half, and use up to now nearly whole."""
    hour, half_life = HOUR_S, 1000 * HOUR_S
    assert decayed_s(0.0, hour, hour, half_life) == pytest.approx(hour, rel=1e-3)
    assert decayed_s(0.0, hour, hour + half_life, half_life) == pytest.approx(hour / 2, rel=1e-3)
    assert decayed_s(5.0, 5.0, 9.0, half_life) == 0.0


def test_an_unknown_rule_is_refused_with_what_is_allowed() -> None:
    """The error names the pool's setting and every rule."""
    with pytest.raises(
        InvalidSettingError, match=r"pools, eaco, rules: .*'?fair.* allowed are ageing, fair_share"
    ):
        make_rules(PoolSettings(rules=("fair",)))


def _run_times(jobs: list[Job]) -> dict[str, float]:
    return {job.job_id: 60.0 if job.request.family == "short" else 1200.0 for job in jobs}
