"""Energy budgets: watts by placement, kilowatt-hours by day, to hold or to warn, under any policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import Finding, Reason, Verdict
from airflow_provider_eaco.core.model.energy_budget import BudgetAction, EnergyBudget, EnergyUsed
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.node_power import NodePower, NodePowerState
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.agenda import Keeping
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.ordering import FifoOrdering
from airflow_provider_eaco.core.policy.pool_draw import PoolDraw
from airflow_provider_eaco.core.policy.registry import (
    ORDERINGS,
    POLICIES,
    make_ordering,
    make_policy,
    make_rules,
)
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
from tests.invariants import check_plan
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, decision_of, launched, texts_of

DAY_S = NOW_S // 86400 * 86400
# The paper's node draws 392 W idle, 712 W with J1, 1,330 W with J3, 1,533 W with J4.
IDLE_W = 392.0


def pool(budget: EnergyBudget, **changes: object) -> PoolSettings:
    return PoolSettings(energy_budget=budget, **{"policy": "exclusive", **changes})  # type: ignore[arg-type]  # by name


def watts(limit_w: float, action: BudgetAction = BudgetAction.HOLD) -> EnergyBudget:
    return EnergyBudget(power_w=limit_w, action=action)


def nodes(count: int) -> list[NodeState]:
    return [make_node(f"node-{number}") for number in range(count)]


def with_used(snapshot: ClusterSnapshot, used_kwh: float | None, *, partial: bool = False) -> ClusterSnapshot:
    used = EnergyUsed(DAY_S, None if used_kwh is None else used_kwh * 3.6e6, partial)
    return replace(snapshot, pool=replace(snapshot.pool, energy_used=used))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_job_that_would_exceed_the_watts_waits_under_any_policy(policy: str) -> None:
    """The first fits, the second would add too much and is told the numbers; without a limit both start."""
    waiting = [make_job("a", "J4", share="never"), make_job("b", "J4", share="never", run_after_s=1.0)]
    limit_w = 1533.0 + IDLE_W
    settings = pool(watts(limit_w), policy=policy)
    plan = run_checked(make_snapshot(*nodes(2), waiting=waiting, settings=settings))
    assert set(launched(plan)) == {"a"}
    assert codes_of(plan, "b") == ["over_energy_budget"]
    assert texts_of(plan, "b") == (
        "energy budget of pool eaco: it draws 1.9 kW of 1.9 kW by prediction, and the task would add 1.1 kW"
    )
    free = run_checked(make_snapshot(*nodes(2), waiting=waiting, settings=pool(watts(2 * 1533.0))))
    assert set(launched(free)) == {"a", "b"}


def test_a_budget_that_warns_lets_the_job_start_with_a_note() -> None:
    """What runs is the same as without a budget; the decision says what was exceeded."""
    waiting = [make_job("a", "J4"), make_job("b", "J4", run_after_s=1.0)]
    settings = pool(EnergyBudget(1533.0 + IDLE_W, 10.0, BudgetAction.WARN))
    snapshot = make_snapshot(*nodes(2), waiting=waiting, settings=settings)
    plan = run_checked(with_used(snapshot, 9.0))
    assert set(launched(plan)) == {"a", "b"}
    assert decision_of(plan, "a").decision.notes == ()
    (note,) = decision_of(plan, "b").decision.notes
    assert note.reason is Reason.OVER_ENERGY_BUDGET
    assert "would add 1.1 kW" in note.text
    spent = run_checked(with_used(snapshot, 11.0))
    assert set(launched(spent)) == {"a", "b"}
    assert "11.0 of 10.0 kWh" in decision_of(spent, "a").decision.notes[0].text
    assert len(decision_of(spent, "b").decision.notes) == 2
    assert spent.look_again_s is None


def test_who_joins_a_set_adds_what_the_set_then_draws_more() -> None:
    """Sharing fits where GPUs of its own would not."""
    held = hold_gpus(make_node("node-0"), make_resident(make_job("r", "J3")))
    job = make_job("b", "J1")
    settings = pool(watts(1390.0 + IDLE_W), policy="eaco")
    plan = run_checked(make_snapshot(held, make_node("node-1"), waiting=[job], settings=settings))
    assert launched(plan)["b"].co_residents == ("r",)
    tight = pool(watts(1389.0 + IDLE_W), policy="eaco")
    plan = run_checked(make_snapshot(held, make_node("node-1"), waiting=[job], settings=tight))
    assert codes_of(plan, "b") == ["over_energy_budget"]


def test_who_may_not_have_gpus_of_its_own_is_asked_about_once_more_for_a_set() -> None:
    """A spreading pool takes free GPUs first; where they are too much, a set that takes less."""
    held = hold_gpus(make_node("node-0"), make_resident(make_job("r", "J3")))
    job = make_job("b", "J1")
    for limit_w, beside in ((1330.0 + 712.0, ()), (1390.0 + IDLE_W, ("r",))):
        settings = pool(watts(limit_w), policy="eaco", spreading=Spreading.SPREAD)
        plan = run_checked(make_snapshot(held, make_node("node-1"), waiting=[job], settings=settings))
        assert launched(plan)["b"].co_residents == beside
    settings = pool(watts(1389.0 + IDLE_W), policy="eaco", spreading=Spreading.SPREAD)
    plan = run_checked(make_snapshot(held, make_node("node-1"), waiting=[job], settings=settings))
    assert "would add 0.3 kW" in texts_of(plan, "b")


def test_a_set_counts_with_the_most_that_any_part_of_it_draws() -> None:
    """J1 and J4 draw 1,506 W together, J4 alone 1,533 W: the end of a member must not break the budget."""
    held = hold_gpus(make_node(), make_resident(make_job("r", "J4")), make_resident(make_job("s", "J1")))
    snapshot = make_snapshot(held)
    assert PoolDraw(CycleFacts(snapshot), None).of(snapshot).power_w == 1533.0


def test_a_set_that_draws_more_than_predicted_counts_as_measured_and_one_that_begins_as_predicted() -> None:
    """Per set the larger of meter and profile; idle GPUs as measured."""
    hot = hold_gpus(make_node("node-0"), make_resident(make_job("r", "J1")))
    new = hold_gpus(make_node("node-1"), make_resident(make_job("s", "J1")))
    readings = [
        *(GpuReading(gpu.uuid, NOW_S, power_w=200.0) for gpu in hot.node.gpus),
        *(GpuReading(gpu.uuid, NOW_S, power_w=50.0) for gpu in new.node.gpus),
    ]
    snapshot = make_snapshot(hot, new, make_node("node-2"), readings=readings)
    draw = PoolDraw(CycleFacts(snapshot), None).of(snapshot)
    assert draw.power_w == pytest.approx(1600 + 712 + IDLE_W)
    assert not draw.by_meter
    metered = make_snapshot(hot, new, readings=readings)
    assert PoolDraw(CycleFacts(metered), None).of(metered).by_meter


def test_a_sleeping_node_counts_as_told_and_its_first_job_wakes_it() -> None:
    """Asleep 15 W; where that is not told, as an idle one."""
    snapshot = make_snapshot(*nodes(2))
    asleep = {name: NodePowerState(NodePower.ASLEEP, NOW_S) for name in ("node-0", "node-1")}
    pool_state = replace(snapshot.pool, node_power=asleep, asleep_w=15.0)
    snapshot = replace(snapshot, pool=pool_state)
    draw = PoolDraw(CycleFacts(snapshot), 15.0)
    assert draw.of(snapshot).power_w == 30.0
    placed = snapshot.with_launch(make_job("a", "J1"), _whole(snapshot, "node-0"))
    assert draw.of(placed).power_w == 712.0 + 15.0
    assert PoolDraw(CycleFacts(snapshot), None).of(snapshot).power_w == pytest.approx(2 * IDLE_W)


class Greedy(FifoOrdering):
    """Keeps nothing from anybody."""

    keeping = Keeping.NOTHING


@pytest.mark.parametrize("ordering", [*sorted(ORDERINGS), "greedy"])
def test_small_jobs_do_not_take_the_watts_that_an_earlier_one_waits_for(ordering: str) -> None:
    """A later job waits too, unless the ordering keeps nothing for anybody."""
    held = hold_gpus(make_node("node-0"), make_resident(make_job("r", "J4")))
    waiting = [
        make_job("big", "J4", priority=2),
        make_job("small", "J1", run_after_s=1.0, queued_s=NOW_S + 1),
    ]
    settings = pool(watts(1533.0 + 712.0 + IDLE_W), ordering="fifo" if ordering == "greedy" else ordering)
    snapshot = make_snapshot(held, *nodes(3)[1:], waiting=waiting, settings=settings, now_s=NOW_S + 1)
    order = Greedy() if ordering == "greedy" else make_ordering(ordering)
    plan = run_cycle(make_policy(settings), order, snapshot, make_rules(settings))
    check_plan(snapshot, plan)
    if ordering == "greedy":
        assert set(launched(plan)) == {"small"}
    else:
        assert "an earlier task waits for what is left" in texts_of(plan, "small")
    assert codes_of(plan, "big") == ["over_energy_budget"]


def test_a_job_that_is_too_much_for_an_empty_pool_keeps_nothing_from_others() -> None:
    """It is told so; others start."""
    waiting = [make_job("big", "J4"), make_job("small", "J1", run_after_s=1.0)]
    plan = run_checked(make_snapshot(*nodes(2), waiting=waiting, settings=pool(watts(712.0 + IDLE_W))))
    assert set(launched(plan)) == {"small"}
    assert texts_of(plan, "big") == (
        "energy budget of pool eaco: 1.1 kW are too little for the task even with nobody else"
    )


def test_a_job_of_unknown_draw_counts_with_the_limit_of_its_boards() -> None:
    """A family without a profile is not free: eight V100 with their host draw at most 2,552 W."""
    job = make_job("new", "stranger")
    for limit_w, started in ((2552.0, {"new"}), (2551.0, set())):
        plan = run_checked(make_snapshot(make_node(), waiting=[job], settings=pool(watts(limit_w))))
        assert set(launched(plan)) == started


def test_where_nobody_can_tell_the_draw_jobs_run_one_at_a_time() -> None:
    """Unknown is neither 0 nor too much: the first run, alone in the pool, tells."""
    waiting = [make_job("a", "x", 1), make_job("b", "x", 1, run_after_s=1.0)]
    settings = pool(watts(5000.0))
    book = make_book()
    empty = make_snapshot(make_node(gpus=2, model="M"), waiting=waiting, settings=settings, profiles=book)
    plan = run_checked(empty)
    assert set(launched(plan)) == {"a"}
    assert "nobody can tell what a running task draws" in texts_of(plan, "b")
    known = make_book(make_solo("x", "M", power_w=300.0))
    both = make_snapshot(make_node(gpus=2, model="M"), waiting=waiting, settings=settings, profiles=known)
    assert set(launched(run_checked(both))) == {"a", "b"}


def test_once_the_days_energy_is_used_up_nobody_starts_until_the_next_day() -> None:
    """Nobody is asked about; who has begun before goes on, and it is looked at again at midnight."""
    waiting = [make_job("a", "J1"), make_job("b", "J1", progress=make_progress(3), run_after_s=1.0)]
    settings = pool(EnergyBudget(kwh_per_day=60.0))
    snapshot = make_snapshot(*nodes(2), waiting=waiting, settings=settings)
    assert set(launched(run_checked(with_used(snapshot, 59.9)))) == {"a", "b"}
    plan = run_checked(with_used(snapshot, 60.3, partial=True))
    assert set(launched(plan)) == {"b"}
    assert texts_of(plan, "a") == (
        "energy budget of pool eaco: at least 60.3 of 60.0 kWh are used since 1970-01-12 00:00 UTC; "
        "the next day begins at 1970-01-13 00:00 UTC"
    )
    assert plan.look_again_s == DAY_S + 86400


@pytest.mark.parametrize("used_kwh", [None, 0.0])
def test_unknown_energy_holds_nobody(used_kwh: float | None) -> None:
    """What nobody measured is not used up."""
    settings = pool(EnergyBudget(kwh_per_day=0.1))
    snapshot = make_snapshot(make_node(), waiting=[make_job("a")], settings=settings)
    assert set(launched(run_checked(with_used(snapshot, used_kwh)))) == {"a"}
    assert set(launched(run_checked(snapshot))) == {"a"}


def test_a_users_hold_is_told_before_the_budget() -> None:
    """What the user did is what the user has to undo."""
    settings = pool(EnergyBudget(kwh_per_day=1.0))
    job = make_job("a", on_hold=True)
    plan = run_checked(with_used(make_snapshot(make_node(), waiting=[job], settings=settings), 2.0))
    assert codes_of(plan, "a") == ["on_hold"]


def test_jobs_of_one_kind_get_one_answer() -> None:
    """A thousand equal jobs that do not fit are one decision."""
    waiting = [make_job(f"j{number:04d}", "J4", run_after_s=float(number)) for number in range(1000)]
    plan = run_checked(make_snapshot(*nodes(3), waiting=waiting, settings=pool(watts(1533.0 + 2 * IDLE_W))))
    held = [made for made in plan.decisions if made.decision.verdict is Verdict.HOLD]
    assert [len(made.job_ids) for made in held] == [999]


def test_the_finding_has_the_numbers_for_machines() -> None:
    """What is shown in words is there as numbers."""
    waiting: list[Job] = [make_job("a", "J4"), make_job("b", "J4", run_after_s=1.0)]
    plan = run_checked(make_snapshot(*nodes(2), waiting=waiting, settings=pool(watts(1950.0))))
    finding: Finding = decision_of(plan, "b").decision.findings[0]
    assert {name: finding.numbers[name] for name in ("drawn_w", "limit_w", "added_w")} == {
        "drawn_w": 1925,
        "limit_w": 1950.0,
        "added_w": 1141,
    }


def _whole(snapshot: ClusterSnapshot, name: str) -> Placement:
    return Placement(name, tuple(sorted(gpu.uuid for gpu in snapshot.nodes[name].node.gpus)))
