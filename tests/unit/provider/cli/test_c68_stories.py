"""The stories of many jobs are read at once, and each is the one that its job has alone (case C68)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.energy.accounting import SplitRule
from airflow_provider_eaco.core.energy.records import RunNote
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store import energy_tables, schema
from airflow_provider_eaco.store.session import DatabaseClock
from tests.builders import make_job
from tests.unit.provider.cli.rig import OWNER, Cluster
from tests.unit.provider.cli.test_c68_long_queue import counted

Get = Callable[..., Any]
TOLD_EVERY_S = 10.0
KINDS_OF_STORY = ("ended", "running", "beside", "waiting")


@pytest.fixture
def run_jobs() -> list[str]:
    """The job ids of the one DAG run there is."""
    return []


@pytest.fixture
def get(cluster: Cluster, run_jobs: list[str], monkeypatch: pytest.MonkeyPatch) -> Get:
    """Ask for stories as a user who may see everything."""
    with warnings.catch_warnings():
        # They would like another HTTP client than the one that Airflow brings.
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.core_api.security import get_user
        from fastapi import FastAPI
        from fastapi.testclient import TestClient

        from airflow_provider_eaco.provider.api import jobs_shown, stories

    monkeypatch.setattr(stories, "the_store", lambda: cluster.store)
    monkeypatch.setattr(stories, "job_ids_of_run", lambda *_: list(run_jobs))
    monkeypatch.setattr(jobs_shown, "permitted_dags", lambda user, dag_ids, method: set(dag_ids))
    app = FastAPI()
    app.include_router(stories.router)
    app.dependency_overrides[get_user] = lambda: None
    for each in (stories.CanSee, stories.CanSeeTasks):
        app.dependency_overrides[each.dependency] = lambda: None
    return TestClient(app).get


def id_of(kind: str, number: int) -> str:
    return str(uuid5(NAMESPACE_OID, f"{kind} {number}"))


def add_stories(cluster: Cluster, number: int) -> list[str]:
    """Let one job end on a GPU, two share it, and one wait for it; return their ids."""
    node = f"n{number}"
    cluster.add_node(node, gpus=2)
    ids = [id_of(kind, number) for kind in KINDS_OF_STORY]
    now_s = cluster.store.clock.now_s() - 1000
    for place, (kind, job_id) in enumerate(zip(KINDS_OF_STORY, ids, strict=True)):
        wide = 2 if kind == "waiting" else 1
        cluster.add(
            make_job(job_id, f"{kind}-{number}", wide, task_id=kind, map_index=number, queued_s=now_s + place)
        )
    ended, running, beside, _ = ids
    use(cluster, hold(cluster, ended, node, LeaseState.EXCLUSIVE), 100.0 * (number + 1))
    cluster.end(ended)
    use(cluster, hold(cluster, running, node, LeaseState.EXCLUSIVE), 200.0 * (number + 1))
    use(cluster, hold(cluster, beside, node, LeaseState.TRIAL), 300.0 * (number + 1))
    return ids


def admission(cluster: Cluster, number: int) -> KindDecision:
    """Return why the third job of these stories was let in beside the second."""
    node, job_id = f"n{number}", id_of("beside", number)
    job = next(record.job for record in cluster.store.ledger.view().jobs if record.job.job_id == job_id)
    beside = (id_of("running", number),)
    place = Placement(node, (f"{node}-gpu00",))
    return KindDecision(job.kind, (job_id,), AdmissionDecision(Verdict.ADMIT, (), place, beside))


def hold(cluster: Cluster, job_id: str, node: str, state: LeaseState) -> Lease:
    ledger = cluster.store.ledger
    job = next(record.job for record in ledger.view().jobs if record.job.job_id == job_id)
    launch = Launch(job, Placement(node, (f"{node}-gpu00",)), ())
    lease = ledger.grant(launch, state, ledger.view().gpu_versions, OWNER)
    assert ledger.set_running(lease.token, f"process-of-{job_id}")
    cluster.store.decisions.record_event(job_id, "granted", f"of {job_id}", lease.granted_s)
    return lease


def use(cluster: Cluster, lease: Lease, joules: float) -> None:
    energy, (uuid,) = cluster.store.energy, lease.placement.gpu_uuids
    energy.add(EnergyPart(lease.job_id, lease.token, uuid, joules, 10.0, EnergyMethod.COUNTER))
    energy.note_run(RunNote(lease.job_id, lease.token, joules, frozenset({SplitRule.EQUAL})))


@pytest.fixture
def told(cluster: Cluster, engine: Engine, run_jobs: list[str]) -> list[str]:
    """Three of each kind of story, with decisions, and curves of two points."""
    for number in range(3):
        run_jobs += add_stories(cluster, number)
    items = tuple(admission(cluster, number) for number in range(3))
    cluster.store.decisions.record(Plan("eaco", cluster.store.clock.now_s(), decisions=items))
    run_table = energy_tables.energy_run
    with engine.begin() as connection:
        for token, granted_s in connection.execute(
            sa.select(schema.lease.c.token, schema.lease.c.granted_at)
        ).all():
            curve = [[granted_s + 1, token * 10.0, 1.0], [granted_s + 3, token * 50.0, 3.0]]
            of_lease = sa.update(run_table).where(run_table.c.token == token)
            connection.execute(of_lease.values(curve=curve))
    cluster.plan()
    return run_jobs


def test_c68_a_page_of_stories_is_one_read(told: list[str], get: Get, engine: Engine) -> None:
    """A page of stories sends as many statements for twelve jobs as for four of the same kinds (C68)."""
    sent = []
    for jobs in (told[:4], told[:]):
        told[:] = jobs
        with counted(engine) as statements:
            assert len(asked(get)["items"]) == len(jobs)
        sent.append(len(statements))
    assert sent[0] == sent[1] > 0


def test_c68_each_story_of_a_page_is_that_of_its_job(told: list[str], get: Get) -> None:
    """What is read together is told apart again: nobody has another's rows, the newest is first (C68)."""
    items = {story["job_id"]: story for story in asked(get)["items"]}
    newest = sorted(items.values(), key=lambda story: (-story["queued_s"], story["job_id"]))
    assert list(items) == [story["job_id"] for story in newest]
    assert sorted(items) == sorted(told)
    for job_id, story in items.items():
        assert without_time(get(f"/jobs/{job_id}").json()) == without_time(story)
        kind, number = story["task_id"], story["map_index"]
        if kind == "waiting":
            assert (story["stays"], story["events"], story["energy_record"]) == ([], [], None)
            assert (story["state"], bool(story["reasons"]), len(story["decisions"])) == ("waiting", True, 1)
            continue
        rank = KINDS_OF_STORY.index(kind) + 1
        [stay] = story["stays"]
        assert (stay["node"], stay["gpus"], stay["energy_j"]) == (
            f"n{number}",
            [0],
            100 * rank * (number + 1),
        )
        assert [step["mean_w"] for step in stay["watts"]][:2] == [stay["token"] * 10, stay["token"] * 20]
        other = {"running": "beside", "beside": "running"}.get(kind)
        assert [each["task_id"] for each in stay["beside"]] == ([] if other is None else [other])
        assert [each["map_index"] for each in stay["beside"]] == ([] if other is None else [number])
        assert [event["text"] for event in story["events"]] == [f"of {job_id}"]
        assert story["energy_record"]["energy_j"] == stay["energy_j"]
        admitted = [[each["job_id"] for each in found["co_residents"]] for found in story["decisions"]]
        assert admitted == ([[id_of("running", number)]] if kind == "beside" else [])


