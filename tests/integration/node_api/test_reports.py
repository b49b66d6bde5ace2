"""What a node may do: report, ask whether it may begin a run, and tell what became of it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import ForeignProcess, GpuHealth
from airflow_provider_eaco.core.node_runs import RunState
from airflow_provider_eaco.store.schema import node as node_table
from tests.integration.node_api.gate import SILENT_S, Gate, gpu_of, report_of


def state_of(gate: Gate) -> RunState:
    return gate.runs.runs([gate.lease.token])[gate.lease.token].state


def begun(gate: Gate, **more: object) -> object:
    """Have node one begin the run and report it."""
    assert gate.start("one", gate.lease.token).json()["start"] is True
    news = [{"token": gate.lease.token, "state": "running", "process": "1:2:h:b:3:job", **more}]
    living = [{"job_id": "job", "token": gate.lease.token}]
    answer = gate.report("one", news=news, living=living)
    assert answer.status_code == 200, answer.text
    return answer.json()


def be_silent(gate: Gate, silent_s: float = SILENT_S + 1) -> None:
    """Let the node's last report be so old."""
    with gate.engine.begin() as connection:
        last = gate.node("one").last_report_s
        old = sa.update(node_table).where(node_table.c.name == "one")
        connection.execute(old.values(last_report_at=(last or 0.0) - silent_s))


def test_a_report_makes_the_node_known(gate: Gate) -> None:
    """A node and its GPUs are in the ledger as reported, by the database's clock."""
    node = gate.node("one")
    assert [gpu.uuid for gpu in node.gpus] == [gpu_of("one", 0), gpu_of("one", 1)]
    assert node.available
    assert gate.ledger.view().now_s - (node.last_report_s or 0.0) < SILENT_S


def test_a_run_begins_once(gate: Gate) -> None:
    """The node may begin what was sent to it and learns GPUs and family; after it has begun nobody may."""
    answer = gate.start("one", gate.lease.token).json()
    told = {"family": "J1", "gpu_uuids": [gpu_of("one", 0)], "alone": True, "memory_margin_mib": None}
    assert answer == {"v": 2, "start": True, **told}
    assert gate.start("one", gate.lease.token).json() == answer, "the answer was lost: it asks again"
    begun(gate)
    assert gate.start("one", gate.lease.token).json() == {"v": 2, "start": False}


@pytest.mark.parametrize(
    ("node", "job_id", "offset"),
    [("two", "job", 0), ("one", "other", 0), ("one", "job", 1000)],
    ids=["another node's", "another job's", "nobody's"],
)
def test_a_run_of_somebody_else_does_not_begin(node: str, job_id: str, offset: int, gate: Gate) -> None:
    """A lease begins on its own node, for its own job, and only if there is one."""
    assert gate.start(node, gate.lease.token + offset, job_id).json() == {"v": 2, "start": False}
    assert state_of(gate) is RunState.ORDERED


def test_a_lease_that_was_never_sent_does_not_begin(gate: Gate) -> None:
    """A message that nobody wrote down starts nothing."""
    lease = gate.grant("unsent", "one", index=1)
    assert gate.start("one", lease.token, "unsent").json() == {"v": 2, "start": False}


def test_what_was_taken_back_does_not_begin(gate: Gate) -> None:
    """A message that arrives after its order was taken back starts nothing."""
    assert gate.runs.take_back(gate.lease.token, 0.0)
    assert gate.start("one", gate.lease.token).json() == {"v": 2, "start": False}
    assert state_of(gate) is RunState.TAKEN_BACK


def test_what_has_begun_is_not_taken_back(gate: Gate) -> None:
    """Between a claim and a taking back one is first, and the other is told so."""
    gate.start("one", gate.lease.token)
    assert not gate.runs.take_back(gate.lease.token, 0.0)


def test_a_young_order_is_not_taken_back(gate: Gate) -> None:
    """An order is taken back only once it is as old as asked, by the database's clock."""
    assert not gate.runs.take_back(gate.lease.token, 60.0)


def test_a_released_lease_does_not_begin(gate: Gate) -> None:
    """A token is refused once its lease has fallen."""
    gate.ledger.release(gate.lease.token, JobPhase.WAITING)
    assert gate.start("one", gate.lease.token).json() == {"v": 2, "start": False}


