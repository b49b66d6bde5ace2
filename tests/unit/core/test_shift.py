"""Jobs that allow it wait for cheaper or cleaner energy: bounded, and never past their deadline."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import AdmissionDecision
from airflow_provider_eaco.core.model.energy_budget import Shift
from airflow_provider_eaco.core.model.energy_series import EnergySeries
from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.registry import make_ordering, make_rules
from tests.builders import NOW_S, make_book, make_job, make_node, make_progress, make_snapshot, make_solo
from tests.invariants import check_plan
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched, texts_of

HOUR_S = 3600.0
# An hour at 30, then an hour at 10 and two at 20.
DEAR_NOW = EnergySeries(
    "price", ((NOW_S, 30.0), (NOW_S + HOUR_S, 10.0), (NOW_S + 2 * HOUR_S, 20.0), (NOW_S + 4 * HOUR_S, 20.0))
)
BOOK = make_book(make_solo("A", unit_s=600.0, units_total=6))


def shiftable(family: str = "A", **changes: object) -> Job:
    return make_job("a", family, 1, **{"shiftable": True, **changes})


def planned(job: Job, *series: EnergySeries, now_s: float = NOW_S, shift: Shift | None = None) -> Plan:
    settings = PoolSettings(policy="exclusive", shift=shift or Shift())
    node = make_node(gpus=1, model="T4")
    snapshot = make_snapshot(node, waiting=[job], settings=settings, profiles=BOOK, now_s=now_s)
    return run_checked(replace(snapshot, pool=replace(snapshot.pool, series=series)))


def test_a_shiftable_job_waits_while_energy_is_dear_and_is_told_for_what() -> None:
    """The present value is above the mean of the next hours; the plan wants to look again when it changes."""
    plan = planned(shiftable(), DEAR_NOW)
    assert codes_of(plan, "a") == ["waiting_for_energy"]
    assert texts_of(plan, "a") == (
        "the price is 30, above 20 (1 times its mean of the next 24 h); "
        "it is better at 1970-01-12 14:46 UTC; the task waits at most 12 h in all, and less for its deadline"
    )
    assert plan.look_again_s == NOW_S + HOUR_S


@pytest.mark.parametrize(
    ("job", "now_s", "shift"),
    [
        pytest.param(make_job("a", "A", 1), NOW_S, Shift(), id="not shiftable"),
        pytest.param(shiftable(), NOW_S + HOUR_S, Shift(), id="energy is cheap"),
        pytest.param(shiftable(), NOW_S, Shift(factor=1.5), id="not dearer than the factor allows"),
        pytest.param(shiftable(), NOW_S, Shift(max_shift_s=0.0), id="no shift allowed"),
        pytest.param(shiftable(queued_s=NOW_S - 2 * HOUR_S), NOW_S, Shift(2 * HOUR_S), id="waited enough"),
        pytest.param(shiftable(progress=make_progress(1)), NOW_S, Shift(), id="has begun"),
        pytest.param(shiftable(deadline_s=7200.0), NOW_S, Shift(), id="its deadline leaves no time"),
        pytest.param(shiftable(family="B", deadline_s=9e4), NOW_S, Shift(), id="unknown run time"),
        pytest.param(shiftable(), NOW_S - HOUR_S, Shift(), id="before the series"),
        pytest.param(shiftable(), NOW_S + 4 * HOUR_S, Shift(), id="after the series"),
    ],
)
def test_who_does_not_wait_for_energy(job: Job, now_s: float, shift: Shift) -> None:
    """Each case alone is enough to start at once."""
    plan = planned(job, DEAR_NOW, now_s=now_s, shift=shift)
    assert set(launched(plan)) == {"a"}
    assert plan.look_again_s is None


def test_without_a_series_nothing_is_shifted() -> None:
    """Unknown is not dear."""
    assert set(launched(planned(shiftable()))) == {"a"}


def test_one_dear_series_of_two_is_enough() -> None:
    """Price and carbon both have to be no dearer than their means."""
    flat = EnergySeries("carbon", ((NOW_S - HOUR_S, 300.0), (NOW_S + 9 * HOUR_S, 300.0)))
    assert codes_of(planned(shiftable(), flat, DEAR_NOW), "a") == ["waiting_for_energy"]
    assert set(launched(planned(shiftable(), flat))) == {"a"}


@given(
    values=st.lists(st.floats(0.0, 100.0), min_size=2, max_size=40),
    deadline_h=st.one_of(st.none(), st.floats(2.5, 40.0)),
    max_shift_h=st.floats(0.0, 30.0),
    factor=st.floats(0.5, 1.5),
)
def test_whatever_the_series_says_the_bound_and_the_deadline_hold(
    values: list[float], deadline_h: float | None, max_shift_h: float, factor: float
) -> None:
    """Looked at when the plan asks for it, the job starts by the bound, with twice its run time left."""
    series = EnergySeries("price", tuple((NOW_S + n * HOUR_S, value) for n, value in enumerate(values)))
    deadline_s = None if deadline_h is None else deadline_h * HOUR_S
    job = shiftable(deadline_s=deadline_s)
    shift = Shift(max_shift_h * HOUR_S, factor=factor)
    now_s = NOW_S
    for _ in range(len(values) + 2):
        plan = planned(job, series, now_s=now_s, shift=shift)
        if launched(plan):
            break
        assert plan.look_again_s is not None
        assert plan.look_again_s > now_s
        now_s = plan.look_again_s
    assert launched(plan)
    assert now_s <= NOW_S + max_shift_h * HOUR_S + 1e-6
    if deadline_s is not None and now_s > NOW_S:
        assert NOW_S + deadline_s - now_s >= 2 * HOUR_S - 1e-6


@pytest.mark.parametrize(
    "steps",
    [(), ((0.0, 1.0),), ((0.0, 1.0), (0.0, 2.0)), ((1.0, 1.0), (0.0, 2.0)), ((0.0, math.nan), (1.0, 1.0))],
)
def test_a_series_that_is_none_is_refused(steps: tuple[tuple[float, float], ...]) -> None:
    """Too short, not ascending, or not numbers."""
    with pytest.raises(ValueError, match="steps"):
        EnergySeries("price", steps)


def test_means_are_over_time_as_far_as_the_series_goes() -> None:
    """A step of two hours counts twice; outside nothing is known."""
    assert DEAR_NOW.mean(NOW_S, NOW_S + 4 * HOUR_S) == pytest.approx(20.0)
    assert DEAR_NOW.mean(NOW_S + 1.5 * HOUR_S, NOW_S + 99 * HOUR_S) == pytest.approx(
        (0.5 * 10 + 2 * 20) / 2.5
    )
    assert DEAR_NOW.mean(NOW_S - HOUR_S, NOW_S) is None
    assert DEAR_NOW.at(NOW_S - 1) is None
    assert DEAR_NOW.at(NOW_S + 4 * HOUR_S) is None
    assert DEAR_NOW.at(NOW_S + HOUR_S) == 10.0


def test_a_policy_does_not_see_who_waits_for_energy() -> None:
    """It must not leave a place to a job that may not start for hours."""
    seen: list[tuple[str, ...]] = []

    class Watching(ExclusivePolicy):
        def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
            seen.append(tuple(other.job_id for other in snapshot.waiting))
            return super().decide(job, snapshot)

    settings = PoolSettings(policy="exclusive", shift=Shift())
    waiting = [shiftable(), make_job("b", "A", 1, run_after_s=1.0)]
    snapshot = make_snapshot(make_node(gpus=1, model="T4"), waiting=waiting, settings=settings, profiles=BOOK)
    snapshot = replace(snapshot, pool=replace(snapshot.pool, series=(DEAR_NOW,)))
    plan = run_cycle(Watching(settings), make_ordering("fifo"), snapshot, make_rules(settings))
    check_plan(snapshot, plan)
    assert seen == [("b",)]
    assert set(launched(plan)) == {"b"}
