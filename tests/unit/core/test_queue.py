"""One cycle as seen from the queue: pools, patience, what is kept for whom, one decision a kind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.policy.exclusive import ExclusivePolicy
from airflow_provider_eaco.core.policy.ordering import FifoOrdering
from tests.builders import (
    NOW_S,
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
from tests.unit.core.plans import codes_of, decision_of, launched, texts_of


def test_c09_a_request_that_never_fits_says_so_and_is_rejected_after_the_patience(cycle: Cycle) -> None:
    """82 GiB on 80 GiB cards: the reason is there at once, the rejection later, others pass."""
    node = make_node(memory_mib=80 * 1024, reserved_mib=500)
    fresh = make_job("fresh", gpus=1, gpu_memory_mib=82 * 1024)
    old = make_job("old", gpus=1, gpu_memory_mib=82 * 1024, queued_s=NOW_S - 300)
    plan = cycle(make_snapshot(node, waiting=[fresh, old, make_job("small", gpus=1, run_after_s=9)]))
    assert decision_of(plan, "fresh").decision.verdict is Verdict.HOLD
    assert decision_of(plan, "old").decision.verdict is Verdict.REJECT
    assert codes_of(plan, "fresh") == codes_of(plan, "old") == ["no_such_gpu"]
    text = texts_of(plan, "fresh")
    assert "never fits: 1 GPUs on one node with 83968 MiB each asked" in text
    assert f"the largest usable is 8 x V100 with {80 * 1024 - 500 - 512} MiB each" in text
    assert set(launched(plan)) == {"small"}


def test_c11_a_pool_shrunk_below_its_use_starts_nothing_and_others_go_on(cycle: Cycle) -> None:
    """Three run in a pool of one slot: its jobs wait, another Airflow pool's job starts."""
    snapshot = make_snapshot(make_node(), slots=1, used=3, waiting=[make_job("a"), make_job("b", pool="big")])
    pools = {**snapshot.pool.airflow_pools, "big": AirflowPool(9)}
    plan = cycle(replace(snapshot, pool=PoolState(snapshot.pool.settings, pools)))
    assert codes_of(plan, "a") == ["pool_closed"]
    assert texts_of(plan, "a") == "the Airflow pool eaco lets 1 slots run and 3 are in use"
    assert set(launched(plan)) == {"b"}


@pytest.mark.parametrize(("slots", "runs"), [(None, 8), (0, 0), (3, 3)])
def test_c12_unlimited_and_zero_pools(cycle: Cycle, slots: int | None, runs: int) -> None:
    """An unlimited pool is limited by GPUs only, a pool of 0 starts nothing and says so, 3 slots start 3."""
    waiting = [make_job(f"j{n}", "unknown", 1) for n in range(9)]
    plan = cycle(make_snapshot(make_node(), slots=slots, waiting=waiting))
    assert len(launched(plan)) == runs
    assert codes_of(plan, "j8") == (
        ["profile_missing", "waiting_for_gpu"] if slots is None else ["pool_closed"]
    )


def test_c13_a_burst_of_wide_tasks_never_exceeds_the_pool(cycle: Cycle) -> None:
    """Of tasks with 12, 12 and 16 slots in a pool of 24 the first two start; 30 slots are rejected."""
    waiting = [make_job(f"j{n}", "new", 1, pool_slots=s) for n, s in enumerate((12, 12, 16, 30))]
    plan = cycle(make_snapshot(make_node(), slots=24, waiting=waiting))
    assert set(launched(plan)) == {"j0", "j1"}
    assert codes_of(plan, "j2") == ["pool_closed"]
    assert decision_of(plan, "j3").decision.verdict is Verdict.REJECT
    assert codes_of(plan, "j3") == ["exceeds_pool"]


