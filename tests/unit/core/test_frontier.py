"""The policy that weighs joules against the price of work: where it places, when it waits, who moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.instruction import Yield
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits
from airflow_provider_eaco.core.model.prices import ClassKey, ClassPrice, EnergyPrices
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.frontier import FrontierPolicy
from airflow_provider_eaco.data import built_in_book
from tests.builders import NOW_S, hold_gpus, make_job, make_node, make_progress, make_resident, make_snapshot
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched

LIMIT = 1.2
STRETCH_W = 7346.0
FRONTIER = PoolSettings(policy="frontier", mean_stretch=1.2, estimate_error=0.0)
HOURS = 3600
# A unit of these profiles is an epoch of 0.39 to 0.40 h.
LONG = 40


def prices(**work_w: float) -> EnergyPrices:
    """Prices of the families under the one limit of these tests."""
    return EnergyPrices(
        NOW_S,
        STRETCH_W,
        {
            ClassKey(family, "V100", 8, LIMIT): ClassPrice(price_w, STRETCH_W)
            for family, price_w in work_w.items()
        },
    )


# The duals for equal shares of the four at a mean stretch of 1.0323: pairs of one family lose nothing.
PAIRS = prices(J1=8058.0, J2=8194.0, J3=8508.0, J4=8610.0)


def running(job_id: str, family: str, done: int = 1, total: int = LONG, limit: float = LIMIT) -> NodeState:
    """A node of that job alone; it can yield."""
    progress = make_progress(done, total, unit_s=1404.0, can_yield=True)
    job = make_job(job_id, family, max_stretch=limit, progress=progress)
    return hold_gpus(make_node(f"node-{job_id}"), make_resident(job))


def snapshot(*nodes: NodeState, family: str = "", limit: float = LIMIT, total: int = LONG) -> ClusterSnapshot:
    """The pool with one more job of that family that waits, if one is named."""
    new = make_job("new", family, max_stretch=limit, progress=make_progress(0, total, unit_s=1404.0))
    made = make_snapshot(*nodes, waiting=[new] if family else [], settings=FRONTIER)
    return replace(made, prices=PAIRS)


@pytest.mark.parametrize("family", ["J1", "J4"])
def test_a_job_joins_the_set_to_which_it_adds_least(family: str) -> None:
    """Alone J4 loses most, so that whoever joins it adds least."""
    plan = run_checked(snapshot(running("one", "J1"), running("four", "J4"), family=family))
    assert launched(plan)["new"].placement.node == "node-four"


def test_a_set_that_loses_less_than_a_new_node_is_joined_and_a_worse_one_is_not() -> None:
    """GPUs of its own are taken when every set would lose more."""
    free = make_node("node-free")
    joined = run_checked(snapshot(running("two", "J2"), free, family="J2"))
    assert launched(joined)["new"].placement.node == "node-two"
    # Four jobs of high use would need more than the GPUs have.
    pair = hold_gpus(
        make_node("node-pair"),
        *(
            make_resident(
                make_job(name, "J4", max_stretch=None, progress=make_progress(1, LONG, unit_s=1404.0)),
                LeaseState.CONFIRMED,
            )
            for name in ("a", "b")
        ),
    )
    seen = snapshot(pair, free, family="J4")
    long_ago = replace(seen.waiting[0], queued_s=NOW_S - HOURS)
    alone = run_checked(replace(seen, waiting=(long_ago,)))
    assert launched(alone)["new"].placement.node == "node-free"


@pytest.mark.parametrize("whose", ["resident", "newcomer", "pool"])
def test_no_limit_is_broken_for_a_saving(whose: str) -> None:
    """A pair costs 3.5 %: a limit of 1 % of the resident, the newcomer or the pool keeps it away."""
    tight = 1.01
    seen = snapshot(
        running("one", "J1", done=0, limit=tight if whose == "resident" else LIMIT),
        family="J1",
        limit=tight if whose == "newcomer" else LIMIT,
    )
    settings = replace(FRONTIER, mean_stretch=tight if whose == "pool" else LIMIT)
    seen = replace(seen, pool=replace(seen.pool, settings=settings))
    assert not launched(run_checked(seen))


def test_what_the_pool_has_spent_already_is_taken_from_what_it_may_spend() -> None:
    """A pool whose jobs took 20 % longer until now is at its limit, so nobody joins anybody."""
    seen = snapshot(running("one", "J1"), family="J1")
    spent = replace(PAIRS, ended_work_s=1e7, ended_run_s=1.25e7)
    assert launched(run_checked(seen))
    assert not launched(run_checked(replace(seen, prices=spent)))


def test_a_job_waits_for_a_better_partner_while_every_set_would_lose_more() -> None:
    """Where no GPU is free and joining would lose, it waits and is told so."""
    dear = replace(PAIRS, classes={key: ClassPrice(100.0, 9000.0) for key in PAIRS.classes})
    plan = run_checked(replace(snapshot(running("one", "J1"), family="J4"), prices=dear))
    assert not launched(plan)
    assert "waiting_for_partner" in codes_of(plan, "new")


def test_of_a_queue_the_job_goes_first_to_which_the_place_is_worth_most() -> None:
    """The one place beside J4 is left to the J4 that stands behind in the queue."""
    seen = snapshot(running("four", "J4"))
    waiting = [
        make_job(
            name,
            family,
            max_stretch=LIMIT,
            run_after_s=at_s,
            progress=make_progress(0, LONG, unit_s=1404.0),
        )
        for name, family, at_s in (("first", "J2", 0.0), ("second", "J4", 1.0))
    ]
    plan = run_checked(replace(seen, waiting=tuple(waiting)))
    assert set(launched(plan)) == {"second"}
    assert "behind_in_queue" in codes_of(plan, "first")


def test_no_place_is_held_open_for_arrivals_while_somebody_waits_who_fills_it_at_less_loss() -> None:
    """Beside J4 another J4 would do best; with two J2 in the queue and no J4 one of them has the place."""
    waiting = [
        make_job(name, "J2", max_stretch=LIMIT, progress=make_progress(0, LONG, unit_s=1404.0))
        for name in ("first", "second")
    ]
    plan = run_checked(replace(snapshot(running("four", "J4")), waiting=tuple(waiting)))
    assert set(launched(plan)) == {"first"}


@pytest.mark.parametrize(("left", "moves"), [(LONG - 1, True), (0, False)], ids=["long rests", "almost done"])
def test_two_who_run_alone_are_brought_together_where_that_pays(left: int, moves: bool) -> None:
    """One of two jobs alone is asked to move, not to undo; a rest that is almost done is left alone."""
    nodes = [running(name, "J4", done=LONG - left, total=LONG) for name in ("a", "b")]
    plan = run_checked(snapshot(*nodes))
    asked = [step for step in plan.instructions if isinstance(step, Yield)]
    assert [step.undo for step in asked] == ([False] if moves else [])


def test_a_job_of_another_pool_is_never_asked_to_move() -> None:
    """On nodes that pools share, somebody else's jobs are left where their pool has placed them."""
    seen = snapshot(*[running(name, "J4", done=1) for name in ("a", "b")])
    elsewhere = {resident.job.pool for node in seen.nodes.values() for resident in node.sets[0].residents}
    assert run_checked(seen).instructions
    theirs = replace(seen, pool=replace(seen.pool, others=frozenset(elsewhere)))
    assert not run_checked(theirs).instructions


