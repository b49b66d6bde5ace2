"""What the store does without its tables or its database, and inside somebody else's session."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError, StoreUnavailableError
from airflow_provider_eaco.core.model.instruction import Launch, Plan
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.jobs import enqueue
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.read_model import ReadModel
from airflow_provider_eaco.store.session import Database, DatabaseClock
from tests.contract.parts import grant, make_job, make_node, place
from tests.databases import database_on

CALLS: dict[str, Callable[[Database], object]] = {
    "view": lambda database: SqlLedger(database).view(),
    "add_waiting": lambda database: SqlLedger(database).add_waiting(make_job(), "x"),
    "save_nodes": lambda database: SqlLedger(database).save_nodes([make_node()]),
    "forget_node": lambda database: SqlLedger(database).forget_node("n1"),
    "release": lambda database: SqlLedger(database).release(1, JobPhase.FAILED),
    "save_progress": lambda database: SqlLedger(database).save_progress("j", Progress(), None),
    "set_lease_state": lambda database: SqlLedger(database).set_lease_state(place(0), 1, LeaseState.TRIAL),
    "acquire": lambda database: SqlPlannerLock(database).acquire("x", 1),
    "book": lambda database: SqlProfileStore(database, ProfileBook()).book(),
    "save_solo": lambda database: SqlProfileStore(database, ProfileBook()).save_solo(
        SoloProfile("f", "V", 1)
    ),
    "record": lambda database: SqlDecisionLog(database).record(Plan("eaco", 1.0)),
    "record_event": lambda database: SqlDecisionLog(database).record_event("j", "e", "t", 1.0),
    "energy": lambda database: SqlEnergyLog(database).add(
        EnergyPart("j", 1, "GPU-1", 1.0, 1.0, EnergyMethod.COUNTER)
    ),
    "overview": lambda database: ReadModel(database).overview(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_c67_missing_tables_say_what_to_run(no_tables: Engine, call: Callable[[Database], object]) -> None:
    """Without our tables every port says so in one error that names the command that makes them."""
    with pytest.raises(StoreUnavailableError, match="airflow db migrate"):
        call(database_on(no_tables))


def test_c67_an_old_table_says_what_to_run(own_engine: Engine) -> None:
    """A table without a column of this version is out of reach as well, with the same advice."""
    schema.metadata.create_all(own_engine)
    with own_engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE eaco_job DROP COLUMN share"))
    with pytest.raises(StoreUnavailableError, match="airflow db migrate"):
        SqlLedger(database_on(own_engine)).view()


@pytest.mark.parametrize(
    "url",
    ["sqlite:////nowhere/at/all/store.db", "postgresql+psycopg2://u@127.0.0.1:1/none?connect_timeout=1"],
)
def test_c67_a_lost_database_is_one_error(url: str) -> None:
    """A database that cannot be opened is unavailable, for ledger and clock alike."""
    engine = sa.create_engine(url)
    with pytest.raises(StoreUnavailableError):
        SqlLedger(database_on(engine)).view()
    with pytest.raises(StoreUnavailableError):
        DatabaseClock(sessionmaker(engine)).now_s()


def test_an_unsupported_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a database that the store does not speak, ports and hand-over say which ones it does."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with pytest.raises(StoreUnavailableError, match="sqlite or postgresql, not in mysql"):
        SqlLedger(database_on(engine)).view()
    with (
        sessionmaker(engine)() as session,
        pytest.raises(StoreUnavailableError, match="sqlite or postgresql, not in mysql"),
    ):
        enqueue(session, make_job(), "x")


@pytest.mark.postgres
def test_a_deadlock_at_a_grant_is_a_conflict(postgres_engine: Engine) -> None:
    """When the database breaks a deadlock at a grant's cost, the planner plans again."""
    ledger = SqlLedger(database_on(postgres_engine))
    ledger.save_nodes([make_node(gpus=2)])
    ledger.add_waiting(make_job(), "x")
    view = ledger.view()
    touch = sa.text("UPDATE eaco_gpu SET model = model WHERE uuid = :uuid")
    deadline = time.monotonic() + 30
    with postgres_engine.connect() as other, ThreadPoolExecutor(1) as pool:
        # Whoever waits longest looks for a deadlock first: the other transaction never does.
        other.execute(sa.text("SET LOCAL deadlock_timeout = '60s'"))
        other.execute(touch, {"uuid": "GPU-n1-1"})
        launch = Launch(view.jobs[0].job, place(0, 1), ())
        granting = pool.submit(ledger.grant, launch, LeaseState.EXCLUSIVE, view.gpu_versions, "x")
        waits = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with postgres_engine.connect() as watcher:
            while not watcher.scalar(waits):
                assert time.monotonic() < deadline
                watcher.rollback()
        other.execute(touch, {"uuid": "GPU-n1-0"})
        other.rollback()
        with pytest.raises(LeaseConflictError):
            granting.result(30)
    assert ledger.view().leases == ()


