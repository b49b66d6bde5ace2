"""Somebody else begins to use GPUs that tasks hold."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings, StrangerAction
from tests.builders import NOW_S, make_job
from tests.unit.engine.rig import Rig, unlimited

YIELDING = unlimited(PoolSettings(strangers=StrangerAction.YIELD))


def reading(rig: Rig, **values: int | None) -> list[GpuReading]:
    """Return what is seen on the one GPU."""
    (node,) = rig.ledger.view().nodes
    return [GpuReading(node.gpus[0].uuid, NOW_S, **values)]


def together(rig: Rig) -> None:
    """Let two jobs share the one GPU, confirmed."""
    for job_id, family in (("a", "A"), ("b", "B")):
        rig.add(make_job(job_id, family, gpus=1))
        rig.loop.run_once()
        rig.start(job_id)
        rig.unit(job_id, 100.0)
    rig.unit("a", 104.0)
    rig.loop.run_once()
    assert rig.held("a").state is rig.held("b").state is LeaseState.CONFIRMED


@pytest.mark.parametrize("seen", [{"foreign_processes": 1}, {"foreign_memory_mib": 600}], ids=str)
def test_one_after_the_other_is_asked_to_leave(seen: dict[str, int]) -> None:
    """The newest that can goes first, the next one only when it is gone; nothing is learnt of the set, and
    nobody gets the GPU while the stranger is there.
    """
    rig = Rig(pools=YIELDING)
    together(rig)
    before = rig.profiles.book().coallocation
    assert rig.loop.run_once(reading(rig, **seen)).yielding == ("b",)
    assert rig.loop.run_once(reading(rig, **seen)).yielding == ()
    assert rig.held("a").state is LeaseState.CONFIRMED
    rig.end("b", JobPhase.YIELDED)
    assert rig.loop.run_once(reading(rig, **seen)).yielding == ("a",)
    rig.end("a", JobPhase.YIELDED)
    rig.add(make_job("b", "B", gpus=1))
    report = rig.loop.run_once(reading(rig, **seen))
    assert (report.granted, report.yielding) == ((), ())
    assert rig.profiles.book().coallocation == before
    assert "displaced" in rig.story("b")
    assert [lease.job_id for lease in rig.loop.run_once().granted] == ["b"]


@pytest.mark.parametrize(
    ("pools", "seen", "can_yield"),
    [
        (unlimited(PoolSettings()), {"foreign_processes": 1}, True),
        (YIELDING, {"foreign_processes": 0, "foreign_memory_mib": 500}, True),
        (YIELDING, {"foreign_processes": None, "foreign_memory_mib": None}, True),
        (YIELDING, {"foreign_processes": 1}, False),
    ],
    ids=["alert", "within the margin", "unknown", "no checkpoint"],
)
def test_nobody_is_asked_without_need_or_against_his_work(
    pools: list, seen: dict[str, int | None], can_yield: bool
) -> None:
    """By default a stranger is only told of; one that is not known to be there moves nobody; a task that
    saves no checkpoints would lose its work and stays.
    """
    rig = Rig(pools=pools)
    rig.add(make_job("a", "A", gpus=1))
    rig.loop.run_once()
    rig.start("a")
    rig.unit("a", 100.0, can_yield=can_yield)
    assert rig.loop.run_once(reading(rig, **seen)).yielding == ()
    assert rig.held("a").state is LeaseState.EXCLUSIVE
