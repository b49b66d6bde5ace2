"""The store's adapters keep the contracts of their ports on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.contract.sql_store import (
    OnPostgres,
    SqlBookingContract,
    SqlDecisionLogContract,
    SqlLedgerContract,
    SqlLedgerWalkContract,
    SqlPlannerLockContract,
    SqlProfileStoreContract,
)

pytestmark = pytest.mark.postgres


class TestPostgresLedger(OnPostgres, SqlLedgerContract):
    """The ledger on PostgreSQL."""


class TestPostgresLedgerWalk(OnPostgres, SqlLedgerWalkContract):
    """A long random walk over the ledger on PostgreSQL."""


class TestPostgresPlannerLock(OnPostgres, SqlPlannerLockContract):
    """The planner lock on PostgreSQL."""


class TestPostgresProfileStore(OnPostgres, SqlProfileStoreContract):
    """The profile store on PostgreSQL."""


class TestPostgresDecisionLog(OnPostgres, SqlDecisionLogContract):
    """The decision log on PostgreSQL."""


class TestPostgresBookings(OnPostgres, SqlBookingContract):
    """Bookings on PostgreSQL."""
