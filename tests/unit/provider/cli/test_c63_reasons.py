"""Why is it waiting? For each cause the command line, the API, which the page shows, and the audit log tell
what the planner has stored, and follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason
from airflow_provider_eaco.core.model.gpu import GpuHealth, GpuReading
from airflow_provider_eaco.core.model.job import Job, Share
from airflow_provider_eaco.provider.audit import ReasonLog
from airflow_provider_eaco.provider.shown import shown_instant
from tests.builders import make_job, make_node, make_pair, make_progress, make_solo
from tests.unit.provider.cli.rig import Cli, Cluster, QueueRoute, set_pool
from tests.unit.provider.executor.lane_rig import FakeHost

WAITER = "waiter"


def job(cluster: Cluster, job_id: str = WAITER, family: str = "A", **changes: Any) -> Job:
    fields = {"gpus": 1, "gpu_memory_mib": 4000, "queued_s": cluster.store.clock.now_s() - 60, **changes}
    return make_job(job_id, family, **fields)


def running(cluster: Cluster, family: str = "A", **changes: Any) -> None:
    """One task on the only GPU."""
    cluster.add_node()
    cluster.add(job(cluster, "resident", family, **changes))
    cluster.plan()
    cluster.start("resident")


def nothing_yet(cluster: Cluster) -> None:
    cluster.add(job(cluster))


def full(cluster: Cluster) -> None:
    running(cluster)
    cluster.add(job(cluster, share=Share.NEVER))


def memory(cluster: Cluster) -> None:
    cluster.store.profiles.save_all([make_solo("A"), make_solo("B"), make_pair({"A": 1.0, "B": 1.0})])
    running(cluster, "B", gpu_memory_mib=20_000)
    cluster.add(job(cluster, gpu_memory_mib=16_000))


def foreign(cluster: Cluster) -> None:
    cluster.add_node()
    cluster.readings = [GpuReading("n1-gpu00", 0.0, foreign_memory_mib=30_000)]
    cluster.add(job(cluster))


def closed(cluster: Cluster) -> None:
    cluster.add_node()
    set_pool("eaco", 0)
    cluster.add(job(cluster))


def unknown_pool(cluster: Cluster) -> None:
    cluster.add_node()
    cluster.add(job(cluster, pool="misspelt"))


def exclusive(cluster: Cluster) -> None:
    cluster.store.profiles.save_all([make_solo("A"), make_solo("B"), make_pair({"A": 1.0, "B": 1.0})])
    running(cluster, "B", share=Share.NEVER)
    cluster.add(job(cluster))


def no_gain(cluster: Cluster) -> None:
    pair = make_pair({"A": 1.05, "B": 1.05}, power_w=500.0)
    cluster.store.profiles.save_all([make_solo("A"), make_solo("B"), pair])
    running(cluster, "B")
    cluster.add(job(cluster))


def unhealthy(cluster: Cluster) -> None:
    _with_health(cluster, GpuHealth.UNHEALTHY)
    cluster.add(job(cluster))


def held(cluster: Cluster) -> None:
    cluster.add_node()
    cluster.add(job(cluster))
    assert cluster.store.ledger.set_hold(WAITER, True)


def _with_health(cluster: Cluster, health: GpuHealth) -> None:
    node = make_node("n1", 1, "T4").node
    cluster.store.ledger.save_nodes([replace(node, gpus=(replace(node.gpus[0], health=health),))])


def audit_lines(decision: AdmissionDecision) -> list[str]:
    """Return what the executor writes into Airflow's audit log for this decision."""
    host = FakeHost()
    reasons = ReasonLog(host)
    reasons.note([(WAITER, SimpleNamespace(task_id=WAITER))], decision)
    reasons.flush()
    return [text for _, _, text in host.told]


@dataclass(frozen=True)
class Case:
    """A cause, the reason that it gives, and what takes the cause away."""

    cause: Callable[[Cluster], None]
    reason: Reason
    cure: Callable[[Cluster], object]


