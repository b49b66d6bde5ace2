"""Tasks of another executor, from their processes on GPUs to their stories, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.energy.accounting import EnergyMethod
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.dispatch.task_processes import TaskProcesses
from airflow_provider_eaco.engine.progress import Report, UnitTime
from airflow_provider_eaco.provider.observer import Observer
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.builders import make_job
from tests.integration.node_api.sampled import NODE, Sampled, id_of, started
from tests.process_tree import tree


def test_a_task_is_metered_decided_about_and_ends_with_a_record(sampled: Sampled) -> None:
    """While it lives it runs, holds nothing, and its story has the decision; at its end it has a record of
    what the counter gave it, and its run has taught what it drew and needed.
    """
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(40)
    story = sampled.story(1)
    assert story is not None
    assert (story.record.phase, story.record.job.pool) == (JobPhase.RUNNING, "default_pool")
    assert sampled.events(1)["observed"].startswith(
        f"it runs on 1 GPU of {NODE}, granted by nobody; it would have been admitted: 1 GPU on {NODE}, alone"
    )
    assert (sampled.ledger.view().leases, sampled.ledger.view().jobs) == ((), ())
    assert story.energy is not None
    assert story.energy.energy_j is not None
    assert 0 < story.energy.energy_j < 4000
    task.alive = False
    sampled.use()
    sampled.state(1, "success")
    sampled.pass_s(2)
    story = sampled.story(1)
    assert story is not None
    assert story.energy is not None
    # The first of 40 s began before anybody saw it there; the last one ended after it had left.
    assert story.energy.energy_j == pytest.approx(40 * 100, abs=101)
    assert (story.energy.methods, story.energy.partial) == ({EnergyMethod.COUNTER}, False)
    assert story.record.phase is JobPhase.FINISHED
    assert [event.event for event in story.events] == ["observed", "energy"]
    assert "from the device's counter" in sampled.events(1)["energy"]
    learned = SqlProfileStore(sampled.database, built_in_book()).book()
    solo = learned.solo_of(story.record.job.request.family, "V100", 1)
    assert solo is not None
    assert (solo.power_w, solo.memory_peak_mib) == (pytest.approx(100), 1024)
    assert solo.utilisation_pct == pytest.approx(50, abs=2)
    assert (solo.unit_s, solo.checkpoints) == (None, None)
    [ended] = sampled.rows("eaco_lease")
    sampled.pass_s(10)
    assert sampled.rows("eaco_lease") == [ended]
    assert ended.released_at is not None


def test_a_process_of_no_task_is_a_stranger(sampled: Sampled) -> None:
    """It is counted as such beside an observed task, which is not."""
    sampled.task(1, pid=10)
    sampled.use((0, 10), (1, 77))
    sampled.pass_s(10)
    foreign = {row.uuid: row.foreign_processes for row in sampled.rows("eaco_gpu_reading")}
    assert foreign == {sampled.uuids[0]: 0, sampled.uuids[1]: 1}
    assert [row.job_id for row in sampled.rows("eaco_job")] == [id_of(1)]


@pytest.mark.parametrize("why", ["pid", "pool", "gone", "granted"])
def test_who_is_not_to_be_observed_is_a_stranger(why: str, sampled: Sampled) -> None:
    """A process that only bears the name of a task, one of a pool that does not observe, one that Airflow
    does not know, and one that an executor of ours runs; nothing is stored of them.
    """
    sampled.task(1, pid=10)
    if why == "pid":
        sampled.airflow[id_of(1)] = started(1, pid=11)
    elif why == "pool":
        sampled.airflow[id_of(1)] = started(1, pid=10, pool="eaco")
    elif why == "gone":
        del sampled.airflow[id_of(1)]
    else:
        hold(sampled, id_of(1))
    sampled.use((0, 10))
    sampled.pass_s(15)
    observed = [row for row in sampled.rows("eaco_lease") if row.state == "observed"]
    assert observed == []
    assert sampled.rows("eaco_energy") == []
    foreign = {row.uuid: row.foreign_processes for row in sampled.rows("eaco_gpu_reading")}
    assert foreign[sampled.uuids[0]] == 1


def hold(sampled: Sampled, job_id: str) -> None:
    """Have an executor of ours hold the other GPU for this job."""
    sampled.pass_s(6)
    job = make_job(job_id, gpus=1)
    sampled.ledger.add_waiting(job, "me")
    launch = Launch(job, Placement(NODE, (sampled.uuids[1],)), LeaseState.EXCLUSIVE)
    sampled.ledger.grant(launch, LeaseState.EXCLUSIVE, sampled.ledger.view().gpu_versions, "me")


def test_a_task_that_is_not_settled_is_not_told_of_yet(sampled: Sampled) -> None:
    """A training of two GPUs takes them one after the other: it is decided about once, with both."""
    sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(3)
    sampled.use((0, 10), (1, 10))
    sampled.pass_s(3)
    assert sampled.story(1) is None
    sampled.pass_s(8)
    assert sampled.events(1)["observed"].startswith("it runs on 2 GPUs")
    assert len(sampled.rows("eaco_event")) == 1


@pytest.mark.parametrize(("state", "phase"), [("success", JobPhase.FINISHED), ("failed", JobPhase.FAILED)])
def test_a_short_task_is_told_of_at_its_end(state: str, phase: JobPhase, sampled: Sampled) -> None:
    """It is decided about all the same, and ends as Airflow says, even if that comes later than the end."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(2)
    task.alive = False
    sampled.use()
    sampled.pass_s(2)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.RUNNING
    sampled.state(1, state)
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is phase
    assert set(sampled.events(1)) == {"observed", "energy"}