@pytest.mark.postgres
def test_c67_a_database_that_comes_back_is_used_again(postgres_engine: Engine) -> None:
    """Connections that the server has cut are one error; the next call works."""
    ledger = SqlLedger(database_on(postgres_engine))
    ledger.save_nodes([make_node()])
    killer = sa.create_engine(postgres_engine.url)
    with killer.begin() as connection:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        connection.execute(sa.text(f"{cut} AND datname = current_database()"))
    killer.dispose()
    with pytest.raises(StoreUnavailableError):
        ledger.view()
    assert [node.name for node in ledger.view().nodes] == ["n1"]


def test_a_busy_sqlite_file_is_one_error(tmp_path: Path) -> None:
    """A file that another writer keeps locked for longer than the time-out is unavailable, not a crash."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'busy.db'}", connect_args={"timeout": 0.01})
    schema.metadata.create_all(engine)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            SqlLedger(database_on(engine)).add_waiting(make_job(), "x")
        other.rollback()
    SqlLedger(database_on(engine)).add_waiting(make_job(), "x")


def test_a_crash_inside_a_transaction_leaves_nothing(engine: Engine) -> None:
    """An exception between two writes of one grant takes both back, and the next process goes on."""
    ledger = SqlLedger(database_on(engine))
    ledger.save_nodes([make_node()])
    ledger.add_waiting(make_job(), "x")
    before = ledger.view()

    def crash(*_arguments: object) -> None:
        raise KeyboardInterrupt

    sa.event.listen(engine, "commit", crash)
    with pytest.raises(KeyboardInterrupt):
        grant(ledger, "j1", place(0))
    sa.event.remove(engine, "commit", crash)
    engine.dispose()
    after = SqlLedger(database_on(sa.create_engine(engine.url))).view()
    assert (after.leases, after.jobs, after.gpu_versions) == ((), before.jobs, before.gpu_versions)
    assert grant(ledger, "j1", place(0)).placement == place(0)


class TestEnqueue:
    """``enqueue`` writes through the scheduler's session and leaves its transaction to the scheduler."""

    @pytest.fixture
    def session(self, engine: Engine) -> Session:
        return sessionmaker(engine)()

    def test_nothing_is_stored_before_the_scheduler_commits(self, engine: Engine, session: Session) -> None:
        """The job is there once the scheduler has committed."""
        commits: list[object] = []
        sa.event.listen(engine, "commit", commits.append)
        enqueue(session, make_job(), "x")
        assert commits == []
        session.commit()
        session.close()
        assert [record.job for record in SqlLedger(database_on(engine)).view().jobs] == [make_job()]

    @pytest.mark.parametrize("something_first", [True, False])
    def test_a_rollback_takes_the_job_back(
        self, engine: Engine, session: Session, something_first: bool
    ) -> None:
        """A rollback after the hand-over leaves no job, whether or not the scheduler had written before."""
        if something_first:
            session.execute(sa.text("DELETE FROM eaco_event"))
        enqueue(session, make_job(), "x")
        session.rollback()
        session.close()
        assert SqlLedger(database_on(engine)).view().jobs == ()

    def test_a_failure_of_ours_leaves_the_session_usable(self, own_engine: Engine) -> None:
        """Without our tables the scheduler's transaction goes on and commits what it had."""
        with own_engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE dag_run (id INTEGER)"))
        with sessionmaker(own_engine)() as session:
            session.execute(sa.text("INSERT INTO dag_run VALUES (1)"))
            with pytest.raises(StoreUnavailableError, match="airflow db migrate"):
                enqueue(session, make_job(), "x")
            session.execute(sa.text("INSERT INTO dag_run VALUES (2)"))
            session.commit()
        with own_engine.connect() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM dag_run")) == 2

    def test_a_held_job_keeps_its_mark_and_its_first_queue_time(
        self, engine: Engine, session: Session
    ) -> None:
        """Handing a job over again through the session is the same as the ledger's own way."""
        ledger = SqlLedger(database_on(engine))
        ledger.add_waiting(make_job(queued_s=1000.0), "x")
        ledger.set_hold("j1", True)
        enqueue(session, make_job(queued_s=2000.0), "y")
        session.commit()
        session.close()
        (record,) = ledger.view().jobs
        assert (record.job.queued_s, record.job.on_hold, record.owner) == (1000.0, True, "y")


def test_a_job_handed_over_before_its_old_process_is_gone_waits_after_the_release(engine: Engine) -> None:
    """A reschedule that overtakes the end of the process is not lost: the release makes the job wait."""
    ledger = SqlLedger(database_on(engine))
    ledger.save_nodes([make_node()])
    ledger.add_waiting(make_job(), "old")
    lease = grant(ledger, "j1", place(0), owner="old")
    ledger.set_running(lease.token, "process")
    ledger.add_waiting(make_job(), "new")
    (record,) = ledger.view().jobs
    assert (record.phase, record.owner, record.process) == (JobPhase.RUNNING, "old", "process")
    assert ledger.release(lease.token, JobPhase.YIELDED)
    (record,) = ledger.view().jobs
    assert (record.phase, record.owner, record.process) == (JobPhase.WAITING, "new", None)
    again = grant(ledger, "j1", place(0))
    ledger.set_running(again.token, "next")
    ledger.release(again.token, JobPhase.FINISHED)
    assert ledger.view().jobs == ()
