"""What holds for every drawn cluster and queue (design.md 10)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.decision import Verdict
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import Launch, Plan
from airflow_provider_eaco.core.model.job import Job, Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings, Spreading
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
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
    make_pair,
    make_progress,
    make_resident,
    make_snapshot,
    make_solo,
)
from tests.invariants import check_plan

FAMILIES = "ABCD"
BOOK = make_book(
    *(
        make_solo(family, gpu_count=gpus, utilisation_pct=10.0 * rank, units_total=50)
        for rank, family in enumerate("ABC", 1)
        for gpus in (1, 2, 4)
    ),
    *(make_pair({"A": 1.0, "B": 1.1}, gpu_count=gpus) for gpus in (1, 2, 4)),
    *(make_pair({"B": 1.3, "C": 1.4}, gpu_count=gpus, undone=1) for gpus in (1, 2, 4)),
)

OTHER_BOOK = make_book(
    *(solo for solo in BOOK.solo.values() if solo.family != "A"),
    *(make_solo("A", gpu_count=gpus, utilisation_pct=30.0, memory_peak_mib=9000) for gpus in (1, 2)),
    *(pair for pair in BOOK.coallocation.values() if "C" not in pair.families),
    *(make_pair({"A": 1.0, "C": 1.02}, gpu_count=gpus) for gpus in (1, 2, 4)),
)


def drawn_job(draw: st.DrawFn, job_id: str, gpus: int | None = None) -> Job:
    """A job of any kind."""
    done = draw(st.sampled_from((0, 0, 25)))
    return make_job(
        job_id,
        draw(st.sampled_from(FAMILIES)),
        gpus or draw(st.sampled_from((1, 2, 4, 5))),
        gpu_memory_mib=draw(st.sampled_from((None, 3000, 9000, 40_000))),
        max_stretch=draw(st.sampled_from((None, 1.05, 1.5))),
        deadline_s=draw(st.sampled_from((None, 3000.0, 5100.0, 90_000.0))),
        share=draw(st.sampled_from(Share)),
        priority=draw(st.sampled_from((0, 0, 5))),
        on_hold=draw(st.sampled_from((False, False, True))),
        progress=make_progress(done, 50, can_yield=draw(st.booleans())),
        run_after_s=draw(st.integers(0, 3)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """A small cluster with held sets, and a queue."""
    nodes = [_drawn_node(draw, number) for number in range(draw(st.integers(1, 3)))]
    queue = [drawn_job(draw, f"w{number}") for number in range(draw(st.integers(1, 8)))]
    pool = PoolSettings(
        ordering=draw(st.sampled_from(tuple(ORDERINGS))),
        rules=draw(st.sampled_from(((), ("reserve",), ("ageing", "fair_share"), ("reserve", "fair_share")))),
        aligned=draw(st.booleans()),
        spreading=draw(st.sampled_from(Spreading)),
        exclusive_priority=draw(st.sampled_from((None, 5))),
    )
    slots = draw(st.sampled_from((None, 2)))
    return make_snapshot(*nodes, waiting=queue, settings=pool, profiles=BOOK, slots=slots)


def _drawn_node(draw: st.DrawFn, number: int) -> NodeState:
    node = make_node(
        f"node-{number}", gpus=4, model="T4", draining=draw(st.sampled_from((False, False, True)))
    )
    for count in draw(st.lists(st.sampled_from((1, 2)), max_size=2)):
        members = draw(st.integers(1, 2))
        state = LeaseState.EXCLUSIVE if members == 1 else draw(st.sampled_from(LeaseState))
        residents = []
        for place in range(members):
            job = drawn_job(draw, f"r{number}-{len(node.sets)}-{place}", count)
            job = replace(job, request=replace(job.request, gpu_memory_mib=3000))
            unit_s = draw(st.sampled_from((None, 104.0, 170.0)))
            residents.append(make_resident(job, state, token=place, unit_s=unit_s, granted_s=NOW_S - place))
        node = hold_gpus(node, *residents)
    return node


def plan_of(snapshot: ClusterSnapshot) -> Plan:
    """One cycle with the policy eaco."""
    pool = snapshot.pool.settings
    return run_cycle(make_policy(pool), make_ordering(pool.ordering), snapshot, make_rules(pool))


def verdicts(plan: Plan) -> dict[str, Verdict]:
    """The verdict for each waiting job."""
    return {job_id: made.decision.verdict for made in plan.decisions for job_id in made.job_ids}


def shuffled(snapshot: ClusterSnapshot, seed: int) -> ClusterSnapshot:
    """The same cluster, listed in another order everywhere."""
    draw = random.Random(seed)

    def mix(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(draw.sample(items, len(items)))

    nodes = {}
    for name in draw.sample(sorted(snapshot.nodes), len(snapshot.nodes)):
        state = snapshot.nodes[name]
        sets = tuple(replace(h, gpus=mix(h.gpus), residents=mix(h.residents)) for h in mix(state.sets))
        node = replace(state.node, gpus=mix(state.node.gpus))
        nodes[name] = NodeState(node, sets, mix(state.free))
    return replace(snapshot, nodes=nodes, waiting=mix(snapshot.waiting))


@given(snapshots())
@settings(max_examples=150, deadline=None)
def test_every_plan_keeps_the_invariants_and_leaves_its_snapshot_as_it_was(snapshot: ClusterSnapshot) -> None:
    """Planning and trying launches change nothing: dropping the successor undoes it."""
    before = replace(snapshot, nodes=dict(snapshot.nodes))
    plan = plan_of(snapshot)
    assert snapshot == before
    check_plan(snapshot, plan)
    assert snapshot == before


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(snapshot=snapshots())
@settings(max_examples=25, deadline=None)
def test_no_two_ranks_of_a_job_are_on_one_gpu(policy: str, snapshot: ClusterSnapshot) -> None:
    """Who asks for several GPUs is granted as many different ones, all of one node."""
    pool = replace(snapshot.pool, settings=replace(snapshot.pool.settings, policy=policy))
    for launch in plan_of(replace(snapshot, pool=pool)).instructions:
        if isinstance(launch, Launch):
            uuids = launch.placement.gpu_uuids
            assert len(uuids) == len(set(uuids)) == launch.job.request.gpus
            assert set(uuids) <= {gpu.uuid for gpu in snapshot.nodes[launch.placement.node].node.gpus}


@given(snapshots(), st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_no_order_of_gpus_residents_nodes_or_jobs_matters(snapshot: ClusterSnapshot, seed: int) -> None:
    """The same cluster listed in another order gives the same plan."""
    plan, other = plan_of(snapshot), plan_of(shuffled(snapshot, seed))
    assert verdicts(plan) == verdicts(other)
    assert plan.order == other.order
    for one, two in zip(plan.decisions, other.decisions, strict=True):
        assert one.decision.findings == two.decision.findings
        assert one.decision.placement == two.decision.placement
        assert set(one.decision.co_residents) == set(two.decision.co_residents)
    reviews = [{s for s in p.instructions if not isinstance(s, Launch)} for p in (plan, other)]
    assert reviews[0] == reviews[1]


@st.composite
def histories(draw: st.DrawFn) -> list[ClusterSnapshot]:
    """Snapshots one after another: some nodes stay, time goes by, profiles and readings change."""
    first = draw(snapshots())
    history = [first]
    for _ in range(draw(st.integers(1, 3))):
        last, other = history[-1], draw(snapshots())
        nodes = {name: state for name, state in last.nodes.items() if draw(st.booleans())} or last.nodes
        gpus = [gpu.uuid for state in other.nodes.values() for gpu in state.node.gpus]
        readings = [
            GpuReading(uuid, NOW_S, memory_used_mib=draw(st.sampled_from((None, 9000, 15_000))),
                       foreign_memory_mib=draw(st.sampled_from((None, 0, 20_000))))
            for uuid in gpus if draw(st.sampled_from((False, False, False, True)))
        ]  # fmt: skip
        history.append(
            replace(
                last,
                now_s=last.now_s + draw(st.sampled_from((0.0, 5.0, 500.0, -100.0))),
                nodes={**other.nodes, **nodes},
                waiting=draw(st.sampled_from((last.waiting, other.waiting))),
                profiles=draw(st.sampled_from((BOOK, BOOK, OTHER_BOOK, make_book()))),
                readings={reading.uuid: reading for reading in readings},
                pool=replace(other.pool, settings=first.pool.settings),
            )
        )
    return history


@given(histories())
@settings(max_examples=80, deadline=None)
def test_same_input_same_plan_from_a_fresh_and_from_a_used_policy(history: list[ClusterSnapshot]) -> None:
    """A policy that has planned before answers as a new one does: it remembers no decision."""
    pool = history[0].pool.settings
    policy, ordering, rules = make_policy(pool), make_ordering(pool.ordering), make_rules(pool)
    for snapshot in history:
        plan = run_cycle(policy, ordering, snapshot, rules)
        assert plan == plan_of(snapshot)
        assert run_cycle(policy, ordering, snapshot, rules) == plan


@given(snapshots(), st.sampled_from((1.0, 1000.0, 1e6)))
@settings(max_examples=150, deadline=None)
def test_a_longer_deadline_never_turns_admit_into_hold(snapshot: ClusterSnapshot, more_s: float) -> None:
    """The first job of the queue, alone in it, is still admitted when its deadline is later or gone."""
    for job in snapshot.waiting:
        if job.request.deadline_s is None:
            continue
        alone = replace(snapshot, waiting=(job,))
        if verdicts(plan_of(alone))[job.job_id] is Verdict.ADMIT:
            for deadline_s in (job.request.deadline_s + more_s, None):
                lax = replace(job, request=replace(job.request, deadline_s=deadline_s))
                assert verdicts(plan_of(replace(snapshot, waiting=(lax,))))[job.job_id] is Verdict.ADMIT