def test_a_failed_run_teaches_nothing(sampled: Sampled) -> None:
    """Nor does one that was there before the sampler (C62)."""
    failed = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    failed.alive = False
    sampled.use()
    sampled.state(1, "failed")
    sampled.pass_s(6)
    late = sampled.task(2, pid=11)
    late.began_s -= 3600
    sampled.use((0, 11))
    sampled.pass_s(10)
    late.alive = False
    sampled.use()
    sampled.state(2, "success")
    sampled.pass_s(6)
    assert sampled.rows("eaco_profile_solo") == []
    story = sampled.story(2)
    assert story is not None
    assert story.record.phase is JobPhase.FINISHED
    assert story.energy is not None
    assert story.energy.partial


@pytest.mark.parametrize(("beside", "unit_s"), [(False, 3.0), (True, None)])
def test_units_count_where_the_training_tells_them(
    beside: bool, unit_s: float | None, sampled: Sampled
) -> None:
    """Without a grant it reports them all the same; their time is that of the family only if it ran alone."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10), *[(0, 77)] * beside)
    times = tuple(UnitTime(index, 3.0, None, None) for index in range(4))
    sampled.reported[id_of(1)] = Report(id_of(1), None, 2, 4, recent=times[:2])
    sampled.pass_s(10)
    story = sampled.story(1)
    assert story is not None
    assert (story.record.job.progress.units_done, story.record.job.progress.units_total) == (2, 4)
    sampled.reported[id_of(1)] = Report(id_of(1), None, 4, 4, recent=times, can_yield=True)
    task.alive = False
    sampled.use()
    sampled.state(1, "success")
    sampled.pass_s(6)
    [profile] = sampled.rows("eaco_profile_solo")
    assert (profile.unit_s, profile.units_total, profile.checkpoints) == (unit_s, 4, True)


def test_a_training_that_did_not_come_to_its_end_teaches_nothing(sampled: Sampled) -> None:
    """Airflow calls a run that a user marked a success one, too (C62)."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.reported[id_of(1)] = Report(id_of(1), None, 2, 4)
    sampled.pass_s(10)
    task.alive = False
    sampled.use()
    sampled.state(1, "success")
    sampled.pass_s(6)
    assert sampled.rows("eaco_profile_solo") == []


def test_a_task_that_comes_back_goes_on_with_its_record(sampled: Sampled) -> None:
    """Rescheduled, with its id and another process: another lease of the same job, and joules of both."""
    first = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    first.alive = False
    sampled.use()
    sampled.state(1, "up_for_reschedule")
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.YIELDED
    again = sampled.task(1, pid=11)
    sampled.use((1, 11))
    sampled.pass_s(10)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.RUNNING
    again.alive = False
    sampled.use()
    sampled.state(1, "success")
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.energy is not None
    assert story.record.phase is JobPhase.FINISHED
    assert [lease.placement.gpu_uuids for lease in story.leases] == [(uuid,) for uuid in sampled.uuids]
    assert story.energy.per_gpu_j == {uuid: pytest.approx(1000, abs=201) for uuid in sampled.uuids}


def test_a_task_that_ended_unseen_ends_as_airflow_says(sampled: Sampled) -> None:
    """Its sampler was away: the next report of any sampler, long enough after it, ends it."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    task.alive = False
    sampled.finder.tasks.clear()
    sampled.use()
    sampled.state(1, "success")
    sampled.start_sampler()
    sampled.pass_s(30)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.RUNNING
    sampled.pass_s(40)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.FINISHED


def test_a_task_that_ends_while_nvml_is_gone_ends(sampled: Sampled) -> None:
    """Nothing can be read of the GPUs, and the process is gone all the same."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(10)
    sampled.machine.errors = {"nvmlDeviceGetPowerUsage": 18, "nvmlInitWithFlags": 18}
    sampled.pass_s(5)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.RUNNING
    task.alive = False
    sampled.state(1, "success")
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.FINISHED


