"""One cycle as a whole: who is placed where, who waits and why."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading
from airflow_provider_eaco.core.model.instruction import Confirm, Yield
from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import AirflowPool, NodeState, PoolState
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


def test_jobs_join_the_busiest_set_before_they_take_free_gpus(cycle: Cycle) -> None:
    """J1 joins J4 rather than J3 or a free node, since J4 keeps its GPUs busiest."""
    nodes = [
        hold_gpus(make_node("node-a"), make_resident(make_job("three", "J3"))),
        hold_gpus(make_node("node-b"), make_resident(make_job("four", "J4"))),
        make_node("node-c"),
    ]
    plan = cycle(make_snapshot(*nodes, waiting=[make_job("one", "J1")]))
    assert launched(plan)["one"].co_residents == ("four",)
    made = decision_of(plan, "one").decision
    assert made.choice == "pack: the busiest set that fits (48 %)"
    assert made.prediction is not None
    assert made.prediction.measured


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


def _fill_one_gpu(cycle: Cycle, memory_mib: int, peak_mib: int, jobs: int) -> tuple[int, str]:
    """Let jobs come one cycle after another, each trial confirmed; return how many share, and why no more."""
    solo = make_solo("A", memory_peak_mib=None, utilisation_pct=0.5, power_w=12.0, checkpoints=True)
    settings = PoolSettings(max_residents=99)
    node, text = make_node(gpus=1, model="T4", memory_mib=memory_mib), ""
    for number in range(jobs):
        job = make_job(f"j{number:02d}", "A", 1, gpu_memory_mib=peak_mib, max_stretch=None)
        snapshot = make_snapshot(node, waiting=[job], settings=settings, profiles=make_book(solo))
        plan = cycle(snapshot)
        if job.job_id not in launched(plan):
            text = texts_of(plan, job.job_id)
            break
        node = snapshot.with_launch(job, launched(plan)[job.job_id].placement).nodes["node-a"]
        held = node.sets[0]
        confirmed = tuple(replace(resident, state=LeaseState.CONFIRMED) for resident in held.residents)
        node = replace(node, sets=(replace(held, residents=confirmed),))
    return len(node.sets[0].residents), text


def test_c32_exact_fit_with_integers(cycle: Cycle) -> None:
    """Of 24 x 2000 MiB on 46068 MiB with a margin of 512 exactly 22 run; the 23rd waits with its numbers."""
    count, text = _fill_one_gpu(cycle, 46_068, 2000, 24)
    assert count == 22
    assert "needs 2512 MiB per GPU with margin, the best candidate has 2068 of 46068 MiB" in text


def test_c35_simultaneous_starts_count_declared_peaks(cycle: Cycle) -> None:
    """Ten tasks of 20 GiB that have not allocated anything yet: three start on 80 GiB, not ten."""
    count, text = _fill_one_gpu(cycle, 80 * 1024, 20 * 1024, 10)
    assert count == 3
    assert "needs 20992 MiB per GPU with margin, the best candidate has 20480 of 81920 MiB" in text


def test_memory_in_use_counts_where_it_is_more_than_declared(cycle: Cycle) -> None:
    """A resident that holds more than it declared leaves only the rest to a newcomer."""
    book = make_book(make_solo("A"), make_pair({"A": 1.0, "B": 1.0}), make_solo("B"))
    node = hold_gpus(make_node(gpus=1, model="T4", memory_mib=16_000), make_resident(make_job("a", "A", 1)))
    readings = [GpuReading("node-a-gpu00", NOW_S, memory_used_mib=13_000)]
    plan = cycle(make_snapshot(node, waiting=[make_job("b", "B", 1)], profiles=book, readings=readings))
    assert codes_of(plan, "b") == ["memory_would_overflow", "waiting_for_gpu"]
    assert "has 3000 of 16000 MiB" in texts_of(plan, "b")


@pytest.mark.parametrize("unknown", ["resident", "newcomer", "card"])
def test_unknown_memory_is_never_shared(cycle: Cycle, unknown: str) -> None:
    """Without the memory of resident, newcomer or card nobody joins; unknown is not zero."""
    resident = make_job("r", "J3", gpu_memory_mib=None if unknown != "newcomer" else 4000)
    job = make_job("n", "J1", gpu_memory_mib=None if unknown != "resident" else 4000)
    node = make_node(memory_mib=None if unknown == "card" else 32_768)
    plan = cycle(make_snapshot(hold_gpus(node, make_resident(resident)), waiting=[job]))
    assert codes_of(plan, "n") == ["memory_would_overflow", "waiting_for_gpu"]
    assert "unknown" in texts_of(plan, "n")


def test_c57_exclusive_and_shared_jobs_keep_apart(cycle: Cycle) -> None:
    """A share=never job goes to the empty node although another could be joined; nobody joins it there."""
    shared = hold_gpus(make_node("node-a"), make_resident(make_job("a", "J4")))
    never = make_job("never", "J1", share=Share.NEVER)
    first = make_snapshot(shared, make_node("node-b"), waiting=[never])
    plan = cycle(first)
    assert launched(plan)["never"].placement.node == "node-b"
    after = first.with_launch(never, launched(plan)["never"].placement)
    later = [make_job("j3", "J3"), make_job("again", "J1", share=Share.NEVER)]
    plan = cycle(replace(after, waiting=tuple(later), nodes={"node-b": after.nodes["node-b"]}))
    assert launched(plan) == {}
    assert "held exclusively (1 of 1)" in texts_of(plan, "j3")
    assert "it takes GPUs of its own" in texts_of(plan, "again")


@pytest.mark.parametrize(
    ("spreading", "nodes", "modes"),
    [
        (Spreading.PACK, {"a": "node-a", "b": "node-a", "c": "node-a"}, "pack"),
        (Spreading.SPREAD, {"a": "node-b", "b": "node-c", "c": "node-a"}, "spread"),
    ],
)
def test_c58_pack_and_spread(cycle: Cycle, spreading: Spreading, nodes: dict[str, str], modes: str) -> None:
    """Packing fills the fullest node that fits and leaves nodes idle, spreading takes the emptiest one."""
    started = hold_gpus(make_node("node-a"), make_resident(make_job("r", "new", 2)))
    waiting = [make_job(name, f"new-{name}", 2) for name in "abc"]
    settings = PoolSettings(spreading=spreading)
    plan = cycle(
        make_snapshot(started, make_node("node-b"), make_node("node-c"), waiting=waiting, settings=settings)
    )
    assert {name: step.placement.node for name, step in launched(plan).items()} == nodes
    assert all(made.decision.choice.startswith(f"{modes}: ") for made in plan.decisions)


def test_spreading_prefers_free_gpus_and_packing_prefers_sets(cycle: Cycle) -> None:
    """The pool's spreading decides between an idle node and a set that could be joined."""
    nodes = hold_gpus(make_node("node-a"), make_resident(make_job("r", "J3"))), make_node("node-b")
    for spreading, node in ((Spreading.PACK, "node-a"), (Spreading.SPREAD, "node-b")):
        settings = PoolSettings(spreading=spreading)
        plan = cycle(make_snapshot(*nodes, waiting=[make_job("j", "J1")], settings=settings))
        assert launched(plan)["j"].placement.node == node


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
        assert "1.600 times (limit 1.200)" in texts_of(plan, "b")
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
        "3 free GPUs are kept for an earlier or higher-priority job that waits for 4 GPUs on one node"
    ) in texts_of(plan, "late")


