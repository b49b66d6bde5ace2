"""Sets that do worse than was believed and runs that are longer than they told: who is late, who leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm, Yield
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.prices import ClassKey, ClassPrice, EnergyPrices
from airflow_provider_eaco.core.model.profile import ProfileBook, ProfileSource, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, Resident
from airflow_provider_eaco.core.policy.frontier import FrontierPolicy
from airflow_provider_eaco.core.policy.frontier_view import View
from airflow_provider_eaco.data import built_in_book
from tests.builders import NOW_S, hold_gpus, make_job, make_node, make_progress, make_resident, make_snapshot
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import launched

FRONTIER = PoolSettings(policy="frontier", mean_stretch=1.2, estimate_error=0.0)
UNIT_S = 1404.0


def member(
    name: str,
    limit: float | None,
    slowdown: float,
    *,
    family: str = "J4",
    done: int = 2,
    granted_s: float = 0.0,
) -> Resident:
    """One of a pair that has seen its units take so much longer than alone."""
    progress = make_progress(
        done, 40, unit_s=slowdown * UNIT_S, solo_unit_s=UNIT_S, can_yield=True, reported_s=NOW_S
    )
    job = make_job(name, family, max_stretch=limit, progress=progress)
    return make_resident(
        job,
        LeaseState.CONFIRMED,
        granted_s=NOW_S - 9 * UNIT_S + granted_s,
        unit_s=slowdown * UNIT_S,
        units=done,
    )


def asked(*members: Resident) -> list[str]:
    """Who is asked to leave so that the set is undone."""
    plan = run_checked(make_snapshot(hold_gpus(make_node("n1"), *members), settings=FRONTIER))
    return [step.job_id for step in plan.instructions if isinstance(step, Yield) and step.undo]


@pytest.mark.parametrize(("other", "leaves"), [(None, "old"), (1.15, "old"), (1.02, "new")])
def test_where_a_limit_would_break_the_one_leaves_that_can_wait_longest(
    other: float | None, leaves: str
) -> None:
    """Whoever came last: a job without a limit, or with a wider one, loses least by waiting for a place."""
    assert asked(member("old", other, 1.12), member("new", 1.05, 1.12, granted_s=10.0)) == [leaves]


def test_a_run_that_outlasts_what_it_told_is_not_late_by_that() -> None:
    """Three units more than were told, each within the limit, undo nothing; too slow ones do."""
    partner = member("partner", None, 1.03)
    assert asked(partner, member("long", 1.05, 1.04, done=43)) == []
    assert asked(partner, member("long", 1.05, 1.06, done=43)) == ["partner"]
    trial = [replace(each, state=LeaseState.TRIAL) for each in (partner, member("long", 1.05, 1.04, done=43))]
    plan = run_checked(make_snapshot(hold_gpus(make_node("n1"), *trial), settings=FRONTIER))
    assert [type(step) for step in plan.instructions] == [Confirm]


def meeting(limit: float | None, source: ProfileSource, total: int, undone: int = 1) -> ClusterSnapshot:
    """A job of this limit and length that waits while another without a limit runs alone."""
    known = built_in_book()
    sets = {key: replace(profile, source=source) for key, profile in known.coallocation.items()}
    wrong = family_set(("J1", "J2", "J3"))
    sets = {key: replace(each, undone=undone if key.families == wrong else 0) for key, each in sets.items()}
    classes = {
        ClassKey("J1", "V100", 8, None): ClassPrice(8058.0, 7346.0),
        ClassKey("J4", "V100", 8, limit): ClassPrice(8700.0, 7346.0),
    }
    prices = EnergyPrices(NOW_S, 7346.0, classes)
    new = make_job("new", "J4", max_stretch=limit, progress=make_progress(0, total, unit_s=UNIT_S))
    there = make_job("there", "J1", max_stretch=None, progress=make_progress(0, 40, unit_s=UNIT_S))
    seen = make_snapshot(
        hold_gpus(make_node("n1"), make_resident(there)),
        waiting=[new],
        settings=FRONTIER,
        profiles=ProfileBook(known.solo, sets, revision=known.revision + 1),
    )
    return replace(seen, prices=prices)


def joining(limit: float | None, source: ProfileSource, total: int, undone: int = 1) -> bool:
    return bool(launched(run_checked(meeting(limit, source, total, undone))))


@pytest.mark.parametrize(
    ("limit", "total", "source", "joins"),
    [
        (1.05, 4, ProfileSource.BUILT_IN, False),
        (1.05, 4, ProfileSource.MEASURED, True),
        (1.15, 4, ProfileSource.BUILT_IN, True),
        (1.05, 40, ProfileSource.BUILT_IN, True),
        (None, 1, ProfileSource.BUILT_IN, True),
    ],
    ids=["tight and short", "measured here", "wide", "long", "no limit"],
)
def test_once_trials_went_wrong_those_try_a_set_who_can_afford_it(
    limit: float | None, total: int, source: ProfileSource, joins: bool
) -> None:
    """An hour and a half with 5 % to spare bears no trial that goes wrong. Once measured, the set is open; so
    it is as long as nothing ever went wrong.
    """
    assert joining(limit, source, total) == joins
    assert joining(limit, source, total, undone=0)


def test_a_policy_follows_when_trials_go_wrong_and_sets_are_measured() -> None:
    """One that has seen other profiles decides like a fresh one."""
    used = FrontierPolicy(FRONTIER)
    for source, undone, joins in (
        (ProfileSource.BUILT_IN, 0, True),
        (ProfileSource.BUILT_IN, 1, False),
        (ProfileSource.MEASURED, 1, True),
    ):
        seen = meeting(1.05, source, 4, undone)
        assert (used.decide(seen.waiting[0], seen).placement is not None) == joins


def test_a_run_that_outlasts_what_it_told_has_a_quarter_of_that_before_it() -> None:
    """Nobody knows how long it will be, and it is not about to end."""
    seen = make_snapshot(hold_gpus(make_node("n1"), member("long", 1.05, 1.0, done=60)), settings=FRONTIER)
    view = View(seen)
    view.follow(seen)
    (long,) = view.scenes.all[0].members
    assert long.left_s + long.fresh_s == pytest.approx(15 * UNIT_S)


@pytest.mark.parametrize(("believed", "counts"), [(0.8, 1.0), (1.1, 1.1)])
def test_beside_others_nobody_is_taken_to_be_faster_than_alone(believed: float, counts: float) -> None:
    """A belief that says so is wrong, and would earn what others spend."""
    known = built_in_book()
    pair = family_set(("J1", "J4"))
    sets = {
        key: replace(each, slowdowns=dict.fromkeys(pair, believed)) if key.families == pair else each
        for key, each in known.coallocation.items()
    }
    residents = [member(family, None, 1.0, family=family) for family in pair]
    held = hold_gpus(make_node("n1"), *residents)
    book = ProfileBook(known.solo, sets, revision=known.revision + 1)
    view = View(make_snapshot(held, settings=FRONTIER, profiles=book))
    view.follow(make_snapshot(held, settings=FRONTIER, profiles=book))
    (scene,) = view.scenes.all
    assert [each.slowdown for each in scene.members] == [counts, counts]
    physics = view.classes.physics(tuple(sorted(view.classes.number(each.key) for each in scene.members)))
    assert physics is not None
    assert physics.slowdowns == (counts, counts)


def test_nobody_is_slower_than_its_limit_because_it_was_faster_before() -> None:
    """The rest of a run may be longer than was told: what it has spared is kept for that."""
    seen = _third(limit=1.05)
    assert not launched(run_checked(seen))
    assert launched(run_checked(_third(limit=1.1)))


def _third(limit: float) -> ClusterSnapshot:
    """A pair that ran alone for most of its time, beside which a third job waits; three take 8.3 % longer."""
    pair = [
        make_resident(
            make_job(
                name,
                family,
                max_stretch=limit,
                progress=make_progress(30, 40, unit_s=UNIT_S, solo_unit_s=UNIT_S, reported_s=NOW_S),
            ),
            LeaseState.CONFIRMED,
            unit_s=UNIT_S,
        )
        for name, family in (("a", "J1"), ("b", "J4"))
    ]
    known = built_in_book()
    sets = {key: replace(each, source=ProfileSource.MEASURED) for key, each in known.coallocation.items()}
    book = ProfileBook(known.solo, sets, revision=known.revision + 1)
    new = make_job("new", "J2", max_stretch=None, progress=make_progress(0, 4, unit_s=UNIT_S))
    seen = make_snapshot(hold_gpus(make_node("n1"), *pair), waiting=[new], settings=FRONTIER, profiles=book)
    classes = {
        ClassKey(family, "V100", 8, each): ClassPrice(3000.0, 900.0)
        for family in ("J1", "J2", "J4")
        for each in (limit, None)
    }
    return replace(seen, prices=EnergyPrices(NOW_S, 900.0, classes))
