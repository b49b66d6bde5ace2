"""Who may join whom: profiles, limits, gain, and sets that take nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm, Yield
from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from tests.builders import (
    hold_gpus,
    make_book,
    make_job,
    make_node,
    make_pair,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.unit.core.conftest import Cycle
from tests.unit.core.plans import codes_of, launched, texts_of


def test_c59_a_set_that_was_undone_is_not_tried_again_under_the_same_limit(cycle: Cycle) -> None:
    """After an undo at 1.6 times the pair is remembered: later credit does not bring the same move back."""
    book = make_book(
        make_solo("A", units_total=100),
        make_solo("B", units_total=100),
        make_pair({"A": 1.05, "B": 1.6}, undone=1),
    )
    node = hold_gpus(make_node(gpus=1, model="T4"), make_resident(make_job("a", "A", 1, max_stretch=None)))
    # 95 of 100 units done at full speed: the last five at 1.6 would stretch the whole run to 1.03 only.
    moved = make_job("b", "B", 1, max_stretch=1.2, progress=make_progress(95, 100, can_yield=True))
    for _ in range(3):
        plan = cycle(make_snapshot(node, waiting=[moved], profiles=book))
        assert launched(plan) == {}
        assert codes_of(plan, "b") == ["interference_too_high", "waiting_for_gpu"]
        assert "1.600 times and ask for 40 % of the GPUs' time; allowed: 1.200 times" in texts_of(plan, "b")
    fresh = make_book(*book.solo.values(), make_pair({"A": 1.05, "B": 1.6}))
    assert "b" in launched(cycle(make_snapshot(node, waiting=[moved], profiles=fresh)))


def test_c60_a_profile_of_another_model_is_not_reused(cycle: Cycle) -> None:
    """J1 to J4 are measured on V100: on H100 the first run of a family has GPUs of its own."""
    node = hold_gpus(make_node(model="H100"), make_resident(make_job("r", "J3")))
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "J1")]))
    assert codes_of(plan, "j") == ["profile_missing", "waiting_for_gpu"]
    assert "no profile of J1, J3 on H100: nobody shares before a first run alone" in texts_of(plan, "j")


@pytest.mark.parametrize("stale", [False, True])
def test_c61_a_family_without_a_fresh_profile_runs_alone_first(cycle: Cycle, stale: bool) -> None:
    """A family without a profile, or with a stale one, takes free GPUs and joins nobody."""
    solos = [make_solo("A"), *([make_solo("B", stale=True)] if stale else [])]
    pair = make_pair({"A": 1.0, "B": 1.0})
    node = hold_gpus(make_node(gpus=2, model="T4"), make_resident(make_job("a", "A", 1)))
    waiting = [make_job("b1", "B", 1), make_job("b2", "B", 1)]
    plan = cycle(make_snapshot(node, waiting=waiting, profiles=make_book(*solos, pair)))
    assert launched(plan)["b1"].co_residents == ()
    assert codes_of(plan, "b2") == ["profile_missing", "waiting_for_gpu"]


CLOSED = {
    LeaseState.TRIAL: "its trial is not over",
    LeaseState.UNCONFIRMED: "its trial ended unconfirmed",
    LeaseState.YIELDING: "a resident is leaving",
}


@pytest.mark.parametrize("state", CLOSED)
def test_sets_in_trial_or_breaking_up_take_nobody(cycle: Cycle, state: LeaseState) -> None:
    """A set that was never measured grows only once it is confirmed: a third member would spoil its trial."""
    residents = [
        make_resident(make_job("a", "J1"), LeaseState.CONFIRMED),
        make_resident(make_job("b", "J2"), state, token=2),
    ]
    plan = cycle(make_snapshot(hold_gpus(make_node(), *residents), waiting=[make_job("j", "J4")]))
    assert codes_of(plan, "j") == ["waiting_for_gpu"]
    assert f"{CLOSED[state]} (1 of 1)" in texts_of(plan, "j")
    confirmed = [replace(resident, state=LeaseState.CONFIRMED) for resident in residents]
    lax = make_job("j", "J4", max_stretch=None)
    snapshot = make_snapshot(hold_gpus(make_node(), *confirmed), waiting=[lax])
    assert launched(cycle(snapshot))["j"].co_residents == ("a", "b")


@pytest.mark.parametrize("undone", [0, 1])
def test_a_set_that_was_measured_before_grows_in_its_trial(cycle: Cycle, undone: int) -> None:
    """Its trial has nothing to find out; that of a set that was ever undone is watched to the end."""
    pair = make_pair({"A": 1.02, "B": 1.02}, undone=undone)
    three = make_pair({"A": 1.05, "B": 1.05, "C": 1.05}, power_w=60.0)
    residents = [
        make_resident(make_job("a", "A", 1), LeaseState.CONFIRMED),
        make_resident(make_job("b", "B", 1), LeaseState.TRIAL, token=2),
    ]
    snapshot = make_snapshot(
        hold_gpus(make_node(gpus=1, model="T4"), *residents),
        waiting=[make_job("c", "C", 1)],
        profiles=make_book(*map(make_solo, "ABC"), pair, three),
    )
    assert ("c" in launched(cycle(snapshot))) is not bool(undone)


def test_a_set_confirmed_in_this_cycle_takes_a_newcomer_at_once(cycle: Cycle) -> None:
    """Reviews come first, so what they decide counts for the queue of the same cycle."""
    residents = [
        make_resident(make_job("a", "J1"), LeaseState.TRIAL, unit_s=1400.0),
        make_resident(make_job("b", "J3"), LeaseState.TRIAL, token=2, unit_s=1450.0),
    ]
    plan = cycle(make_snapshot(hold_gpus(make_node(), *residents), waiting=[make_job("j", "J2")]))
    assert isinstance(plan.instructions[0], Confirm)
    assert launched(plan)["j"].co_residents == ("a", "b")


def test_a_set_undone_in_this_cycle_takes_nobody(cycle: Cycle) -> None:
    """A yield and a launch are never decided for the same set in one cycle."""
    slow = make_job("b", "J3", progress=make_progress(1, 90, can_yield=True))
    residents = [
        make_resident(make_job("a", "J1"), LeaseState.TRIAL, unit_s=1400.0),
        make_resident(slow, LeaseState.TRIAL, token=2, unit_s=3000.0),
    ]
    plan = cycle(make_snapshot(hold_gpus(make_node(), *residents), waiting=[make_job("j", "J2")]))
    assert [type(step) for step in plan.instructions] == [Yield]
    assert "a resident is leaving" in texts_of(plan, "j")


RESIDENTS_AT_RISK = {
    "stretch": {"max_stretch": 1.01},
    "deadline": {"max_stretch": None, "deadline_s": 130_500.0, "progress": make_progress(0, 90)},
    "deadline without a known end": {"max_stretch": None, "deadline_s": 9e9},
}


@pytest.mark.parametrize("case", RESIDENTS_AT_RISK)
def test_a_residents_limits_are_kept(cycle: Cycle, case: str) -> None:
    """Nobody joins a resident that would miss its stretch limit or deadline, or of which that is unknown."""
    resident = make_resident(make_job("r", "J3", **RESIDENTS_AT_RISK[case]))
    snapshot = make_snapshot(hold_gpus(make_node(), resident), waiting=[make_job("j", "J1")])
    plan = cycle(snapshot)
    assert codes_of(plan, "j") == ["resident_deadline_at_risk", "waiting_for_gpu"]
    assert "dag.r" in texts_of(plan, "j") or "who=dag.r" in texts_of(plan, "j")


def test_own_limits_keep_a_job_out_of_a_slow_set(cycle: Cycle) -> None:
    """A newcomer with 1.05 joins a pair (+3.5 %) but not three others (+8.4 %)."""
    pair = [
        make_resident(make_job("a", "J1", max_stretch=None), LeaseState.CONFIRMED),
        make_resident(make_job("c", "J3", max_stretch=None), LeaseState.CONFIRMED, token=2),
    ]
    plan = cycle(
        make_snapshot(hold_gpus(make_node(), *pair), waiting=[make_job("j", "J2", max_stretch=1.05)])
    )
    assert codes_of(plan, "j") == ["interference_too_high", "waiting_for_gpu"]
    assert "allowed: 1.050 times" in texts_of(plan, "j")


def test_unmeasured_sets_are_tried_only_where_the_trial_can_be_undone(cycle: Cycle) -> None:
    """J1 beside J1 was never measured: a job that can yield or insists tries it, another waits."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "J1")))
    can = make_progress(0, 90, can_yield=True)
    for job, joins in (
        (make_job("j", "J1"), False),
        (make_job("j", "J1", progress=can), True),
        (make_job("j", "J1", share=Share.ALWAYS), True),
    ):
        plan = cycle(make_snapshot(node, waiting=[job]))
        assert ("j" in launched(plan)) is joins
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "J1")]))
    assert (
        "no profile of J1 + J1 together on V100: a trial could not be undone, since J1 is not known to save"
        " checkpoints"
    ) in texts_of(plan, "j")


