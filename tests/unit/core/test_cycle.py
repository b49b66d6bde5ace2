"""One cycle as a whole: who is placed where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.instruction import Confirm
from airflow_provider_eaco.core.model.job import Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings, Spreading
from tests.builders import (
    hold_gpus,
    make_job,
    make_node,
    make_progress,
    make_resident,
    make_snapshot,
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
    assert "the task asks for GPUs of its own" in texts_of(plan, "again")


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


def test_high_priority_jobs_have_gpus_of_their_own(cycle: Cycle) -> None:
    """At or above exclusive_priority a job takes free GPUs at once, and nobody joins it."""
    nodes = hold_gpus(make_node("node-a"), make_resident(make_job("r", "J3"))), make_node("node-b")
    settings = PoolSettings(exclusive_priority=10)
    urgent, later = make_job("urgent", "J1", priority=10), make_job("later", "J4", run_after_s=1)
    plan = cycle(make_snapshot(*nodes, waiting=[urgent, later], settings=settings))
    assert launched(plan)["urgent"].placement.node == "node-b"
    assert "later" not in launched(plan)
    assert "held exclusively (1 of 2)" in texts_of(plan, "later")


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ("eaco", {"share": Share.NEVER}, "the task asks for GPUs of its own"),
        ("eaco", {"priority": 10}, "its priority buys GPUs of its own"),
        ("eaco", {"progress": make_progress(out_of_memory=1)}, "it ran out of memory beside others"),
        ("exclusive", {}, "the pool's policy never shares"),
    ],
)
def test_who_takes_no_shared_gpus_is_told_why(
    cycle: Cycle, policy: str, changes: dict[str, Any], words: str
) -> None:
    """The wish of the task, its priority, its memory and the pool's policy are told apart."""
    held = hold_gpus(make_node("node-a"), make_resident(make_job("r", "J3")))
    settings = PoolSettings(policy=policy, exclusive_priority=10)
    plan = cycle(make_snapshot(held, waiting=[make_job("j", "J1", **changes)], settings=settings))
    assert launched(plan) == {}
    assert f"no sharing there: {words}" in texts_of(plan, "j")


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
