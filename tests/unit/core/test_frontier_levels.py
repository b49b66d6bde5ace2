"""Power limits of the policy that weighs joules: which level a set is held to, and when it is lifted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.energy.power_levels import FULL_POWER, Way, ways_of
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits
from airflow_provider_eaco.core.model.prices import ClassKey, ClassPrice, EnergyPrices
from airflow_provider_eaco.core.model.profile import PowerLevel, ProfileBook, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.frontier_members import Member
from airflow_provider_eaco.core.policy.frontier_scene import LOOK_EVERY_S
from airflow_provider_eaco.core.policy.frontier_view import View
from airflow_provider_eaco.data import built_in_book
from tests.builders import NOW_S, hold_gpus, make_job, make_node, make_progress, make_resident, make_snapshot
from tests.unit.core.conftest import run_checked

APPLY = PoolSettings(policy="frontier", mean_stretch=1.2, estimate_error=0.0, power_limits=PowerLimits.APPLY)
ALONE = family_set(("J4",))
# Held to 150 W the job draws 70 % and takes 10 % longer.
LEVEL = PowerLevel(150.0, 1.1, 0.7)


def book(*levels: PowerLevel) -> ProfileBook:
    """The built-in profiles, with these levels of J4 alone."""
    known = built_in_book()
    solo = {
        key: replace(profile, levels=levels) if key.families == ALONE else profile
        for key, profile in known.solo.items()
    }
    return ProfileBook(solo, known.coallocation, revision=known.revision + 1)


def snapshot(stretch_w: float = 900.0, limit: float = 1.2) -> ClusterSnapshot:
    """A pool in which one J4 runs alone, where a second longer costs ``stretch_w``."""
    progress = make_progress(1, 40, unit_s=1404.0, can_yield=True)
    node = hold_gpus(
        make_node("n1"), make_resident(make_job("job", "J4", max_stretch=limit, progress=progress))
    )
    price = ClassPrice(1500.0 + stretch_w, stretch_w)
    prices = EnergyPrices(NOW_S, stretch_w, {ClassKey("J4", "V100", 8, limit): price})
    return replace(make_snapshot(node, settings=APPLY, profiles=book(LEVEL)), prices=prices)


def told(seen: ClusterSnapshot) -> list[float | None]:
    return [step.limit_w for step in run_checked(seen).instructions if isinstance(step, SetPowerLimit)]


def in_force(seen: ClusterSnapshot, limit_w: float) -> ClusterSnapshot:
    placement = seen.nodes["n1"].sets[0].placement
    return replace(seen, pool=replace(seen.pool, power_limits_w={placement: limit_w}))


def test_a_set_is_held_to_the_level_at_which_it_loses_least_and_told_once() -> None:
    """What it saves is worth more than the seconds that it takes; what is in force is not told again."""
    assert told(snapshot()) == [150.0]
    assert told(in_force(snapshot(), 150.0)) == []


@pytest.mark.parametrize("power_limits", [PowerLimits.OFF, PowerLimits.ADVISE])
def test_nothing_is_limited_that_is_not_applied(power_limits: PowerLimits) -> None:
    """A plan never counts on a limit that nobody sets."""
    seen = snapshot()
    settings = replace(APPLY, power_limits=power_limits)
    assert told(replace(seen, pool=replace(seen.pool, settings=settings))) == []


@pytest.mark.parametrize(("power_limits", "advised"), [(PowerLimits.ADVISE, True), (PowerLimits.OFF, False)])
def test_advice_is_told_with_the_place_and_followed_by_nobody(
    power_limits: PowerLimits, advised: bool
) -> None:
    """A pool that wants advice reads of each placement at which limit it would lose least."""
    settings = replace(APPLY, power_limits=power_limits)
    seen = snapshot()
    job = replace(seen.nodes["n1"].sets[0].residents[0].job, progress=make_progress(0, 40, unit_s=1404.0))
    free = make_snapshot(make_node("n1"), waiting=[job], settings=settings, profiles=book(LEVEL))
    plan = run_checked(replace(free, prices=seen.prices))
    (decided,) = plan.decisions
    text = "held to 150 W a board it would draw 30 % less there and take 10 % longer"
    assert decided.decision.choice.endswith(text) == advised


def test_a_level_that_costs_more_than_it_saves_is_lifted() -> None:
    """Where seconds are dear, full power is best, also for a set that is under a limit."""
    assert told(snapshot(stretch_w=7000.0)) == []
    assert told(in_force(snapshot(stretch_w=7000.0), 150.0)) == [None]


@pytest.mark.parametrize("whose", ["job", "pool"])
def test_no_level_breaks_a_limit(whose: str) -> None:
    """A level that takes 10 % longer is lifted for a job that bears 5 %, and in a pool beyond its mean."""
    seen = in_force(snapshot(limit=1.05 if whose == "job" else 1.2), 150.0)
    assert seen.prices is not None
    if whose == "pool":
        seen = replace(seen, prices=replace(seen.prices, ended_work_s=1e7, ended_run_s=1.25e7))
    assert told(seen) == [None]


def as_seen(view: View, seen: ClusterSnapshot) -> Member:
    """The one job as a member of its set."""
    view.follow(seen)
    (member,) = view.scenes.all[0].members
    return member


def test_progress_is_reckoned_by_the_level_in_force_and_limits_by_the_slowest() -> None:
    """Half an hour after a report, what is left of a job follows the level that is there now, and what it
    bears does not, since nobody tells since when; whatever the policy has seen before.
    """
    seen = snapshot()
    state = seen.nodes["n1"]
    (resident,) = state.sets[0].residents
    told = replace(resident.job.progress, reported_s=NOW_S - 1800, lost_s=3000.0)
    job = replace(resident.job, progress=told)
    began = make_resident(job, granted_s=NOW_S - 3600, unit_s=1404.0)
    seen = replace(seen, nodes={"n1": hold_gpus(make_node("n1"), began)})
    full, held = as_seen(View(seen), seen), as_seen(View(seen), in_force(seen, 150.0))
    since_s = 1800 - NOW_S % LOOK_EVERY_S
    assert full.work_s is not None
    assert held.left_s - full.left_s == pytest.approx(since_s * (1 - 1 / 1.1))
    most_s = full.work_s * 39 / 40 - since_s / 1.1
    assert held.bears == full.bears == pytest.approx((1.2 * full.work_s - 1404 - 3000 - since_s) / most_s)
    view = View(seen)
    assert [as_seen(view, each) for each in (seen, in_force(seen, 150.0), seen)] == [full, held, full]


def test_sets_of_another_pool_are_left_as_they_are() -> None:
    """Neither its jobs' time nor a limit that it has set is this pool's."""
    seen = snapshot()
    pools = {resident.job.pool for resident in seen.nodes["n1"].sets[0].residents}
    theirs = replace(seen, pool=replace(seen.pool, others=frozenset(pools)))
    assert told(theirs) == told(in_force(theirs, 150.0)) == []


def test_ways_are_those_measured_levels_that_save_more_the_slower_they_are() -> None:
    """A level that is slower and saves less than another one is no way to run; nor is one nobody measured."""
    levels = (LEVEL, PowerLevel(125.0, 1.4, 0.6), PowerLevel(200.0, 1.02, 0.9))
    kept = (FULL_POWER, Way(200.0, 1.02, 0.9), Way(150.0, 1.1, 0.7))
    assert ways_of(ALONE, "V100", 8, book(*levels)) == kept
    assert ways_of(family_set(("J1",)), "V100", 8, book(*levels)) == (FULL_POWER,)
    known = book(*levels)
    stale = {key: replace(profile, stale=True) for key, profile in known.solo.items()}
    assert ways_of(ALONE, "V100", 8, replace(known, solo=stale)) == (FULL_POWER,)