def test_the_answer_lists_what_may_run(gate: Gate) -> None:
    """Each report is answered with the runs that the node may have, until they have ended."""
    answer = begun(gate)
    assert [run["token"] for run in answer["runs"]] == [gate.lease.token]
    assert answer["runs"][0]["stop"] is False
    ended = [{"token": gate.lease.token, "state": "ended", "exit_code": 3}]
    assert gate.report("one", news=ended).json()["runs"] == []
    run = gate.runs.runs([gate.lease.token])[gate.lease.token]
    assert (run.state, run.exit_code, run.begun) == (RunState.ENDED, 3, True)


def test_the_same_news_twice_changes_nothing(gate: Gate) -> None:
    """A report whose answer was lost is sent again and counts once; news of a closed run is ignored."""
    begun(gate)
    ended = [{"token": gate.lease.token, "state": "ended", "exit_code": 3}]
    gate.report("one", news=ended)
    before = gate.everything()
    gate.report("one", news=ended)
    gate.report("one", news=[{"token": gate.lease.token, "state": "running"}])
    assert gate.everything() == before


def test_a_stop_reaches_the_node_with_its_next_report(gate: Gate) -> None:
    """A run that is to end is marked in the answer, with its grace."""
    begun(gate)
    gate.runs.ask_to_stop(gate.lease.token, 7.0)
    [run] = gate.report("one", living=[{"job_id": "job", "token": gate.lease.token}]).json()["runs"]
    assert (run["stop"], run["grace_s"]) == (True, 7.0)


def test_a_stop_before_the_start_takes_the_order_back(gate: Gate) -> None:
    """Who is to end before it has begun never begins."""
    gate.runs.ask_to_stop(gate.lease.token, 7.0)
    assert state_of(gate) is RunState.TAKEN_BACK


def test_a_silent_node_may_lose_its_run_but_not_a_heard_one(gate: Gate) -> None:
    """A run is given up only while its node is silent for that long (C26)."""
    begun(gate)
    assert not gate.runs.abandon(gate.lease.token, SILENT_S)
    be_silent(gate)
    assert gate.runs.abandon(gate.lease.token, SILENT_S)
    assert state_of(gate) is RunState.ABANDONED


def test_a_node_with_a_stray_run_takes_nothing_new(gate: Gate) -> None:
    """A node that comes back with a run that was given up has to end it before it gets anything (C26)."""
    begun(gate)
    be_silent(gate)
    gate.runs.abandon(gate.lease.token, SILENT_S)
    gate.ledger.release(gate.lease.token, JobPhase.FAILED)
    living = [{"job_id": "job", "token": gate.lease.token}]
    assert gate.report("one", living=living).json()["runs"] == []
    assert not gate.node("one").available
    ended = [{"token": gate.lease.token, "state": "ended", "exit_code": 137}]
    gate.report("one", news=ended)
    assert gate.node("one").available


def test_a_node_that_leaves_takes_nothing_new(gate: Gate) -> None:
    """A worker that is told to stop says so, and its node is not available until one reports again."""
    gate.report("one", available=False)
    assert not gate.node("one").available
    gate.report("one")
    assert gate.node("one").available


def test_a_drained_node_stays_drained(gate: Gate) -> None:
    """What a user said of a node outlives its reports."""
    gate.ledger.set_draining("one", True)
    gate.report("one")
    assert gate.node("one").draining


def test_another_machine_takes_over_after_silence(gate: Gate) -> None:
    """A credential works on one machine at a time; a new credential opens another machine at once."""
    assert gate.report("one", machine="other").status_code == 409
    gate.secrets["one"] = gate.credentials.add("one")
    assert gate.report("one", machine="other").status_code == 200
    assert gate.report("one").status_code == 409


def test_readings_are_of_now(gate: Gate) -> None:
    """What a node reads of its GPUs is kept at the database's instant, unknown values as unknown."""
    gate.report("one", readings=[{"uuid": gpu_of("one"), "power_w": 120.5, "utilisation_pct": None}])
    readings = {reading.uuid: reading for reading in gate.reports.readings()}
    assert readings[gpu_of("one")].power_w == 120.5
    assert readings[gpu_of("one")].utilisation_pct is None
    assert readings[gpu_of("two")].power_w is None
    assert abs(readings[gpu_of("one")].at_s - gate.ledger.view().now_s) < SILENT_S