def test_nobody_moves_who_has_no_checkpoint_or_while_others_wait() -> None:
    """Without a way back nobody is interrupted; with a queue the holes are filled from there."""
    fixed = [
        hold_gpus(
            make_node(f"node-{name}"),
            make_resident(
                make_job(name, "J4", max_stretch=LIMIT, progress=make_progress(1, LONG, unit_s=1404.0))
            ),
        )
        for name in ("a", "b")
    ]
    assert not run_checked(snapshot(*fixed)).instructions


@pytest.mark.parametrize(("power_limits", "moves"), [(PowerLimits.OFF, False), (PowerLimits.APPLY, True)])
def test_where_power_is_limited_jobs_move_also_while_others_wait(
    power_limits: PowerLimits, moves: bool
) -> None:
    """Two alone are brought together though somebody waits whom no set can take."""
    seen = snapshot(*[running(name, "J4") for name in ("a", "b")])
    settings = replace(FRONTIER, power_limits=power_limits)
    stranger = make_job("new", "stranger")
    crowded = replace(seen, waiting=(stranger,), pool=replace(seen.pool, settings=settings))
    asked = [step for step in run_checked(crowded).instructions if isinstance(step, Yield)]
    assert bool(asked) == moves


def test_who_was_interrupted_never_waits_for_a_node_to_wake() -> None:
    """Waking would count in its run, so it joins a worse set on a node that is up, and nobody moves there."""
    seen = snapshot(running("one", "J1"), running("four", "J4"), family="J1")
    progress = make_progress(5, LONG, unit_s=1404.0, can_yield=True, reported_s=NOW_S)
    back = replace(seen, waiting=(replace(seen.waiting[0], progress=progress),))
    assert launched(run_checked(back))["new"].placement.node == "node-four"
    waking = {"node-four": NodePowerState(NodePower.WAKING, NOW_S)}
    while_waking = replace(back, pool=replace(back.pool, node_power=waking))
    assert launched(run_checked(while_waking))["new"].placement.node == "node-one"
    pair = snapshot(*[running(name, "J4") for name in ("a", "b")])
    assert run_checked(pair).instructions
    both = {name: NodePowerState(NodePower.WAKING, NOW_S) for name in pair.nodes}
    assert not run_checked(replace(pair, pool=replace(pair.pool, node_power=both))).instructions