CASES = {
    "no-worker": Case(nothing_yet, Reason.NO_WORKER, lambda c: c.add_node()),
    "gpu-full": Case(full, Reason.WAITING_FOR_GPU, lambda c: c.end("resident")),
    "memory": Case(memory, Reason.MEMORY_WOULD_OVERFLOW, lambda c: c.end("resident")),
    "foreign-use": Case(foreign, Reason.FOREIGN_USE, lambda c: setattr(c, "readings", ())),
    "pool-closed": Case(closed, Reason.POOL_CLOSED, lambda _: set_pool("eaco", 1)),
    "pool-unknown": Case(unknown_pool, Reason.POOL_UNKNOWN, lambda _: set_pool("misspelt", 1)),
    "exclusive": Case(exclusive, Reason.WAITING_FOR_GPU, lambda c: c.end("resident")),
    "no-energy-gain": Case(no_gain, Reason.NO_ENERGY_GAIN, lambda c: c.end("resident")),
    "unhealthy-gpu": Case(unhealthy, Reason.GPU_UNHEALTHY, lambda c: _with_health(c, GpuHealth.HEALTHY)),
    "hold": Case(held, Reason.ON_HOLD, lambda c: c.store.ledger.set_hold(WAITER, False)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_c63_every_cause_is_told_as_it_is_stored(
    case: Case, cluster: Cluster, cli: Cli, queue_route: QueueRoute
) -> None:
    """Code, sentence, since when and position are the planner's: in `why` and `queue`, in words and data, and
    in the API's queue; the audit log has code and sentence.
    """
    case.cause(cluster)
    cluster.plan()
    (entry,) = [entry for entry in cluster.store.reads.queue() if entry.record.job.job_id == WAITER]
    assert entry.decision is not None
    finding = entry.decision.decision.findings[0]
    assert finding.reason is case.reason

    (why,) = cli("why", WAITER, "--output", "json").json()
    assert (why["reason"], why["sentence"]) == (case.reason.code, finding.text)
    (line,) = audit_lines(entry.decision.decision)
    assert line.startswith(f"{why['reason']}: {why['sentence']}")
    assert (why["position"], why["of"], why["pool"]) == ("1", "1", "eaco")
    assert why["what_would_change_it"] == case.reason.remedy
    assert why["since"].endswith(" UTC")
    assert [other["reason"] for other in why["also"]] == [
        other.reason.code for other in entry.decision.decision.findings[1:]
    ]
    (row,) = cli("queue", "--output", "json").json()
    assert (row["reason"], row["sentence"]) == (why["reason"], why["sentence"])
    assert (row["since"], row["position"]) == (why["since"], why["position"])
    (item,) = queue_route()
    assert [each["code"] for each in item["reasons"]] == [
        each.reason.code for each in entry.decision.decision.findings
    ]
    assert item["reasons"][0]["sentence"] == finding.text
    assert (item["position"], item["of"], item["pool"]) == (1, 1, "eaco")
    assert shown_instant(item["since_s"]) == why["since"]
    words = cli("why", WAITER).out
    assert f"{case.reason.code}, since {why['since']}" in words
    assert finding.text in words
    assert "position 1 of 1 in pool eaco" in words


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_c63_the_reason_goes_with_its_cause(case: Case, cluster: Cluster, cli: Cli) -> None:
    """One cycle after the cause is gone the reason is another one, or the job has its GPUs."""
    case.cause(cluster)
    cluster.plan()
    before = cli("why", WAITER, "--output", "json").json()[0]["reason"]
    case.cure(cluster)
    cluster.plan()
    (after,) = cli("why", WAITER, "--output", "json").json()
    assert before == case.reason.code
    assert after["reason"] != before
    assert after["state"] == "leased"
    assert [event["event"] for event in after["story"]] == ["granted"]


def test_c63_a_deadline_that_cannot_be_met_is_told_as_it_is_stored(cluster: Cluster, cli: Cli) -> None:
    """A rejected job keeps code, sentence and since when; it has no place in the queue any more."""
    cluster.store.profiles.save_all([make_solo("A", units_total=100)])
    cluster.add_node()
    cluster.add(job(cluster, deadline_s=120.0, progress=make_progress(0, 100)))
    cluster.plan()
    story = cluster.store.reads.story(WAITER)
    assert story is not None
    stored = story.decisions[-1].decision
    assert stored.reason is Reason.DEADLINE_UNREACHABLE
    (why,) = cli("why", WAITER, "--output", "json").json()
    assert (why["state"], why["reason"]) == ("rejected", "deadline_unreachable")
    assert why["sentence"] == stored.findings[0].text
    assert why["since"].endswith(" UTC")
    assert why["position"] is None
    assert cli("queue").out == "no task waits\n"


def test_c63_a_job_behind_another_has_the_second_position(cluster: Cluster, cli: Cli) -> None:
    """The queue is listed in planned order, whatever the order of arrival."""
    cluster.add(job(cluster, "late", run_after_s=200.0), job(cluster, "early", run_after_s=100.0))
    cluster.plan()
    rows = cli("queue", "--output", "json").json()
    assert [(row["position"], row["job"]) for row in rows] == [("1", "early"), ("2", "late")]
    assert "position 2 of 2" in cli("why", "late").out


def test_c63_since_when_stays_while_the_reason_stays(cluster: Cluster, cli: Cli) -> None:
    """Planning again without a change does not make the reason look new."""
    cluster.add(job(cluster))
    cluster.plan()
    before = cli("why", WAITER, "--output", "json").json()[0]["since"]
    cluster.plan()
    assert cli("why", WAITER, "--output", "json").json()[0]["since"] == before


def test_c63_before_the_first_plan_nothing_is_guessed(cluster: Cluster, cli: Cli) -> None:
    """A job that no planner has seen says so, and has no position."""
    cluster.add(job(cluster))
    (why,) = cli("why", WAITER, "--output", "json").json()
    assert (why["reason"], why["since"], why["position"]) == ("unknown", "unknown", None)
    (row,) = cli("queue", "--output", "json").json()
    assert (row["position"], row["reason"]) == ("unknown", "unknown")