def test_sets_of_which_nothing_is_known_take_nobody(cycle: Cycle) -> None:
    """Four were measured on V100 and nothing is known of five: the fifth waits, whatever the pool allows."""
    residents = [
        make_resident(make_job(f"r{family}", family, max_stretch=None), LeaseState.CONFIRMED, token=token)
        for token, family in enumerate(("J1", "J2", "J3", "J4"))
    ]
    snapshot = make_snapshot(
        hold_gpus(make_node(), *residents),
        waiting=[make_job("j", "J1")],
        settings=PoolSettings(max_residents=5),
    )
    assert "J1 + J1 + J2 + J3 + J4 together on V100: nothing is known of such sets" in texts_of(
        cycle(snapshot), "j"
    )


def test_no_join_without_an_energy_gain_unless_the_author_insists(cycle: Cycle) -> None:
    """A set that draws as much as both alone is not joined; share=always waives that, not the limits."""
    solos = make_solo("A", power_w=60.0), make_solo("B", power_w=60.0)
    book = make_book(*solos, make_pair({"A": 1.05, "B": 1.05}, power_w=118.0))
    node = hold_gpus(make_node(gpus=1, model="T4"), make_resident(make_job("a", "A", 1)))
    plan = cycle(make_snapshot(node, waiting=[make_job("b", "B", 1)], profiles=book))
    assert codes_of(plan, "b") == ["no_energy_gain", "waiting_for_gpu"]
    assert "a unit would take 6390 J shared, 6000 J alone" in texts_of(plan, "b")
    insists = make_job("b", "B", 1, share=Share.ALWAYS)
    assert "b" in launched(cycle(make_snapshot(node, waiting=[insists], profiles=book)))
    strict = make_job("b", "B", 1, share=Share.ALWAYS, max_stretch=1.01)
    assert (
        codes_of(cycle(make_snapshot(node, waiting=[strict], profiles=book)), "b")[0]
        == "interference_too_high"
    )
    silent = make_solo("A", power_w=None)
    unknown = make_book(silent, solos[1], make_pair({"A": 1.05, "B": 1.05}, power_w=None))
    plan = cycle(make_snapshot(node, waiting=[make_job("b", "B", 1)], profiles=unknown))
    assert codes_of(plan, "b")[0] == "no_energy_gain"


