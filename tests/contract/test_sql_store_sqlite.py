"""The store's adapters keep the contracts of their ports on SQLite."""

from __future__ import annotations

from tests.contract.sql_store import (
    OnSqlite,
    SqlBookingContract,
    SqlDecisionLogContract,
    SqlLedgerContract,
    SqlLedgerWalkContract,
    SqlPlannerLockContract,
    SqlProfileStoreContract,
)


class TestSqliteLedger(OnSqlite, SqlLedgerContract):
    """The ledger on SQLite."""


class TestSqliteLedgerWalk(OnSqlite, SqlLedgerWalkContract):
    """A long random walk over the ledger on SQLite."""


class TestSqlitePlannerLock(OnSqlite, SqlPlannerLockContract):
    """The planner lock on SQLite."""


class TestSqliteProfileStore(OnSqlite, SqlProfileStoreContract):
    """The profile store on SQLite."""


class TestSqliteDecisionLog(OnSqlite, SqlDecisionLogContract):
    """The decision log on SQLite."""


class TestSqliteBookings(OnSqlite, SqlBookingContract):
    """Bookings on SQLite."""
