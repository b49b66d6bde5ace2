"""Which pools apply power limits, and what makes them advise instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings, PowerLimits
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.provider.limit_permits import ADVISE_S, LimitPermits
from tests.builders import make_node
from tests.contract.parts import ManualClock

APPLY = PoolSettings("p", nodes=("a*",), policy="frontier", power_limits=PowerLimits.APPLY)
HERE, ELSEWHERE = make_node("a1", gpus=2).node, make_node("b1", gpus=1).node
UUIDS = tuple(gpu.uuid for gpu in HERE.gpus)
VIEW = LedgerView(0.0, (HERE, ELSEWHERE), (), ())


def state(permits: LimitPermits, pool: str = "p") -> tuple[bool, bool, str | None]:
    return permits.applies(pool), permits.may_keep(pool), permits.why_not(pool)


def test_a_pool_applies_limits_once_each_of_its_gpus_takes_one() -> None:
    """Until then it advises, and what is in force stays; GPUs of other pools are not asked about."""
    permits = LimitPermits([APPLY])
    assert state(permits) == (False, True, None)
    assert permits.judge(VIEW) == UUIDS
    permits.learn(UUIDS[:1], {})
    assert permits.judge(VIEW) == UUIDS[1:]
    assert state(permits) == (False, True, None)
    permits.learn(UUIDS[1:], {})
    assert permits.judge(VIEW) == ()
    assert state(permits) == (True, True, None)


def test_one_gpu_that_takes_none_makes_the_pool_advise_for_a_while() -> None:
    """Its limits go; after some minutes that GPU alone is asked about again."""
    clock = ManualClock()
    permits = LimitPermits([APPLY], clock.now_s)
    permits.learn(permits.judge(VIEW), {UUIDS[1]: "no permission"})
    assert permits.judge(VIEW) == ()
    assert state(permits) == (False, False, f"{UUIDS[1]}: no permission")
    clock.advance(ADVISE_S - 1)
    assert permits.judge(VIEW) == ()
    clock.advance(1)
    assert permits.judge(VIEW) == UUIDS[1:]
    assert state(permits) == (False, True, None)


def test_a_refusal_makes_the_pool_advise_for_a_while() -> None:
    """A limit that was planned and not taken is counted by no further plan."""
    clock = ManualClock()
    permits = LimitPermits([APPLY], clock.now_s)
    permits.learn(permits.judge(VIEW), {})
    permits.refuse("p", "out of range")
    permits.judge(VIEW)
    assert state(permits) == (False, False, "out of range")
    clock.advance(ADVISE_S)
    assert permits.judge(VIEW) == ()
    assert state(permits) == (True, True, None)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (dict.fromkeys(UUIDS), (True, True, None)),
        ({UUIDS[0]: None}, (False, True, None)),
        ({}, (False, True, None)),
        ({**dict.fromkeys(UUIDS), UUIDS[1]: "MIG"}, (False, False, f"{UUIDS[1]}: MIG")),
        ({**dict.fromkeys(UUIDS), "GPU-of-another-pool": "MIG"}, (True, True, None)),
    ],
    ids=["all take one", "one is not known", "nothing is known", "one takes none", "one of no pool"],
)
def test_a_node_with_a_worker_tells_of_its_gpus_by_itself(
    told: dict[str, str | None], expected: tuple[bool, bool, str | None]
) -> None:
    """They are never asked about from here, whatever is known of them."""
    permits = LimitPermits([APPLY])
    permits.learn(UUIDS, dict.fromkeys(UUIDS, "not one of this machine"))
    elsewhere = {HERE.name: told}
    assert permits.judge(VIEW, lambda node: elsewhere.get(node.name)) == ()
    assert state(permits) == expected


def test_a_pool_of_both_kinds_of_nodes_applies_limits_once_all_can_be_set() -> None:
    """Those of the scheduler's machine are asked about here, the others have told."""
    permits = LimitPermits([APPLY])
    far = make_node("a2", gpus=1).node
    told: dict[str, str | None] = {}
    view = replace(VIEW, nodes=(HERE, far))

    def judge() -> tuple[str, ...]:
        return permits.judge(view, lambda node: told if node is far else None)

    assert judge() == UUIDS
    permits.learn(UUIDS, {})
    assert judge() == ()
    assert state(permits) == (False, True, None)
    told[far.gpus[0].uuid] = None
    assert judge() == ()
    assert state(permits) == (True, True, None)
    told[far.gpus[0].uuid] = "no permission"
    judge()
    assert state(permits) == (False, False, f"{far.gpus[0].uuid}: no permission")


def test_a_gpu_that_comes_later_is_asked_about_first() -> None:
    """Meanwhile the pool advises, and limits in force stay."""
    permits = LimitPermits([APPLY])
    permits.learn(permits.judge(VIEW), {})
    permits.judge(VIEW)
    more = replace(VIEW, nodes=(HERE, make_node("a2", gpus=1).node))
    assert permits.judge(more) == tuple(gpu.uuid for gpu in more.nodes[1].gpus)
    assert state(permits) == (False, True, None)


def test_a_pool_without_gpus_applies_nothing() -> None:
    """Nothing is known of GPUs that are not there yet."""
    permits = LimitPermits([APPLY])
    assert permits.judge(replace(VIEW, nodes=())) == ()
    assert state(permits) == (False, True, None)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (replace(APPLY, policy="eaco"), "policy eaco chooses no power limits"),
        (replace(APPLY, mode=PoolMode.EXCLUSIVE), "policy exclusive chooses no power limits"),
        (replace(APPLY, mode=PoolMode.OBSERVE), "its mode is observe"),
        (replace(APPLY, mode=PoolMode.OFF), "its mode is off"),
        (replace(APPLY, policy="nobody's"), "its policy cannot be made"),
    ],
)
def test_a_pool_that_plans_none_never_applies_any(
    pool: PoolSettings, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and no GPU is asked about for it."""
    permits = LimitPermits([pool])
    assert not permits.is_needed
    assert permits.judge(VIEW) == permits.judge(VIEW) == ()
    applies, keeps, told = state(permits)
    assert (applies, keeps) == (False, False)
    assert (told or "").startswith(why)
    assert sum(why in each.getMessage() for each in caplog.records) == 1


@pytest.mark.parametrize("setting", [PowerLimits.OFF, PowerLimits.ADVISE])
def test_other_pools_are_not_asked_for(setting: PowerLimits) -> None:
    """They want no limit set, so there is nothing to explain."""
    permits = LimitPermits([replace(APPLY, power_limits=setting)])
    assert (permits.wants("p"), permits.is_needed, permits.judge(VIEW)) == (False, False, ())
    assert state(permits) == (False, False, None)
