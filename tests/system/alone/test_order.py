"""Who is next on two GPUs that everybody wants, and who has had enough (cases C01 and C05)."""

from __future__ import annotations

import pytest

from tests.system.rig import Rig, Run

pytestmark = [pytest.mark.airflow]


def flooded(rig: Rig, dag_id: str) -> tuple[Run, list[int], int]:
    """Start a mapped flood on two GPUs; return it with the indexes that run and one that waits."""
    flood = rig.run(dag_id)
    running = [entry["map_index"] for entry in flood.wait_started(2)]
    waiting = next(index for index in range(3) if index not in running)
    flood.wait_reason("waiting_for_gpu", map_index=waiting)
    return flood, running, waiting


def place_of(run: Run) -> tuple[int, int]:
    """Return where a task that waits for GPUs stands in its queue, and how many wait there."""
    place = run.wait_reason("waiting_for_gpu").place
    assert place is not None
    return place.position, place.of


def test_c01_a_big_task_of_high_priority_is_next_and_small_ones_are_told_so(rig: Rig) -> None:
    """It needs both GPUs: no further small task starts on the one that falls free first, and it starts as
    soon as the other one has.
    """
    small, running, waiting = flooded(rig, "told_small")
    big = rig.run("told_big")
    big.wait_reason("waiting_for_gpu")
    small.end("work", running[0])
    small.wait_reason("reserved_for_earlier_job", map_index=waiting)
    assert len(rig.leases()) == 1
    rig.wait_cycles()
    assert len(small.started) == 2
    assert big.started == []
    small.end("work", running[1])
    big.wait_started()
    assert len(small.started) == 2
    big.end()
    small.wait_started(3)


def test_c05_with_fair_share_the_other_dag_is_next_after_a_flood(rig: Rig) -> None:
    """The flood has used both GPUs: the other DAG's only task starts when one of them falls free."""
    flood, running, _ = flooded(rig, "told_flood")
    other = rig.run("told_single")
    assert place_of(other) == (1, 2)
    flood.end("work", running[0])
    other.wait_started()
    assert len(flood.started) == 2


def test_c05_without_the_rule_who_came_first_is_next_and_the_reason_says_so(rig: Rig) -> None:
    """The other DAG's task stands last, and the next of the flood starts before it."""
    flood, running, _ = flooded(rig, "told_small")
    other = rig.run("told_late")
    assert place_of(other) == (2, 2)
    flood.end("work", running[0])
    flood.wait_started(3)
    assert other.started == []


def test_a_bundle_beyond_its_quota_waits_for_what_has_ended(rig: Rig) -> None:
    """A second run of the same bundle waits on a free GPU, since the first, which is over, used the quota."""
    first = rig.run("told_rationed")
    first.wait_started()
    second = rig.run("told_rationed")
    second.wait_reason("over_quota")
    first.end()
    first.wait_done()
    rig.wait_for(lambda: not rig.leases(), lambda: f"no lease is held; {rig.leases()}")
    rig.wait_cycles()
    told = second.wait_reason("over_quota")
    assert "dags-folder has used" in told.reason.sentence
    assert second.started == []
    rig.airflow.api.set_state("told_rationed", second.run_id, "work", "failed")
    second.wait_done("failed")