def test_a_held_wide_job_keeps_free_gpus_but_sets_stay_open(cycle: Cycle) -> None:
    """C01: narrow jobs do not take the GPUs that a wide one waits for; joining a set takes none from it."""
    book = make_book(make_solo("A"), make_solo("B"), make_pair({"A": 1.0, "B": 1.0}))
    node = hold_gpus(make_node(gpus=4, model="T4"), make_resident(make_job("r", "A", 1)))
    small = make_node("node-b", gpus=1, model="T4")
    waiting = [
        make_job("wide", "W", 4, priority=5),
        make_job("narrow", "N", 1, run_after_s=1, gpu_memory_mib=4001),
        make_job("late", "N", 1, run_after_s=2),
        make_job("joins", "B", 1, run_after_s=3),
    ]
    plan = cycle(make_snapshot(node, small, waiting=waiting, profiles=book))
    assert launched(plan)["narrow"].placement.node == "node-b", "the wide job could never use node-b"
    assert launched(plan)["joins"].co_residents == ("r",)
    assert codes_of(plan, "late") == ["profile_missing", "reserved_for_earlier_job"]
    assert (
        "free GPUs kept for an earlier or higher-priority job: 3; it waits for 4 GPUs on one node"
    ) in texts_of(plan, "late")


@pytest.mark.parametrize("held", [{"on_hold": True}, {"pool_slots": 5}, {"gpus": 9}])
def test_jobs_that_wait_for_no_gpu_keep_none(cycle: Cycle, held: dict[str, object]) -> None:
    """A job on hold, behind a closed pool or too large for every node does not block the queue."""
    waiting = [make_job("first", priority=9, **{"gpus": 8, **held}), make_job("next", gpus=8)]
    plan = cycle(make_snapshot(make_node(), slots=6, used=2, waiting=waiting))
    assert set(launched(plan)) == {"next"}


def test_a_deadline_that_no_gpu_can_meet_rejects_only_with_a_profile(cycle: Cycle) -> None:
    """90 epochs of 1440 s cannot end in a day: rejected; without a total, or with work done, it is not."""
    day = 86_400.0
    total = make_progress(total=90)
    for job, verdict in (
        (make_job("j", "J3", deadline_s=day, progress=total), Verdict.REJECT),
        (make_job("j", "J3", deadline_s=2 * day, progress=total), Verdict.ADMIT),
        (make_job("j", "J3", deadline_s=day), Verdict.ADMIT),
        (make_job("j", "new", deadline_s=day, progress=total), Verdict.ADMIT),
        (make_job("j", "J3", deadline_s=day, progress=make_progress(1, 90)), Verdict.ADMIT),
    ):
        plan = cycle(make_snapshot(make_node(), waiting=[job]))
        assert decision_of(plan, "j").decision.verdict is verdict
    scaled = make_node(time_scale=10.0)
    job = make_job("j", "J3", deadline_s=day, progress=total)
    assert "j" in launched(cycle(make_snapshot(scaled, waiting=[job]))), "device time runs ten times faster"


def test_c10_an_unknown_pool_holds_with_its_name(cycle: Cycle) -> None:
    """A job of an Airflow pool that does not exist waits with that reason; on hold is told beside it."""
    job = make_job("j", pool="eacoo", on_hold=True)
    plan = cycle(make_snapshot(make_node(), waiting=[job]))
    assert codes_of(plan, "j") == ["pool_unknown", "on_hold"]
    assert "eacoo" in texts_of(plan, "j")


def test_without_any_node_jobs_wait_for_a_worker(cycle: Cycle) -> None:
    """An empty inventory holds for ever and never rejects: a worker may register at any time."""
    plan = cycle(make_snapshot(waiting=[make_job("j", queued_s=0.0)]))
    assert codes_of(plan, "j") == ["no_worker"]
    assert decision_of(plan, "j").decision.verdict is Verdict.HOLD


def test_jobs_of_one_kind_share_one_decision(cycle: Cycle) -> None:
    """A thousand equal jobs that wait have one decision with all their ids, in queue order."""
    waiting = [
        make_job(f"j{n:04d}", "new", run_after_s=n) for n in random.Random(1).sample(range(1000), 1000)
    ]
    plan = cycle(make_snapshot(make_node(), waiting=waiting))
    assert len(plan.decisions) == 2
    assert plan.decisions[1].job_ids == tuple(f"j{n:04d}" for n in range(1, 1000))


def test_a_policy_that_admits_without_a_placement_is_an_error() -> None:
    """A policy of a user's package cannot start a job nowhere."""

    class Broken(ExclusivePolicy):
        def decide(self, job: object, snapshot: object) -> AdmissionDecision:
            return AdmissionDecision(Verdict.ADMIT)

    snapshot = make_snapshot(make_node(), waiting=[make_job()])
    with pytest.raises(ValueError, match=r"policy Broken admitted dag\.job without a placement"):
        run_cycle(Broken(snapshot.pool.settings), FifoOrdering(), snapshot)