def test_who_was_interrupted_joins_a_set_though_nothing_is_left_of_the_mean() -> None:
    """To wait on would take more from the mean than any set does; its own limit holds all the same."""
    seen = snapshot(running("four", "J4"), family="J1")
    late = replace(seen, prices=replace(PAIRS, ended_work_s=1e7, ended_run_s=1.25e7))
    assert not launched(run_checked(late))
    progress = make_progress(5, LONG, unit_s=1404.0, can_yield=True, reported_s=NOW_S)
    back = replace(late.waiting[0], progress=progress)
    assert launched(run_checked(replace(late, waiting=(back,))))["new"].placement.node == "node-four"
    spent = replace(back, progress=replace(progress, lost_s=8.2 * 1404))
    assert not launched(run_checked(replace(late, waiting=(spent,))))


def test_no_node_is_woken_while_one_is_up_and_free() -> None:
    """Of two free nodes a job gets the one that is on, whatever their names."""
    seen = snapshot(make_node("node-a"), make_node("node-b"), family="J1")
    asleep = {"node-a": NodePowerState(NodePower.ASLEEP, NOW_S)}
    plan = run_checked(replace(seen, pool=replace(seen.pool, node_power=asleep)))
    assert launched(plan)["new"].placement.node == "node-b"


def test_the_same_snapshot_gets_the_same_answer_whatever_was_asked_before() -> None:
    """A policy that has seen other snapshots decides like a fresh one."""
    seen = snapshot(running("one", "J1"), running("four", "J4"), family="J4")
    other = replace(snapshot(running("two", "J2"), family="J1"), now_s=NOW_S + HOURS)
    used = FrontierPolicy(FRONTIER)
    job = seen.waiting[0]
    first = used.decide(job, seen)
    used.decide(other.waiting[0], other)
    used.steer(replace(seen, waiting=()))
    assert used.decide(job, seen) == first == FrontierPolicy(FRONTIER).decide(job, seen)


def test_without_profiles_a_job_runs_alone() -> None:
    """Nothing is known of a stranger, so it gets GPUs of its own."""
    seen = make_snapshot(
        running("one", "J1"),
        make_node("node-free"),
        waiting=[make_job("new", "stranger")],
        settings=FRONTIER,
        profiles=built_in_book(),
    )
    assert launched(run_checked(seen))["new"].placement.node == "node-free"
