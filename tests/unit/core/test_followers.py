"""What a policy keeps from cycle to cycle, and how it follows what has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet
from airflow_provider_eaco.core.policy import cluster
from airflow_provider_eaco.core.policy.base import Review, as_watching
from airflow_provider_eaco.core.policy.changes import ChangeLog, replaced
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.fifo_packed import FifoPackedPolicy
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

BOOK = make_book(make_solo("A"), make_solo("B"), make_pair({"A": 1.05, "B": 1.05}))


def test_a_log_tells_each_change_once_since_a_position() -> None:
    """Entries come in the order of their first change, and only those that were added later."""
    log: ChangeLog[str] = ChangeLog()
    log.extend("ab")
    position = log.end
    log.extend("cbc")
    assert list(log.since(position)) == ["c", "b"]
    assert list(log.since(log.end)) == []


def test_a_log_says_when_it_no_longer_knows_all() -> None:
    """Beyond the most that is kept the older half goes; who was there before it has to look anew."""
    log: ChangeLog[int] = ChangeLog()
    log.extend(range(10))
    log.keep(10)
    assert log.reaches(0)
    log.add(10)
    log.keep(10)
    assert [log.reaches(position) for position in (0, 5, 6, 11)] == [False, False, True, True]
    assert (list(log.since(6)), log.end) == ([6, 7, 8, 9, 10], 11)


@pytest.mark.parametrize(
    ("after", "names"),
    [
        pytest.param(lambda one, two, new: {"a": one, "b": two}, [], id="equal"),
        pytest.param(lambda one, two, new: {"a": one, "b": new}, ["b"], id="replaced"),
        pytest.param(lambda one, two, new: {"b": two, "a": new}, ["a"], id="another order"),
        pytest.param(lambda one, two, new: {"b": two, "c": new}, ["a", "c"], id="gone and come"),
    ],
)
def test_replaced_names_what_is_another_object(after, names) -> None:
    """Nodes are told apart by identity, whatever their order; gone and new ones count."""
    one, two, new = object(), object(), object()
    assert replaced({"a": one, "b": two}, after(one, two, new)) == names


def test_who_comes_back_too_late_looks_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that was not asked for while a log lost its beginning gets the answer of a new policy."""
    monkeypatch.setattr(cluster, "_KEPT_AT_LEAST", 0)
    free = make_node("n1", gpus=2, model="T4")
    shared = hold_gpus(make_node("n2", gpus=1, model="T4"), make_resident(make_job("r", "A", 1)))
    wide, narrow = make_job("wide", "B", 2), make_job("narrow", "B", 1)
    used = EacoPolicy(PoolSettings())

    def at(step: int, *waiting: object) -> ClusterSnapshot:
        nodes = (free, replace(shared)) if step % 2 else (replace(free, free=free.free[:1]), replace(shared))
        return replace(make_snapshot(*nodes, waiting=waiting, profiles=BOOK), now_s=NOW_S + step)

    run_cycle(used, FifoOrdering(), at(1, wide, narrow))
    for step in range(2, 40):
        run_cycle(used, FifoOrdering(), at(step, make_job(f"none{step}", "B", 4)))
    for step in (41, 42):
        late = at(step, wide, narrow)
        anew = run_cycle(EacoPolicy(PoolSettings()), FifoOrdering(), late)
        assert run_cycle(used, FifoOrdering(), late) == anew


def confirmed_pair(slow_s: float) -> GpuSet:
    residents = [
        make_resident(make_job(name, name.upper(), 1, max_stretch=1.2), LeaseState.TRIAL, unit_s=slow_s)
        for name in "ab"
    ]
    return hold_gpus(make_node("n1", gpus=1, model="T4"), *residents).sets[0]


def test_a_policy_that_watches_says_what_it_says_of_each_set() -> None:
    """What is due is what ``review`` answers set by set, until it has been carried out."""
    policy, node = EacoPolicy(PoolSettings()), make_node("n1", gpus=1, model="T4")
    for held in (confirmed_pair(105.0), confirmed_pair(105.0), confirmed_pair(900.0)):
        snapshot = make_snapshot(replace(node, sets=(held,), free=()), profiles=BOOK)
        for now_s in (NOW_S, NOW_S + 1, NOW_S + 1, NOW_S - 5):
            present = replace(snapshot, now_s=now_s)
            review = EacoPolicy(PoolSettings()).review(held, present)
            assert review is not None
            assert list(policy.all_due(present)) == [(held, review)]


def test_a_trial_without_reports_is_due_when_its_time_is_over() -> None:
    """A quiet node is looked at again at the instant at which its trial ends unconfirmed."""
    residents = [make_resident(make_job(name, name.upper(), 1), LeaseState.TRIAL) for name in "ab"]
    snapshot = make_snapshot(hold_gpus(make_node("n1", gpus=1, model="T4"), *residents), profiles=BOOK)
    settings = PoolSettings(trial_limit_s=500.0)
    policy = EacoPolicy(settings)
    snapshot = replace(snapshot, pool=replace(snapshot.pool, settings=settings))
    begun_s = max(resident.granted_s for resident in residents)
    due = [len(policy.all_due(replace(snapshot, now_s=begun_s + at_s))) for at_s in (1, 499, 500, 600)]
    assert due == [0, 0, 1, 1]


class Stubborn(EacoPolicy):
    """Overrides the review alone, as a user's policy may."""

    def review(self, _held: GpuSet, _snapshot: ClusterSnapshot) -> Review | None:
        return None


def test_who_overrides_the_review_alone_is_asked_for_each_set() -> None:
    """What a policy inherited says nothing of a review of its own."""
    assert as_watching(EacoPolicy(PoolSettings())) is not None
    assert as_watching(FifoPackedPolicy(PoolSettings())) is None
    assert as_watching(Stubborn(PoolSettings())) is None
    held = confirmed_pair(900.0)
    node = replace(make_node("n1", gpus=1, model="T4"), sets=(held,), free=())
    plan = run_cycle(Stubborn(PoolSettings()), FifoOrdering(), make_snapshot(node, profiles=BOOK))
    assert plan.instructions == ()