def test_c68_time_alone_changes_no_story_of_the_past(
    told: list[str], get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ended jobs the second answer is 304 for ever, of others until their times are to be told anew."""
    begin_s = 2_000_000_000.0

    def status(after_s: float, etag: str) -> int:
        monkeypatch.setattr(DatabaseClock, "now_s", lambda _: begin_s + after_s)
        return int(asked_at(get, {"If-None-Match": etag}).status_code)

    monkeypatch.setattr(DatabaseClock, "now_s", lambda _: begin_s)
    waits = asked_at(get).headers["etag"]
    assert (status(1, waits), status(TOLD_EVERY_S, waits)) == (304, 200)
    told[:] = told[:1]
    monkeypatch.setattr(DatabaseClock, "now_s", lambda _: begin_s)
    ended = asked_at(get).headers["etag"]
    assert (status(1, ended), status(10 * TOLD_EVERY_S, ended)) == (304, 304)
    assert ended != waits


def asked(get: Get) -> dict[str, Any]:
    answer = asked_at(get)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def asked_at(get: Get, headers: dict[str, str] | None = None) -> Any:
    return get("/task-jobs?dag_id=dag&run_id=run&limit=50", headers=headers or {})


def without_time(story: dict[str, Any]) -> dict[str, Any]:
    timed = {"now_s"} if story["state"] != "waiting" else {"now_s", "waited_s"}
    return {name: value for name, value in story.items() if name not in timed}