@pytest.mark.parametrize("held", [{"on_hold": True}, {"pool_slots": 5}, {"gpus": 9}])
def test_jobs_that_wait_for_no_gpu_keep_none(cycle: Cycle, held: dict[str, object]) -> None:
    """A job on hold, behind a closed pool or too large for every node does not block the queue."""
    waiting = [make_job("first", priority=9, **{"gpus": 8, **held}), make_job("next", gpus=8)]
    plan = cycle(make_snapshot(make_node(), slots=6, used=2, waiting=waiting))
    assert set(launched(plan)) == {"next"}


def test_high_priority_jobs_have_gpus_of_their_own(cycle: Cycle) -> None:
    """At or above exclusive_priority a job takes free GPUs at once, and nobody joins it."""
    nodes = hold_gpus(make_node("node-a"), make_resident(make_job("r", "J3"))), make_node("node-b")
    settings = PoolSettings(exclusive_priority=10)
    urgent, later = make_job("urgent", "J1", priority=10), make_job("later", "J4", run_after_s=1)
    plan = cycle(make_snapshot(*nodes, waiting=[urgent, later], settings=settings))
    assert launched(plan)["urgent"].placement.node == "node-b"
    assert "later" not in launched(plan)
    assert "held exclusively (1 of 2)" in texts_of(plan, "later")


