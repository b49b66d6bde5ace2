"""Tables of ours that somebody dropped, and ``airflow db migrate`` after that."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from airflow_provider_eaco.core.model.booking import WantedBooking
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.provider.db_manager import EacoDBManager
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_sleep import SqlNodeSleep
from airflow_provider_eaco.store.schema import VERSION_TABLE
from tests.contract.parts import grant, make_job, make_node, place
from tests.databases import database_on
from tests.integration.store.migrating import upgrade_tables

OURS = {*schema.metadata.tables, VERSION_TABLE}


@pytest.fixture
def migrated(own_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Airflow's database, with our tables at the newest revision."""
    monkeypatch.setattr("airflow.settings.get_engine", lambda: own_engine)
    upgrade_tables(own_engine)
    return own_engine


def drop(engine: Engine, *names: str) -> None:
    with engine.begin() as connection:
        for name in names:
            connection.execute(sa.text(f"DROP TABLE {name}"))


def manager(session: Session) -> EacoDBManager:
    return EacoDBManager(session)  # type: ignore[no-untyped-call] # Airflow gives no annotations


def migrate(engine: Engine) -> list[str]:
    """Migrate as Airflow does; return the warnings that its command shows."""
    with Session(engine) as session, capture_logs() as told:
        manager(session).upgradedb()
    return [str(line) for line in told if line["log_level"] == "warning"]


def present(engine: Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names())


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["eaco_lease", "eaco_job"], id="ledger"),
        pytest.param(["eaco_lease", VERSION_TABLE], id="with-the-revision"),
        pytest.param(sorted(schema.metadata.tables), id="all-but-the-revision"),
    ],
)
def test_what_was_dropped_is_made_again(migrated: Engine, names: list[str]) -> None:
    """The hint that the store gives, to migrate, helps: the ledger grants GPUs again and the rest is kept."""
    ledger = SqlLedger(database_on(migrated))
    ledger.save_nodes([make_node(gpus=1)])
    nodes_stay = "eaco_node" not in names
    drop(migrated, *names)
    with pytest.raises(StoreUnavailableError, match="airflow db migrate"):
        ledger.view()
    (warning,) = migrate(migrated)
    assert "eaco_lease" in warning
    assert present(migrated) == OURS
    assert bool(ledger.view().nodes) is nodes_stay
    ledger.save_nodes([make_node(gpus=1)])
    ledger.add_waiting(make_job("a"), "x")
    assert grant(ledger, "a", place(0)).job_id == "a"


def test_nothing_is_told_where_nothing_is_missing(migrated: Engine) -> None:
    """A migration of whole tables changes and warns of nothing."""
    assert migrate(migrated) == []
    assert present(migrated) == OURS


def test_printing_the_sql_makes_no_table(migrated: Engine) -> None:
    """With ``show_sql_only`` the database stays as it is."""
    drop(migrated, "eaco_lease")
    with Session(migrated) as session:
        manager(session).upgradedb("0001", "0001", True)
    assert present(migrated) == OURS - {"eaco_lease"}


def test_tables_that_know_no_bookings_yet_go_on_without(migrated: Engine) -> None:
    """Before they are migrated the ledger works and has no bookings; who wants one learns what to run; after
    that there are bookings, without a restart.
    """
    drop(migrated, "eaco_booking")
    database = database_on(migrated)
    ledger, bookings = SqlLedger(database), SqlBookings(database)
    ledger.save_nodes([make_node(gpus=1)])
    ledger.add_waiting(make_job("a"), "x")
    assert ledger.view().bookings == ()
    assert grant(ledger, "a", place(0)).job_id == "a"
    wanted = WantedBooking("n1", (), None, ledger.view().now_s + 3600, "Ada")
    with pytest.raises(StoreUnavailableError, match="airflow db migrate"):
        bookings.book(wanted)
    migrate(migrated)
    made = bookings.book(wanted)
    assert ledger.view().bookings == (made,)


def test_tables_that_know_no_sleep_yet_go_on_without(migrated: Engine) -> None:
    """Before they are migrated no node sleeps, and none can be put to sleep; after that it can be."""
    drop(migrated, "eaco_node_sleep")
    book = SqlNodeSleep(database_on(migrated))
    assert (book.move("n1", None, NodePower.ASLEEP), book.states()) == (False, {})
    migrate(migrated)
    assert book.move("n1", None, NodePower.ASLEEP)
    assert book.states()["n1"].power is NodePower.ASLEEP