def test_an_api_that_is_away_loses_nothing(sampled: Sampled) -> None:
    """What was seen meanwhile is told when it is back, with all the joules."""
    task = sampled.task(1, pid=10)
    sampled.posts.is_away = True
    sampled.use((0, 10))
    sampled.pass_s(20)
    task.alive = False
    sampled.use()
    sampled.state(1, "success")
    sampled.pass_s(10)
    assert sampled.story(1) is None
    sampled.posts.is_away = False
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.energy is not None
    assert story.energy.energy_j == pytest.approx(2000, abs=101)


@pytest.mark.parametrize("step", ["_learn", "_close"])
def test_an_end_that_was_not_told_is_told_with_a_later_report(
    step: str, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server may fail between the end of the job and what the end leaves; then, once, all of it."""
    task = sampled.task(1, pid=10)
    sampled.use((0, 10))
    sampled.pass_s(40)
    with monkeypatch.context() as broken:
        broken.setattr(Observer, step, _fail)
        task.alive = False
        sampled.use()
        sampled.state(1, "success")
        sampled.pass_s(2)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.FINISHED
    assert set(sampled.events(1)) == {"observed"}
    assert sampled.rows("eaco_profile_solo") == []
    sampled.pass_s(6)
    assert sampled.events(1)["energy"].startswith("4000 J in 40 s")
    [profile] = sampled.rows("eaco_profile_solo")
    sampled.pass_s(70)
    assert [row.event for row in sampled.rows("eaco_event")] == ["observed", "energy"]
    assert sampled.rows("eaco_profile_solo") == [profile]


def _fail(*_: object) -> None:
    raise RuntimeError("the API server fails")


def test_the_machine_offers_nothing(sampled: Sampled) -> None:
    """It is in the inventory, and nothing can be started there."""
    sampled.pass_s(6)
    [node] = sampled.ledger.view().nodes
    assert (node.name, node.available, len(node.gpus)) == (NODE, False, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "nobody"},
        {"process": "x"},
        {"pids": []},
        {"gpu_uuids": []},
        {"gpu_uuids": ["card"]},
        {"running_s": -1.0},
        {"token": 7},
        {"energy": [{"gpu_uuid": "GPU-1", "energy_j": -1.0, "seconds": 1.0, "method": "counter"}]},
    ],
)
def test_nonsense_is_refused_and_changes_nothing(changes: dict[str, object], sampled: Sampled) -> None:
    """Values that no sampler can have seen, and fields that it has no say in."""
    task = {
        "job_id": id_of(1),
        "process": "10:1:aaaa-bbbb",
        "pids": [10],
        "gpu_uuids": ["GPU-1"],
        "running_s": 1.0,
        "from_start": True,
        "alone": True,
        **changes,
    }
    sampled.airflow[id_of(1)] = started(1, pid=10)
    sent = {"v": 1, "machine": "host-1", "tasks": [task]}
    answer = sampled.posts.client.post(f"/{NODE}/observed", json=sent, headers=sampled.posts.headers)
    assert 400 <= answer.status_code < 500
    assert sampled.rows("eaco_job") == []


def test_another_credential_and_another_machine_are_refused(sampled: Sampled) -> None:
    """Without the node's credential nobody is heard, and one machine at a time is a node."""
    sampled.pass_s(6)
    sent = {"v": 1, "machine": "host-2", "tasks": []}
    client, headers = sampled.posts.client, sampled.posts.headers
    assert client.post(f"/{NODE}/observed", json=sent).status_code == 401
    assert client.post("/gpu-2/observed", json=sent, headers=headers).status_code == 401
    assert client.post(f"/{NODE}/observed", json=sent, headers=headers).status_code == 409


def test_a_real_tree_of_processes_is_mapped_to_its_task(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that a task has started, and the fork that it has made, compute for the task; this test's
    own process is a stranger.
    """
    sampled = Sampled(engine, tmp_path, monkeypatch, TaskProcesses())
    with tree(f"airflow worker -- {id_of(1)}") as (own, child, program):
        sampled.airflow[id_of(1)] = started(1, pid=own)
        sampled.use((0, child), (1, program), (1, os.getpid()))
        sampled.pass_s(12)
        assert sampled.events(1)["observed"].startswith("it runs on 2 GPUs")
        foreign = {row.uuid: row.foreign_processes for row in sampled.rows("eaco_gpu_reading")}
        assert foreign == {sampled.uuids[0]: 0, sampled.uuids[1]: 1}
    sampled.state(1, "success")
    sampled.use()
    sampled.pass_s(6)
    story = sampled.story(1)
    assert story is not None
    assert story.record.phase is JobPhase.FINISHED
    assert story.energy is not None
    assert set(story.energy.per_gpu_j) == set(sampled.uuids)