def test_preferred_gpu_models_come_in_their_order(cycle: Cycle) -> None:
    """The first acceptable model is taken even where another could be shared; unlisted ones never."""
    shared = hold_gpus(make_node("node-a"), make_resident(make_job("r", "J3")))
    h100, t4 = make_node("node-b", model="H100"), make_node("node-c", model="T4")
    for models, node in ((("H100", "V100"), "node-b"), (("V100", "H100"), "node-a"), (("A100",), None)):
        plan = cycle(make_snapshot(shared, h100, t4, waiting=[make_job("j", "J1", gpu_models=models)]))
        assert (launched(plan)["j"].placement.node if node else launched(plan)) == (node or {})
    assert codes_of(plan, "j") == ["no_such_gpu"]


def test_mode_exclusive_never_shares(cycle: Cycle) -> None:
    """In mode exclusive a job waits although a set could be joined; trials still end."""
    node = hold_gpus(
        make_node(),
        make_resident(make_job("a", "J1"), LeaseState.TRIAL, unit_s=1400.0),
        make_resident(make_job("b", "J3"), LeaseState.TRIAL, token=2, unit_s=1450.0),
    )
    settings = PoolSettings(mode=PoolMode.EXCLUSIVE)
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "J2")], settings=settings))
    assert codes_of(plan, "j") == ["waiting_for_gpu"]
    assert [type(step) for step in plan.instructions] == [Confirm]


CLOSED = {
    LeaseState.TRIAL: "its trial is not over",
    LeaseState.UNCONFIRMED: "its trial ended unconfirmed",
    LeaseState.YIELDING: "a resident is leaving",
}


@pytest.mark.parametrize("state", CLOSED)
def test_sets_in_trial_or_breaking_up_take_nobody(cycle: Cycle, state: LeaseState) -> None:
    """Only a confirmed set grows: a trial measures one set, and a third member would spoil it."""
    residents = [
        make_resident(make_job("a", "J1"), LeaseState.CONFIRMED),
        make_resident(make_job("b", "J3"), state, token=2),
    ]
    plan = cycle(make_snapshot(hold_gpus(make_node(), *residents), waiting=[make_job("j", "J2")]))
    assert codes_of(plan, "j") == ["waiting_for_gpu"]
    assert f"{CLOSED[state]} (1 of 1)" in texts_of(plan, "j")
    confirmed = [replace(resident, state=LeaseState.CONFIRMED) for resident in residents]
    lax = make_job("j", "J2", max_stretch=None)
    snapshot = make_snapshot(hold_gpus(make_node(), *confirmed), waiting=[lax])
    assert launched(cycle(snapshot))["j"].co_residents == ("a", "b")


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


def _with_health(node: NodeState, health: GpuHealth) -> NodeState:
    sick = tuple(replace(gpu, health=health) for gpu in node.node.gpus)
    return NodeState(replace(node.node, gpus=sick), free=sick)


