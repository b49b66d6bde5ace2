"""Follow-ups of a task that has ended: they are there before its GPUs are granted to anybody (case C02)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.provider.follow_ups import MAX_HEARTBEATS
from tests.unit.provider.executor.lane_rig import LaneRig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> LaneRig:
    """A lane with one node whose GPUs the first task of a chain holds, while another DAG's task waits."""
    rig = LaneRig(monkeypatch)
    rig.queue("a-one", "one")
    rig.beat()
    rig.queue("b-one", "b-one")
    rig.beat()
    rig.become("a-one", "success")
    rig.unlooked.add("a-one")
    rig.dispatcher.end("a-one")
    return rig


def started(rig: LaneRig) -> list[str]:
    """Return the jobs that were started, in their order."""
    return [order.job_id for order in rig.dispatcher.orders]


def test_c02_the_next_of_the_chain_has_more_weight_and_is_next(rig: LaneRig) -> None:
    """The lease stands until Airflow has looked at the run; then the follow-up is there and is granted."""
    rig.beat()
    assert started(rig) == ["a-one"]
    assert [lease.job_id for lease in rig.ledger.view().leases] == ["a-one"]
    rig.unlooked.clear()
    rig.queue("a-two", "two")
    rig.facts["a-two"] = replace(rig.facts["a-two"], priority=2)
    rig.beat()
    assert started(rig) == ["a-one", "a-two"]
    assert rig.phase("a-one") == "finished"


def test_c02_a_follow_up_of_less_weight_comes_after_who_waits(rig: LaneRig) -> None:
    """The order alone decides: what the follow-up gets is a place in the queue, and no more."""
    rig.unlooked.clear()
    rig.queue("a-two", "two")
    rig.facts["a-two"] = replace(rig.facts["a-two"], priority=0)
    rig.beat()
    assert started(rig) == ["a-one", "b-one"]


def test_c02_a_run_that_airflow_does_not_look_at_keeps_nobody_waiting_for_long(rig: LaneRig) -> None:
    """After so many heartbeats the lease falls anyway, and the next one in the queue starts."""
    for _ in range(MAX_HEARTBEATS):
        rig.beat()
        assert started(rig) == ["a-one"]
    rig.beat()
    assert started(rig) == ["a-one", "b-one"]
    assert not [lease for lease in rig.ledger.view().leases if lease.job_id == "a-one"]


def test_c02_each_ended_task_has_its_own_patience(rig: LaneRig) -> None:
    """That one task was waited for in vain shortens nothing for the next."""
    for _ in range(MAX_HEARTBEATS + 1):
        rig.beat()
    rig.queue("c-one", "c-one")
    rig.become("b-one", "success")
    rig.unlooked.add("b-one")
    rig.dispatcher.end("b-one")
    rig.beat()
    assert started(rig) == ["a-one", "b-one"]
    rig.unlooked.clear()
    rig.beat()
    assert started(rig) == ["a-one", "b-one", "c-one"]