def test_the_utilisation_limit_and_the_resident_limit_hold(cycle: Cycle) -> None:
    """A set is not joined above the pool's utilisation limit, nor beyond its number of residents."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "J3")))
    job = make_job("j", "J1")
    plan = cycle(make_snapshot(node, waiting=[job], settings=PoolSettings(utilisation_limit_pct=40)))
    assert codes_of(plan, "j") == ["interference_too_high", "waiting_for_gpu"]
    assert "ask for 41 %" in texts_of(plan, "j")
    plan = cycle(make_snapshot(node, waiting=[job], settings=PoolSettings(max_residents=1)))
    assert codes_of(plan, "j") == ["resident_limit", "waiting_for_gpu"]


def test_gpus_that_show_less_than_is_asked_of_them_are_too_busy(cycle: Cycle) -> None:
    """The paper's four jobs showed 96.6 % and ask for 100.5 %: a full GPU cannot show more than it has."""
    residents = [
        make_resident(make_job(family, family, max_stretch=None), LeaseState.CONFIRMED, token=token)
        for token, family in enumerate(("J1", "J2", "J3"))
    ]
    node, lax = hold_gpus(make_node(), *residents), make_job("j", "J4", max_stretch=None)
    plan = cycle(make_snapshot(node, waiting=[lax]))
    assert codes_of(plan, "j") == ["interference_too_high", "waiting_for_gpu"]
    assert "ask for 101 % of the GPUs' time; allowed: 100 % of it" in texts_of(plan, "j")
    wide = PoolSettings(utilisation_limit_pct=101)
    assert "j" in launched(cycle(make_snapshot(node, waiting=[lax], settings=wide)))