NODE_TROUBLES = {
    "no_worker": make_node(available=False),
    "draining": make_node(draining=True),
    "gpu_unhealthy": _with_health(make_node(gpus=8), GpuHealth.UNHEALTHY),
    "unknown health": _with_health(make_node(gpus=8), GpuHealth.UNKNOWN),
}


@pytest.mark.parametrize("case", NODE_TROUBLES)
def test_a_nodes_trouble_is_a_reason_only_where_every_node_has_some(cycle: Cycle, case: str) -> None:
    """With the only node in trouble its reason is first; with a sound busy node beside it jobs just wait."""
    plan = cycle(make_snapshot(NODE_TROUBLES[case], waiting=[make_job("j", "new")]))
    assert codes_of(plan, "j")[0] == case.replace("unknown health", "gpu_unhealthy")
    busy = hold_gpus(make_node("node-b"), make_resident(make_job("r", "other")))
    plan = cycle(make_snapshot(NODE_TROUBLES[case], busy, waiting=[make_job("j", "new")]))
    assert codes_of(plan, "j") == ["profile_missing", "waiting_for_gpu"]


def test_c34_memory_of_somebody_else_keeps_jobs_away_until_it_goes(cycle: Cycle) -> None:
    """A foreign process on the only GPU is named with its MiB; within the margin it does not matter."""
    node = make_node(gpus=1)
    for foreign_mib, starts in ((79_000, False), (512, True), (None, True)):
        readings = [GpuReading("node-a-gpu00", NOW_S, foreign_memory_mib=foreign_mib)]
        plan = cycle(make_snapshot(node, waiting=[make_job("j", "new", 1)], readings=readings))
        assert ("j" in launched(plan)) is starts
    readings = [GpuReading("node-a-gpu00", NOW_S, foreign_memory_mib=79_000)]
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "new", 1)], readings=readings))
    assert codes_of(plan, "j") == ["foreign_use", "waiting_for_gpu"]
    assert "79000 MiB" in texts_of(plan, "j")


@pytest.mark.parametrize(("total_mib", "starts"), [(64_000, True), (40_000, False), (None, False)])
def test_c16_host_memory_waits_with_its_own_reason(cycle: Cycle, total_mib: int | None, starts: bool) -> None:
    """A GPU fits, the node's host memory does not: that is the reason, and unknown memory proves nothing."""
    resident = make_resident(make_job("r", "new", 1, host_memory_mib=30_000))
    node = hold_gpus(make_node(host_memory_mib=total_mib), resident)
    plan = cycle(make_snapshot(node, waiting=[make_job("j", "n2", 1, host_memory_mib=20_000)]))
    assert ("j" in launched(plan)) is starts
    if not starts:
        assert codes_of(plan, "j")[0] == "host_memory"


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
    assert "1.084 times (limit 1.050)" in texts_of(plan, "j")


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
    unknown = make_book(*solos, make_pair({"A": 1.05, "B": 1.05}, power_w=None))
    plan = cycle(make_snapshot(node, waiting=[make_job("b", "B", 1)], profiles=unknown))
    assert codes_of(plan, "b")[0] == "no_energy_gain"


def test_the_utilisation_limit_and_the_resident_limit_hold(cycle: Cycle) -> None:
    """A set is not joined above the pool's utilisation limit, nor beyond its number of residents."""
    node = hold_gpus(make_node(), make_resident(make_job("r", "J3")))
    job = make_job("j", "J1")
    plan = cycle(make_snapshot(node, waiting=[job], settings=PoolSettings(utilisation_limit_pct=40)))
    assert codes_of(plan, "j") == ["interference_too_high", "waiting_for_gpu"]
    assert "utilised 40 %" in texts_of(plan, "j")
    plan = cycle(make_snapshot(node, waiting=[job], settings=PoolSettings(max_residents=1)))
    assert codes_of(plan, "j") == ["resident_limit", "waiting_for_gpu"]


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
