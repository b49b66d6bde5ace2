"""What residents bear is told as it was when it is asked for, and only where it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import GpuSet
from airflow_provider_eaco.core.policy.bearing import Bearing
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.facts import Changed, CycleFacts
from airflow_provider_eaco.core.policy.ordering import FifoOrdering
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

SOLO = make_solo("A")
BOOK = make_book(SOLO, make_solo("B"), make_solo("C"), make_pair({"A": 1.05, "B": 1.05}))


def held_by(units: int = 0, **request: object) -> GpuSet:
    job = make_job("r", "A", 1, **request)
    job = job.with_progress(Progress(units_done=units, units_total=10, run_s=100.0 * units))
    return hold_gpus(make_node("n1", gpus=1, model="T4"), make_resident(job)).sets[0]


def test_what_is_borne_grows_with_what_was_saved() -> None:
    """Half of a run at its pace alone leaves the other half twice the stretch that is allowed."""
    bearing = Bearing(held_by(max_stretch=1.1), (SOLO,), 1.0)
    assert [each.slowdown(0.0, undone=False) for each in bearing.tolerances] == [pytest.approx(1.1)]
    later = bearing.after_reports(held_by(5, max_stretch=1.1))
    assert later != bearing
    assert [each.slowdown(0.0, undone=False) for each in later.tolerances] == [pytest.approx(1.2)]


@pytest.mark.parametrize(
    ("request_of", "tolerances", "same"),
    [
        pytest.param({"max_stretch": None}, 0, True, id="no limit"),
        pytest.param({"max_stretch": 1.1}, 1, False, id="stretch"),
        pytest.param({"max_stretch": None, "deadline_s": 5000.0}, 1, False, id="deadline"),
    ],
)
def test_who_has_no_limit_bears_the_same_whatever_it_reports(request_of, tolerances: int, same: bool) -> None:
    """Reports of residents without limits change nothing for anybody who may come."""
    bearing = Bearing(held_by(**request_of), (SOLO,), 1.0)
    assert len(bearing.tolerances) == tolerances
    assert (bearing.after_reports(held_by(5, **request_of)) is bearing) is same
    assert (Bearing(held_by(5, **request_of), (SOLO,), 1.0) == bearing) is same


def test_two_are_equal_that_were_made_of_the_same() -> None:
    """Another profile or another pace of the node is another bearing, even of the very same set."""
    held = held_by(max_stretch=1.1)
    bearing = Bearing(held, (SOLO,), 1.0)
    assert bearing == Bearing(held, (replace(SOLO),), 1.0)
    assert bearing != Bearing(held, (make_solo("A", unit_s=90.0),), 1.0)
    assert bearing != Bearing(held, (SOLO,), 2.0)


def test_a_measured_set_is_all_that_is_believed_otherwise() -> None:
    """Who predicts each set by itself drops its prediction and keeps those of its members' other sets."""
    facts = CycleFacts(make_snapshot(make_node("n1", gpus=1, model="T4"), profiles=BOOK))
    pair, other = [facts.predict(families, "T4", 1) for families in (("A", "B"), ("A", "C"))]
    learned = replace(BOOK, coallocation=make_book(make_pair({"A": 1.2, "B": 1.2})).coallocation, revision=9)
    facts.move_to(make_snapshot(make_node("n1", gpus=1, model="T4"), profiles=learned))
    assert facts.changed == Changed(frozenset(), frozenset({("A", "B")}))
    assert facts.changed.newcomers() == {("A",): {"B"}, ("B",): {"A"}}
    assert [facts.changed.concerns(members) for members in (("A", "B"), ("A", "C"), ("A",))] == [
        True,
        False,
        False,
    ]
    assert facts.predict(("A", "B"), "T4", 1) != pair
    assert facts.predict(("A", "C"), "T4", 1) is other


@pytest.mark.parametrize("resident", ["A", "B"])
def test_a_newcomer_meets_what_was_learnt_of_its_set(resident: str) -> None:
    """A policy that has answered before answers like a new one after a set of the newcomer was measured."""
    held = hold_gpus(
        make_node("n1", gpus=1, model="T4"), make_resident(make_job("r", resident, 1, max_stretch=1.5))
    )
    newcomer = make_job("new", "B" if resident == "A" else "A", 1, max_stretch=1.5)
    used = EacoPolicy(PoolSettings())
    for step, slowdown in enumerate((1.05, 3.0, 1.1)):
        book = replace(BOOK, coallocation=make_book(make_pair({"A": slowdown, "B": slowdown})).coallocation)
        snapshot = replace(make_snapshot(held, waiting=(newcomer,), profiles=book), now_s=NOW_S + step)
        plan = run_cycle(used, FifoOrdering(), snapshot)
        assert plan == run_cycle(EacoPolicy(PoolSettings()), FifoOrdering(), snapshot)
        assert bool(plan.instructions) is (slowdown < 2)


@pytest.mark.parametrize("limit", [1.1, None])
def test_a_newcomer_meets_what_residents_have_reported_since(limit: float | None) -> None:
    """A resident that has used its slack up is not joined any more, one without a limit is as ever."""
    node = make_node("n1", gpus=1, model="T4")
    begun, newcomer = make_job("r", "A", 1, max_stretch=limit), make_job("new", "B", 1, max_stretch=1.5)
    used, joined = EacoPolicy(PoolSettings()), []
    for step, run_s in enumerate((0.0, 600.0, 500.0)):
        job = begun.with_progress(Progress(units_done=5 * bool(step), units_total=10, run_s=run_s))
        held = hold_gpus(node, make_resident(job))
        snapshot = replace(make_snapshot(held, waiting=(newcomer,), profiles=BOOK), now_s=NOW_S + step)
        plan = run_cycle(used, FifoOrdering(), snapshot)
        assert plan == run_cycle(EacoPolicy(PoolSettings()), FifoOrdering(), snapshot)
        joined.append(bool(plan.instructions))
    assert joined == [True, limit is None, True]
