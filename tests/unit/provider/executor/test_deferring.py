"""C14: a training that defers gives its GPUs up and comes back to its place in the queue."""

from __future__ import annotations

import pytest

from tests.unit.provider.executor.lane_rig import LaneRig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> LaneRig:
    return LaneRig(monkeypatch)


def test_c14_a_deferred_task_holds_no_gpu_and_is_not_overtaken_for_ever(rig: LaneRig) -> None:
    """While it waits for its trigger others may have its GPUs; at no time are they given twice; back again it
    stands before whoever was queued after it, with the same try number.
    """
    for job_id in ("first", "second", "third"):
        rig.queue(job_id, job_id)
        rig.beat()
    assert [rig.phase(job_id) for job_id in ("first", "second", "third")] == ["running", "waiting", "waiting"]
    rig.become("first", "deferred")
    rig.dispatcher.end("first")
    rig.beat()
    assert [rig.phase(job_id) for job_id in ("first", "second", "third")] == ["yielded", "running", "waiting"]
    assert [each.job_id for each in rig.meter.occupants] == ["second"]
    # Its trigger has fired: Airflow hands the same try over again.
    rig.queue("first", "first")
    rig.beat()
    assert rig.phase("first") == "waiting"
    assert len(rig.ledger.view().leases) == 1
    rig.become("second", "success")
    rig.dispatcher.end("second")
    rig.beat()
    assert [rig.phase(job_id) for job_id in ("first", "third")] == ["running", "waiting"]
    assert rig.host.failed == []
