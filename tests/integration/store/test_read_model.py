"""What CLI and UI read: queue, places, standing decisions, stories, numbers that agree with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    Verdict,
    hold,
    reject,
)
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import Job, Progress
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.read_model import QueueEntry, ReadModel
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

START_S = 1_790_000_000.0
FULL = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 0, "sharing": "no"}))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_S)


@pytest.fixture
def database(engine: Engine, clock: ManualClock) -> Database:
    return database_on(engine, clock)


@pytest.fixture
def ledger(database: Database) -> SqlLedger:
    ledger = SqlLedger(database)
    ledger.save_nodes([make_node()])
    return ledger


@pytest.fixture
def log(database: Database) -> SqlDecisionLog:
    return SqlDecisionLog(database)


@pytest.fixture
def reader(database: Database) -> ReadModel:
    return ReadModel(database)


def queue_up(ledger: SqlLedger, clock: ManualClock, *names: str) -> list[Job]:
    """Hand over jobs of one kind, one second apart; return them as they are stored."""
    for name in names:
        clock.advance(1)
        ledger.add_waiting(make_job(name, queued_s=clock.now_s()), "x")
    stored = {record.job.job_id: record.job for record in ledger.view().jobs}
    return [stored[name] for name in names]


def plan(clock: ManualClock, decision: AdmissionDecision, *jobs: Job, pool: str = "eaco") -> Plan:
    order = tuple(job.job_id for job in jobs)
    items = (KindDecision(jobs[0].kind, order, decision),) if jobs else ()
    return Plan(pool, clock.now_s(), decisions=items, order=order)


def admit(clock: ManualClock, job: Job, placement: Placement) -> Plan:
    return plan(clock, AdmissionDecision(Verdict.ADMIT, placement=placement), job)


def told(entries: list[QueueEntry]) -> list[tuple[str, int | None, int | None, Reason | None]]:
    return [
        (
            entry.record.job.job_id,
            entry.position,
            entry.length,
            entry.decision and entry.decision.decision.reason,
        )
        for entry in entries
    ]


def test_c63_every_waiting_job_has_reason_place_and_since(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """One row of the kind tells each of its jobs why it waits, where it stands and from when on."""
    first, second = queue_up(ledger, clock, "first", "second")
    log.record(plan(clock, FULL, second, first))
    (third,) = queue_up(ledger, clock, "third")
    assert told(reader.queue()) == [
        ("second", 1, 2, Reason.WAITING_FOR_GPU),
        ("first", 2, 2, Reason.WAITING_FOR_GPU),
        ("third", None, None, None),
    ]
    assert {entry.since_s for entry in reader.queue()[:2]} == {START_S + 2}
    log.record(plan(clock, FULL, second, first, third))
    last = reader.queue()[-1]
    # The answer is older than the job: for the job it holds from its own queueing on.
    assert (last.record.job.job_id, last.position, last.since_s) == ("third", 3, START_S + 3)


def test_c63_a_new_cause_is_shown_with_its_own_beginning(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """After the next plan the reason and since when are the new ones."""
    (job,) = queue_up(ledger, clock, "j")
    log.record(plan(clock, FULL, job))
    clock.advance(60)
    log.record(plan(clock, hold(Finding(Reason.DRAINING, {"nodes": "n1"})), job))
    (entry,) = reader.queue()
    assert entry.decision is not None
    assert (entry.decision.decision.reason, entry.since_s) == (Reason.DRAINING, START_S + 61)


def test_c63_jobs_of_one_kind_that_were_told_apart_show_what_each_was_told(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """The one who is next waits for a GPU, the others for him; when he has gone the second is next.

    An answer that stays has its first beginning, whoever it is given to.
    """
    jobs = queue_up(ledger, clock, "a", "b", "c", "d")
    kind, behind = jobs[0].kind, hold(Finding(Reason.RESERVED_FOR_EARLIER_JOB))
    for first in range(2):
        ids = tuple(job.job_id for job in jobs[first:])
        items = KindDecision(kind, ids[:1], FULL), KindDecision(kind, ids[1:], behind)
        log.record(Plan("eaco", clock.now_s(), decisions=items, order=ids))
        assert told(reader.queue()) == [
            (ids[0], 1, len(ids), Reason.WAITING_FOR_GPU),
            *(
                (job_id, place, len(ids), Reason.RESERVED_FOR_EARLIER_JOB)
                for place, job_id in enumerate(ids[1:], 2)
            ),
        ]
        assert {entry.since_s for entry in reader.queue()} == {START_S + 4}
        ledger.finish_waiting(ids[0], JobPhase.REMOVED)
        clock.advance(60)


def test_a_kind_of_another_pool_is_another_answer(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """A job is told the answer of the GPU pool that plans it, whatever another pool says of its kind."""
    ours, theirs = queue_up(ledger, clock, "ours", "theirs")
    log.record(plan(clock, FULL, ours, pool="a"))
    log.record(plan(clock, hold(Finding(Reason.NO_WORKER, {"pool": "b"})), theirs, pool="b"))
    assert told(reader.queue()) == [
        ("ours", 1, 1, Reason.WAITING_FOR_GPU),
        ("theirs", 1, 1, Reason.NO_WORKER),
    ]


def test_c64_places_close_up_when_a_job_leaves(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """Between two plans the queue's length is that of the list, without those that have left."""
    jobs = queue_up(ledger, clock, "a", "b", "c")
    log.record(plan(clock, FULL, *jobs))
    ledger.finish_waiting("a", JobPhase.REMOVED)
    assert [(name, at, of) for name, at, of, _ in told(reader.queue())] == [("b", 1, 2), ("c", 2, 2)]


