"""The example DAGs do under EacoExecutor what their docstrings say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.rig import Rig, Run

pytestmark = [pytest.mark.airflow]

TRAININGS = ("j1", "j2", "j3", "j4")


def finished(rig: Rig, dag_id: str) -> Run:
    """Return a run of three epochs that has succeeded, all at their first try, and holds nothing now."""
    run = rig.run(dag_id, epochs=3)
    run.wait_done()
    rig.wait_for(lambda: not rig.leases(), lambda: f"no lease is held; {rig.leases()}")
    instances = rig.airflow.api.task_instances(dag_id, run.run_id)
    assert {(each["state"], each["try_number"]) for each in instances} == {("success", 1)}
    return run


def leases_of(run: Run, task_id: str, map_index: int = -1) -> list[dict[str, Any]]:
    """Return the leases that a training has had, which all were of eight GPUs."""
    job_id = run.job_id(task_id, map_index)
    found = [lease for lease in run.rig.lease_history() if lease["job_id"] == job_id]
    assert found
    assert all(len(set(lease["gpu_uuids"].split(","))) == 8 for lease in found)
    return found


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two leases held the same GPUs at the same time."""
    apart = one["granted_at"] >= other["released_at"] or other["granted_at"] >= one["released_at"]
    return one["gpu_uuids"] == other["gpu_uuids"] and not apart


def partners(run: Run, task_id: str, among: tuple[str, ...]) -> set[str]:
    """Return which of the trainings held the GPUs of this one while it did."""
    own = leases_of(run, task_id)
    others = {name: leases_of(run, name) for name in among if name != task_id}
    return {
        name
        for name, leases in others.items()
        if any(overlap(mine, lease) for mine in own for lease in leases)
    }


def events(run: Run, task_id: str) -> list[str]:
    """Return the names of what happened to the training's job, oldest first."""
    return [event.event for event in run.rig.story(run.job_id(task_id)).events]


def test_exclusive_baseline_shares_nothing(rig: Rig) -> None:
    """Each of the four trainings has a whole node to itself."""
    run = finished(rig, "exclusive_baseline")
    assert {task_id: partners(run, task_id, TRAININGS) for task_id in TRAININGS} == {
        task_id: set() for task_id in TRAININGS
    }


def test_coallocated_training_shares_a_node_within_the_limit(rig: Rig) -> None:
    """Trainings run together on the same eight GPUs, the set is confirmed, and never are all four one set."""
    run = finished(rig, "coallocated_training")
    together = {task_id: partners(run, task_id, TRAININGS) for task_id in TRAININGS}
    assert any(together.values()), "nobody has shared"
    assert any("confirmed" in events(run, task_id) for task_id in TRAININGS if together[task_id])
    assert all("undone" not in events(run, task_id) for task_id in TRAININGS)


def test_stretch_limit_undoes_a_trial_and_never_starts_another(rig: Rig) -> None:
    """The tried pair shows more than the limit: one leaves and goes on alone; the strict one never shares."""
    run = finished(rig, "stretch_limit")
    tasks = ("tried_j2", "tried_j3", "strict")
    assert partners(run, "tried_j2", tasks) == {"tried_j3"}
    assert partners(run, "strict", tasks) == set()
    left = [
        task_id for task_id in tasks if "undone" in events(run, task_id) and len(leases_of(run, task_id)) == 2
    ]
    assert len(left) == 1
    assert left[0] in ("tried_j2", "tried_j3")


def test_mapped_sweep_grants_gpus_to_every_mapped_training(rig: Rig) -> None:
    """Four mapped trainings have a lease each, the task that compares them has none."""
    run = finished(rig, "mapped_sweep")
    for map_index in range(4):
        assert len(leases_of(run, "train", map_index)) >= 1
    best = run.job_id("best")
    assert all(lease["job_id"] != best for lease in rig.lease_history())


def test_unannotated_gets_its_gpus_from_the_rule(rig: Rig) -> None:
    """The DAG that has never heard of GPUs runs alone on the eight that the rule asks for."""
    run = finished(rig, "unannotated")
    assert len(leases_of(run, "train")) == 1
