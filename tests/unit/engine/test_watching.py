"""Sets that are judged ahead of a cycle: it is due exactly when a review has something to say."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.policy.base import judges_sets_alone
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.fifo_packed import FifoPackedPolicy
from airflow_provider_eaco.core.policy.frontier import FrontierPolicy
from airflow_provider_eaco.engine.watching import SetWatch
from tests.builders import make_job, make_pair, make_solo
from tests.unit.engine.rig import Rig

SETTINGS = PoolSettings()


class Stubborn(EacoPolicy):
    """Reviews in a way of its own."""

    def review(self, held, snapshot):
        return None


class Watched(Rig):
    """Two jobs in trial on one GPU, watched by whoever plans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        judge = partial(self.loop.judge_ahead, PoolState(SETTINGS))
        self.watch = SetWatch(judge, SETTINGS.trial_limit_s, self.profiles, self.ledger.members_on)
        self.add(make_job("a", "A", gpus=1), make_job("b", "B", gpus=1))
        self.loop.run_once()
        self.start("a", "b")
        self.touch()

    def touch(self) -> None:
        self.watch.touch(self.held("a").placement, self.ledger.view().nodes[0])

    def is_due(self) -> bool:
        return self.watch.is_due(self.clock.now_s())


@pytest.fixture
def rig() -> Watched:
    return Watched()


def test_a_trial_is_due_when_the_last_member_has_its_unit(rig: Watched) -> None:
    """A unit of one of two is not enough; the cycle that is due then does what was judged ahead."""
    assert not rig.is_due()
    rig.unit("a", 10.4)
    rig.touch()
    assert not rig.is_due()
    rig.unit("b", 10.4)
    rig.touch()
    assert rig.is_due()
    assert rig.is_due()
    members = rig.ledger.members_on(rig.held("a").placement)
    judged = rig.loop.judge_ahead(PoolState(SETTINGS), rig.ledger.view().nodes[0], members, rig.clock.now_s())
    assert judged is not None
    assert isinstance(judged[1], Confirm)
    assert rig.loop.run_once().confirmed == (rig.held("a").placement,)
    rig.touch()
    assert not rig.is_due()


def test_a_trial_without_reports_is_due_when_its_time_is_over(rig: Watched) -> None:
    """Nobody has to touch a set whose judgement ends by itself."""
    assert not rig.is_due()
    rig.clock.advance(SETTINGS.trial_limit_s - 1)
    assert not rig.is_due()
    rig.clock.advance(1)
    assert rig.is_due()
    rig.loop.run_once()
    assert rig.held("a").state is LeaseState.UNCONFIRMED


def test_other_beliefs_about_a_member_have_its_set_judged_anew(rig: Watched) -> None:
    """What a member does alone decides whether a limit holds, so that a set is looked at again when that
    changes; what is believed of the set itself decides nothing.
    """
    asked = []
    judge = partial(rig.loop.judge_ahead, PoolState(SETTINGS))

    def noted(node, members, now_s):
        asked.append(len(members))
        return judge(node, members, now_s)

    watch = SetWatch(noted, SETTINGS.trial_limit_s, rig.profiles, rig.ledger.members_on)
    watch.touch(rig.held("a").placement, rig.ledger.view().nodes[0])
    assert not watch.is_due(rig.clock.now_s())
    assert not watch.is_due(rig.clock.now_s())
    assert asked == [2]
    rig.profiles.save_coallocation(make_pair({"A": 1.07, "B": 1.06}))
    assert not watch.is_due(rig.clock.now_s())
    assert asked == [2]
    rig.profiles.save_solo(make_solo("A", unit_s=107.0))
    assert not watch.is_due(rig.clock.now_s())
    assert asked == [2, 2]


def test_one_who_stays_alone_is_nobody_to_judge(rig: Watched) -> None:
    """A set of one has no review."""
    rig.end("b")
    rig.touch()
    assert not rig.is_due()


def test_only_a_policy_that_says_so_is_judged_ahead() -> None:
    """What a class says of the reviews that it has does not hold for those that take their place."""
    assert judges_sets_alone(EacoPolicy(SETTINGS))
    assert judges_sets_alone(ExclusivePolicy(SETTINGS))
    for policy in (Stubborn, FifoPackedPolicy, FrontierPolicy):
        assert not judges_sets_alone(policy(SETTINGS))