def test_c64_an_overview_is_of_one_instant(
    database: Database, ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """Queue, leases, nodes, planner and energy of one page belong together."""
    waiting, holder = queue_up(ledger, clock, "waiting", "holder")
    lease = grant(ledger, "holder", place(0))
    log.record(plan(clock, FULL, waiting))
    SqlEnergyLog(database).add(EnergyPart("holder", lease.token, "GPU-n1-0", 7.5, 1.0, EnergyMethod.MODEL))
    assert SqlPlannerLock(database).acquire("scheduler", 30)
    page = reader.overview()
    assert page.view == ledger.view()
    assert [entry.record.job for entry in page.queue] == [waiting]
    assert [found.job_id for found in page.view.leases] == [holder.job_id]
    assert page.energy_j == 7.5
    assert page.planner is not None
    assert (page.planner.owner, page.planner.expires_s) == ("scheduler", clock.now_s() + 30)


def test_an_empty_store_shows_nothing(reader: ReadModel) -> None:
    """Nothing stored is an empty page, and unknown energy is not zero."""
    page = reader.overview()
    assert (page.queue, page.readings, page.planner, page.energy_j) == ((), {}, None, None)
    assert reader.story("nobody") is None
    assert reader.newest_job([]) is None


def test_a_story_tells_the_whole_way_of_a_job(
    database: Database, ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """What a job heard while it waited, its admissions, events, leases and energy; nothing of others."""
    (job,) = queue_up(ledger, clock, "j")
    log.record(plan(clock, FULL, job))
    clock.advance(10)
    log.record(admit(clock, job, place(0)))
    lease = grant(ledger, "j", place(0))
    ledger.set_running(lease.token, "process")
    log.record_event("j", "launched", "on n1", clock.now_s())
    log.record_event("other", "launched", "on n1", clock.now_s())
    clock.advance(10)
    # Another job of the very same kind waits later: not this one's story.
    (twin,) = queue_up(ledger, clock, "twin")
    log.record(plan(clock, hold(Finding(Reason.NO_ENERGY_GAIN)), replace(twin, queued_s=job.queued_s)))
    ledger.save_progress("j", Progress(3, 10, 30.0, can_yield=True), None)
    SqlEnergyLog(database).add(EnergyPart("j", lease.token, "GPU-n1-0", 5.0, 20.0, EnergyMethod.COUNTER))
    ledger.release(lease.token, JobPhase.YIELDED)
    ledger.add_waiting(job, "x")
    back = next(record.job for record in ledger.view().jobs if record.job.job_id == "j")
    log.record(plan(clock, hold(Finding(Reason.RESIDENT_LIMIT, {"limit": 4})), back))
    story = reader.story("j")
    assert story is not None
    assert [(found.decision.verdict, found.decision.reason) for found in story.decisions] == [
        (Verdict.HOLD, Reason.WAITING_FOR_GPU),
        (Verdict.ADMIT, None),
        (Verdict.HOLD, Reason.RESIDENT_LIMIT),
    ]
    assert [event.event for event in story.events] == ["launched"]
    assert [found.token for found in story.leases] == [lease.token]
    assert story.energy is not None
    assert story.energy.energy_j == 5.0
    assert story.entry is not None
    assert (story.entry.position, story.entry.length) == (1, 1)


def test_who_was_admitted_was_not_told_what_the_rest_of_its_kind_was(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """One cycle admits a job and holds another of its kind: each story has its own answer and no other."""
    first, second = queue_up(ledger, clock, "first", "second")
    own = KindDecision(first.kind, ("first",), AdmissionDecision(Verdict.ADMIT, placement=place(0)))
    log.record(Plan("eaco", clock.now_s(), decisions=(own, KindDecision(second.kind, ("second",), FULL))))
    grant(ledger, "first", place(0))
    verdicts = {
        job_id: [found.decision.verdict for found in story.decisions]
        for job_id in ("first", "second")
        if (story := reader.story(job_id)) is not None
    }
    assert verdicts == {"first": [Verdict.ADMIT], "second": [Verdict.HOLD]}


def test_a_rejected_job_keeps_its_reason(
    ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """The story of a job that was rejected ends with why, also after later plans."""
    (job,) = queue_up(ledger, clock, "j")
    log.record(plan(clock, reject(Finding(Reason.NO_SUCH_GPU, {"wanted": "82 GiB"})), job))
    ledger.finish_waiting("j", JobPhase.REJECTED)
    clock.advance(5)
    log.record(plan(clock, FULL))
    story = reader.story("j")
    assert story is not None
    assert [found.decision.reason for found in story.decisions] == [Reason.NO_SUCH_GPU]
    assert (story.entry, story.record.ended_s) == (None, START_S + 1)


def test_jobs_of_a_task_newest_first(ledger: SqlLedger, reader: ReadModel, clock: ManualClock) -> None:
    """A task's jobs are found by its names and map index, ended ones too, the last queued first."""
    job = make_job("early", queued_s=clock.now_s())
    ledger.add_waiting(job, "x")
    ledger.finish_waiting("early", JobPhase.REMOVED)
    for index in (0, 1):
        order = replace(job.order, job_id=f"late-{index}", map_index=index)
        ledger.add_waiting(
            replace(job, job_id=order.job_id, order=order, queued_s=clock.now_s() + 1 + index), "x"
        )

    def names(map_index: int | None = None) -> list[str]:
        return [record.job.job_id for record in reader.jobs_of_task("dag", "task", map_index)]

    assert names() == ["late-1", "late-0", "early"]
    assert names(1) == ["late-1"]
    assert names(7) == []
    newest = reader.newest_job(["early", "late-0", "nobody"])
    assert newest is not None
    assert newest.job.job_id == "late-0"
    early = reader.job("early")
    assert early is not None
    assert early.phase is JobPhase.REMOVED


def test_a_page_takes_a_fixed_number_of_queries(
    engine: Engine, ledger: SqlLedger, log: SqlDecisionLog, reader: ReadModel, clock: ManualClock
) -> None:
    """A page costs as many queries with thirty jobs as with one."""
    counts = []
    statements: list[str] = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda _c, _cursor, text, *_rest: statements.append(text)
    )
    for names in (["j0"], [f"j{index}" for index in range(1, 30)]):
        queue_up(ledger, clock, *names)
        jobs = [record.job for record in ledger.view().jobs]
        log.record(plan(clock, FULL, *jobs))
        statements.clear()
        assert len(reader.overview().queue) == len(jobs)
        counts.append(len(statements))
    assert counts[0] == counts[1]
