"""What would have been decided about tasks of another executor, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.provider import observe_wiring
from airflow_provider_eaco.provider.rules import Rule
from airflow_provider_eaco.store.planner import SqlPlannerLock
from tests.builders import make_job
from tests.integration.node_api.sampled import Sampled


def test_others_that_were_there_before_count_as_residents(sampled: Sampled) -> None:
    """The third task of one GPU each finds both GPUs taken, and is told by whom; no share was measured."""
    for number, pid in ((1, 10), (2, 11), (3, 12)):
        sampled.task(number, pid)
        sampled.use(*[(0, 10), (1, 11), (1, 12)][:number])
        sampled.pass_s(12)
    told = {number: sampled.events(number)["observed"] for number in (1, 2, 3)}
    assert "it would have been admitted" in told[1]
    assert "it would have been admitted" in told[2]
    assert "it would have been held: " in told[3]
    story = sampled.story(3)
    assert story is not None
    assert story.energy is not None
    assert story.energy.co_residents == ("dag.task2",)


def test_gpus_of_tasks_that_overlap_are_nobody_s(sampled: Sampled) -> None:
    """A task on both GPUs and one on the second: residents share whole sets, so there is no room for more."""
    sampled.task(1, pid=10)
    sampled.use((0, 10), (1, 10))
    sampled.pass_s(12)
    sampled.task(2, pid=11)
    sampled.use((0, 10), (1, 10), (1, 11))
    sampled.pass_s(12)
    sampled.task(3, pid=12)
    sampled.use((0, 10), (1, 10), (1, 11), (0, 12))
    sampled.pass_s(12)
    assert "it would have been held: foreign_use" in sampled.events(3)["observed"]


@pytest.mark.parametrize(
    ("config", "rule", "gpus", "family"),
    [
        (None, None, 1, None),
        ({"eaco": {"gpus": 2, "profile": "mine"}}, None, 2, "mine"),
        ({"eaco": {"gpus": "many"}}, None, 1, None),
        (None, {"gpus": 2, "profile": "ruled"}, 2, "ruled"),
        ({"eaco": {"profile": "mine"}}, {"gpus": 2, "profile": "ruled"}, 1, "mine"),
    ],
)
def test_what_it_asks_for_is_its_own_then_a_rule_s_then_what_is_seen(
    config: object, rule: dict[str, object] | None, gpus: int, family: str | None, sampled: Sampled
) -> None:
    """The request of the task, else of the first rule that fits it, else the GPUs that it uses."""
    if rule is not None:
        sampled.rules = (
            Rule(1, {"dag_id": ("other",)}, {"gpus": 4}),
            Rule(2, {"tag": ("vision",)}, rule),
        )
    sampled.task(1, pid=10, config=config, tags=frozenset({"vision"}))
    sampled.use((0, 10))
    sampled.pass_s(8)
    story = sampled.story(1)
    assert story is not None
    assert story.record.job.request.gpus == gpus
    assert family is None or story.record.job.request.family == family


def test_a_planner_that_is_at_work_is_waited_for(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a scheduler plans nothing is decided here; the next report makes it good, and once."""
    monkeypatch.setattr(observe_wiring, "_TRY_AGAIN_S", 0.0)
    planner = SqlPlannerLock(sampled.database)
    assert planner.acquire("scheduler", 1e6)
    sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    assert sampled.events(1) == {}
    planner.release("scheduler")
    sampled.pass_s(6)
    assert set(sampled.events(1)) == {"observed"}
    standing = [row for row in sampled.rows("eaco_decision") if row.ended_at is None]
    assert standing == []


def test_nothing_of_other_pools_is_planned(sampled: Sampled) -> None:
    """A job that waits for a pool that shares is neither decided about here nor given anything."""
    sampled.pass_s(6)
    sampled.ledger.add_waiting(make_job("waits", gpus=1, pool="eaco", gpu_memory_mib=100), "me")
    sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    assert set(sampled.events(1)) == {"observed"}
    assert {row.pool for row in sampled.rows("eaco_decision")} == {"default_pool"}
    [record] = [each for each in sampled.ledger.view().jobs if each.job.job_id == "waits"]
    assert record.phase is JobPhase.WAITING


def test_a_task_whose_process_is_gone_holds_nothing(sampled: Sampled) -> None:
    """Even while Airflow still counts on it: the next task finds both GPUs free."""
    gone = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    gone.alive = False
    sampled.task(2, pid=11)
    sampled.use((0, 11), (1, 11))
    sampled.pass_s(10)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.RUNNING
    assert "it would have been admitted: 2 GPUs" in sampled.events(2)["observed"]