def test_a_lost_gpu_that_is_held_stays_with_unknown_health(gate: Gate) -> None:
    """A GPU that its node no longer reports goes, unless it is leased (C51)."""
    gate.report("one", gpus=report_of("one")["gpus"][1:])
    health = {gpu.uuid: gpu.health for gpu in gate.node("one").gpus}
    assert health == {gpu_of("one", 0): GpuHealth.UNKNOWN, gpu_of("one", 1): GpuHealth.HEALTHY}


def test_what_a_run_was_seen_to_need_is_kept(gate: Gate) -> None:
    """The node's meter of a run that has ended can be read where the run teaches."""
    begun(gate)
    meter = {"memory_peak_mib": 4096, "power_w": 150.0, "scope": "board"}
    gate.report("one", news=[{"token": gate.lease.token, "state": "ended", "exit_code": 0, "meter": meter}])
    seen = gate.runs.meter(gate.lease.token)
    assert seen is not None
    assert (seen.memory_peak_mib, seen.power_w, seen.utilisation_pct, seen.scope.value) == (
        4096,
        150.0,
        None,
        "board",
    )


def test_both_formats_are_taken(gate: Gate) -> None:
    """An older worker is answered in its own format; a newer one also learns of limits on its boards."""
    old = gate.start("one", gate.lease.token).json()
    new = gate.start("one", gate.lease.token, v=3).json()
    assert new == {**old, "v": 3, "power_limit_w": None}
    for version in (2, 3):
        answer = gate.report("one", v=version).json()
        assert (answer["v"], answer["newest"]) == (version, 3)
        assert ("limits" in answer) == (version == 3)


def test_c36_a_living_run_s_memory_only_grows(gate: Gate) -> None:
    """The scheduler sees what its node saw, a new worker of which begins to look anew; after its end it is
    still the least that the run is known to have needed (C36, C37).
    """
    begun(gate)
    assert gate.runs.peaks_mib() == {}
    for peak_mib in (5000, 3000):
        told = gate.report("one", peaks=[{"token": gate.lease.token, "memory_mib": peak_mib}])
        assert told.status_code == 200, told.text
        assert gate.runs.peaks_mib() == {gate.lease.token: 5000}
    ended = {"token": gate.lease.token, "state": "ended", "exit_code": 0, "meter": {"memory_peak_mib": 4096}}
    gate.report("one", news=[ended])
    assert gate.runs.peaks_mib() == {}
    seen = gate.runs.meter(gate.lease.token)
    assert seen is not None
    assert seen.memory_peak_mib == 5000


def test_c34_strangers_on_a_node_are_seen_by_the_scheduler(gate: Gate) -> None:
    """Processes and memory of somebody else arrive as they were read; what is unknown stays so."""
    gate.report("one", readings=[{"uuid": gpu_of("one"), "foreign_processes": 2}])
    readings = {reading.uuid: reading for reading in gate.reports.readings()}
    assert readings[gpu_of("one")].is_used_by_others(512) is True
    assert readings[gpu_of("one", 1)].is_used_by_others(512) is None
    by = [{"pid": 4711, "user": "alice"}, {"pid": 4712}]
    told = gate.report(
        "one", v=3, readings=[{"uuid": gpu_of("one"), "foreign_processes": 2, "foreign_by": by}]
    )
    assert told.status_code == 200, told.text
    readings = {reading.uuid: reading for reading in gate.reports.readings()}
    assert readings[gpu_of("one")].foreign_by == (ForeignProcess(4711, "alice"), ForeignProcess(4712))


def test_a_withdrawn_lease_does_not_begin(gate: Gate) -> None:
    """What was withdrawn before it was sent, or before its node asked, never begins; what has begun stays."""
    unsent = gate.grant("unsent", "one", index=1)
    assert gate.runs.withdraw(unsent.token, "unsent", "one")
    gate.runs.order(unsent.token, "unsent", "one")
    assert gate.start("one", unsent.token, "unsent").json()["start"] is False
    gate.start("one", gate.lease.token)
    assert not gate.runs.withdraw(gate.lease.token, "job", "one")
    assert state_of(gate) is RunState.CLAIMED
