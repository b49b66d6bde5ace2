"""What the page looks back on: leases over time with their company, past decisions, and energy by job."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.past import JobPast, PastReads
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

START_S = 1_790_000_000.0


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
def past(database: Database) -> PastReads:
    return PastReads(database)


def stay(ledger: SqlLedger, clock: ManualClock, name: str, for_s: float | None = None) -> Lease:
    """Let a job hold GPU 0, and leave after so many seconds."""
    ledger.add_waiting(make_job(name, queued_s=clock.now_s()), "x")
    lease = grant(ledger, name, place(0), state=LeaseState.EXCLUSIVE)
    if for_s is not None:
        clock.advance(for_s)
        ledger.release(lease.token, JobPhase.FAILED)
    return lease


def test_leases_between_two_instants(ledger: SqlLedger, clock: ManualClock, past: PastReads) -> None:
    """Whoever held GPUs at some time in between is there, once, oldest first; others are not."""
    stay(ledger, clock, "before", for_s=10)
    clock.advance(10)
    from_s = clock.now_s()
    clock.advance(1)
    stay(ledger, clock, "inside", for_s=10)
    stay(ledger, clock, "still")
    found = past.leases_between(from_s, clock.now_s() + 1, 10)
    assert [(span.job_id, span.released_s is None) for span in found.spans] == [
        ("inside", False),
        ("still", True),
    ]
    assert set(found.records) == {"inside", "still"}
    assert not found.is_cut
    newest = past.leases_between(from_s, clock.now_s() + 1, 1)
    assert [span.job_id for span in newest.spans] == ["still"]
    assert newest.is_cut


def test_the_company_of_a_job(ledger: SqlLedger, clock: ManualClock, past: PastReads) -> None:
    """Beside a job was who held the same GPUs at the same time, and nobody who came or left otherwise."""
    stay(ledger, clock, "before", for_s=10)
    clock.advance(1)
    own = stay(ledger, clock, "own")
    ledger.add_waiting(make_job("beside", queued_s=clock.now_s()), "x")
    clock.advance(1)
    grant(ledger, "beside", place(0), state=LeaseState.TRIAL)
    clock.advance(5)
    ledger.release(own.token, JobPhase.FAILED)
    found = past.of_jobs(["own", "before", "nobody"])
    assert [span.token for span in found["own"].spans] == [own.token]
    assert found["own"].beside == {own.token: ["beside"]}
    assert list(found["before"].beside.values()) == [[]]
    assert found["nobody"] == JobPast()


def test_decisions_come_newest_first(
    ledger: SqlLedger, clock: ManualClock, database: Database, past: PastReads
) -> None:
    """A page of decisions counts all of them, tells what was asked for, and why this placement was taken."""
    log = SqlDecisionLog(database)
    job = make_job("j", queued_s=clock.now_s())
    ledger.add_waiting(job, "x")
    held = hold(Finding(Reason.WAITING_FOR_GPU, {"wanted": 1, "free": 0, "sharing": "no"}))
    taken = AdmissionDecision(Verdict.ADMIT, placement=place(0), choice="it was free")
    for pool, decision in (("eaco", held), ("eaco", taken), ("other", held)):
        clock.advance(1)
        item = KindDecision(job.kind, (job.job_id,), decision)
        log.record(Plan(pool, clock.now_s(), decisions=(item,), order=(job.job_id,)))
    page = past.decisions(None, 2, 0)
    assert (page.total, [each.pool for each in page.decisions]) == (3, ["other", "eaco"])
    assert page.decisions[1].decision.choice == "it was free"
    assert (page.decisions[0].family, page.decisions[0].gpus) == (job.request.family, job.request.gpus)
    assert set(page.records) == {"j"}
    assert [each.pool for each in past.decisions(None, 2, 2).decisions] == ["eaco"]
    assert past.decisions("other", 10, 0).total == 1


def test_energy_since_an_instant(
    ledger: SqlLedger, clock: ManualClock, database: Database, past: PastReads
) -> None:
    """Jobs that used some since then are there as a whole, with the model of their GPU; others are not."""
    log = SqlEnergyLog(database)
    uuid = place(0).gpu_uuids[0]
    old = stay(ledger, clock, "old", for_s=1)
    log.add(EnergyPart("old", old.token, uuid, 5.0, 1.0, EnergyMethod.COUNTER))
    clock.advance(100)
    new = stay(ledger, clock, "new")
    log.add(EnergyPart("new", new.token, uuid, None, 1.0, EnergyMethod.UNKNOWN))
    found = past.energy_since(clock.now_s() - 50)
    assert [(row.job_id, row.energy_j, row.partial) for row in found.rows] == [("new", None, True)]
    assert found.rows[0].gpu_model == make_node().gpus[0].model
    assert set(found.records) == {"new"}
    assert [row.energy_j for row in past.of_jobs(["old"])["old"].energy] == [5.0]
