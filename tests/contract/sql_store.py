"""The contract suites of the store's ports, handed the adapters on SQL; subclasses say on which database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.decision import Reason, Verdict
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import DecisionLog, Ledger, PlannerLock, ProfileStore
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.decisions import SqlDecisionLog, decisions_of, events_of
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.schema import event as event_table
from airflow_provider_eaco.store.session import Database
from tests.contract.booking_suite import BookingContract
from tests.contract.decision_log_suite import DecisionLogContract
from tests.contract.ledger_fixtures import OWNER
from tests.contract.ledger_suite import LedgerContract
from tests.contract.ledger_walk_suite import LedgerWalkContract
from tests.contract.parts import ManualClock, make_job, place
from tests.contract.planner_lock_suite import PlannerLockContract
from tests.contract.profile_store_suite import BUILT_IN, ProfileStoreContract
from tests.databases import database_on, empty, sqlite_store


class OnSqlite:
    """A database of SQLite for each test."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def database(self, tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
        engine = sqlite_store(tmp_path / "store.db")
        yield database_on(engine, clock)
        engine.dispose()


class OnPostgres:
    """The session's PostgreSQL, emptied for each test."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def database(self, postgres_tables: Engine, clock: ManualClock) -> Database:
        empty(postgres_tables)
        return database_on(postgres_tables, clock)


class SqlLedgerContract(LedgerContract):
    """The ledger on SQL."""

    @pytest.fixture
    def ledger(self, database: Database) -> Ledger:
        return SqlLedger(database)

    def test_no_lease_names_a_gpu_twice(self, filled: Ledger) -> None:
        """Two ranks of one job are never on one GPU, whatever a planner comes up with."""
        versions = filled.view().gpu_versions
        with pytest.raises(LeaseConflictError):
            filled.grant(Launch(make_job("j1"), place(0, 0), ()), LeaseState.EXCLUSIVE, versions, OWNER)
        assert not filled.view().leases
        assert filled.view().gpu_versions == versions


class SqlBookingContract(BookingContract):
    """Bookings beside the ledger on SQL."""

    @pytest.fixture
    def ledger(self, database: Database) -> SqlLedger:
        return SqlLedger(database)

    @pytest.fixture
    def bookings(self, database: Database) -> SqlBookings:
        return SqlBookings(database)


class SqlLedgerWalkContract(LedgerWalkContract):
    """Case C41 on SQL. Each step is a transaction and a whole view, so fewer steps than in memory."""

    steps = 600

    @pytest.fixture
    def ledger(self, database: Database) -> Ledger:
        return SqlLedger(database)


class SqlPlannerLockContract(PlannerLockContract):
    """The planner lock on SQL."""

    @pytest.fixture
    def lock(self, database: Database) -> PlannerLock:
        return SqlPlannerLock(database)


class SqlProfileStoreContract(ProfileStoreContract):
    """The profile store on SQL, over the built-in book."""

    @pytest.fixture
    def profiles(self, database: Database) -> ProfileStore:
        return SqlProfileStore(database, BUILT_IN)


class SqlDecisionLogContract(DecisionLogContract):
    """The decision log on SQL."""

    @pytest.fixture
    def log(self, database: Database) -> DecisionLog:
        self.database = database
        return SqlDecisionLog(database)

    def rows(self, log: DecisionLog) -> list[tuple[str, Verdict, Reason | None]]:
        with self.database.reading() as connection:
            return [(row.pool, row.decision.verdict, row.decision.reason) for row in decisions_of(connection)]

    def events(self, log: DecisionLog, job_id: str) -> list[tuple[str, str, float]]:
        with self.database.reading() as connection:
            found = events_of(connection, event_table.c.job_id == job_id)
        return [(event.event, event.text, event.at_s) for event in found]
