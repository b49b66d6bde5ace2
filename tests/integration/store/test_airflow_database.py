"""The provider's tables under Airflow's commands: `db migrate`, `db clean`, `eaco db remove`, `db reset`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.energy.accounting import DeviceTotals
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals, RunNote
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.booking import WantedBooking
from airflow_provider_eaco.core.model.decision import Finding, Reason, hold
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog, bring_to
from airflow_provider_eaco.store.energy_tables import energy_device, energy_node
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.schema import VERSION_TABLE
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on, sqlite_engine
from tests.integration.store.migrating import upgrade_tables

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

OURS = {*schema.metadata.tables, VERSION_TABLE}
OLD_S, RECENT_S = 1_600_000_000.0, 1_790_000_000.0
BETWEEN = "2024-01-01T00:00:00+00:00"
LIMIT_S = 240


class Airflow:
    """An Airflow home on one database, used through the command line."""

    def __init__(self, home: Path, url: str) -> None:
        self._environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def run(self, *words: str) -> str:
        """Run a command that has to succeed; return what it printed."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("airflow")), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"airflow {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = sqlite_engine(tmp_path / "airflow.db")
    yield engine
    engine.dispose()


@pytest.fixture
def airflow(tmp_path: Path, engine: Engine) -> Airflow:
    return Airflow(tmp_path, str(engine.url))


def tables(engine: Engine) -> set[str]:
    return {name for name in sa.inspect(engine).get_table_names() if name in OURS or "dag" in name}


def rows(engine: Engine) -> dict[str, list[str]]:
    """The dates of the rows that `db clean` may take, and how many there are of the others."""
    with engine.connect() as connection:
        found = {
            table.name: sorted(
                "live" if since is None else "old" if since < 1_700_000_000 else "recent"
                for since in connection.scalars(sa.select(table.c[column]))
            )
            for table, column, _ in schema.HISTORY
        }
        for table in (schema.node, schema.gpu, schema.profile_solo, energy_device, energy_node):
            count = connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            found[table.name] = ["kept"] * count
        return found


def live_through(database: Database, clock: ManualClock, name: str, *, gpu: int, ends: bool) -> None:
    """Let one job of DAG ``name`` be held, run on a GPU and, if it ``ends``, finish; all at the clock."""
    ledger, log = SqlLedger(database), SqlDecisionLog(database)
    job = make_job(name, queued_s=clock.now_s())
    job = replace(job, pool=name, order=replace(job.order, dag_id=name))
    ledger.add_waiting(job, "x")
    held = KindDecision(job.kind, (name,), hold(Finding(Reason.ON_HOLD)))
    log.record(Plan(name, clock.now_s(), decisions=(held,), order=(name,)))
    lease = grant(ledger, name, place(gpu))
    ledger.set_running(lease.token, "process")
    log.record_event(name, "launched", "", clock.now_s())
    measure(database, name, lease.token, f"GPU-n1-{gpu}", clock.now_s())
    if ends:
        until_s = clock.now_s() + 60
        SqlBookings(database).book(WantedBooking("n1", (str(gpu),), None, until_s, name))
        log.record(Plan(name, clock.now_s()))
        ledger.release(lease.token, JobPhase.FINISHED)


def measure(database: Database, job_id: str, token: int, uuid: str, at_s: float) -> None:
    """Store joules of the job, who told of them, its peak, and counters of its machine and of its meter."""
    energy = SqlEnergyLog(database)
    energy.add(EnergyPart(job_id, token, uuid, 1.0, 1.0, EnergyMethod.COUNTER))
    energy.note_run(RunNote(job_id, token, 1.0))
    with database.writing() as connection:
        told = EnergyPart(job_id, token, uuid, 1.0, 1.0, EnergyMethod.COUNTER)
        bring_to(connection, told, at_s, f"meter-of-{job_id}")
    devices = {uuid: DeviceTotals(1.0, 1.0)}
    counted = MachineEnergy("n1", f"meter-of-{job_id}", at_s, at_s, devices, NodeTotals(2.0, 1.0, 1.0))
    assert energy.add_machine(counted)


def fill(engine: Engine) -> None:
    """Store an old job that ended, an old one that runs, a recent one that ended, and an old profile.

    Of the GPU that nobody counts any more there are two months: the old one, and that in which a new counting
    began, to which the time between is unknown.
    """
    clock = ManualClock(OLD_S)
    database = database_on(engine, clock)
    SqlLedger(database).save_nodes([make_node(gpus=2)])
    SqlProfileStore(database, ProfileBook()).save_solo(SoloProfile("f", "V100", 1, updated_s=OLD_S))
    live_through(database, clock, "old", gpu=0, ends=True)
    live_through(database, clock, "running", gpu=1, ends=False)
    clock.advance(RECENT_S - OLD_S)
    live_through(database, clock, "recent", gpu=0, ends=True)


def test_migrate_clean_remove_and_reset(airflow: Airflow, engine: Engine) -> None:
    """`db migrate` makes our tables, `db clean` takes just our old rows, removal leaves Airflow's tables."""
    airflow.run("db", "migrate")
    assert tables(engine) >= OURS
    with engine.connect() as connection:
        assert connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")) == "0001"
    fill(engine)
    airflow.run("db", "clean", "--clean-before-timestamp", BETWEEN, "--yes", "--skip-archive")
    assert rows(engine) == {
        "eaco_job": ["live", "recent"],
        "eaco_lease": ["live", "recent"],
        "eaco_decision": ["live", "recent"],
        "eaco_event": ["recent"],
        "eaco_energy": ["recent"],
        "eaco_energy_run": ["recent"],
        "eaco_energy_told": ["recent"],
        "eaco_node_run": [],
        "eaco_booking": ["recent"],
        "eaco_node": ["kept"],
        "eaco_gpu": ["kept", "kept"],
        "eaco_profile_solo": ["kept"],
        "eaco_energy_device": ["kept"] * 4,
        "eaco_energy_node": ["kept", "kept"],
    }
    # A cleaned ledger still knows who runs, and never gives a token twice.
    ledger = SqlLedger(database_on(engine))
    (running,) = ledger.view().leases
    ledger.add_waiting(make_job("next"), "x")
    assert grant(ledger, "next", place(0)).token > max(running.token, 3)
    airflow.run("eaco", "db", "remove", "--yes")
    assert not tables(engine) & OURS
    assert "dag_run" in tables(engine)
    upgrade_tables(engine)
    airflow.run("db", "reset", "--yes", "--skip-init")
    assert tables(engine) == set()


@pytest.mark.postgres
def test_cleaning_one_dag_on_postgres(tmp_path: Path, postgres_own: Engine) -> None:
    """`db clean --dag-ids` takes the old rows of those DAGs; what belongs to no single DAG stays."""
    upgrade_tables(postgres_own)
    fill(postgres_own)
    airflow = Airflow(tmp_path, postgres_own.url.render_as_string(hide_password=False))
    ours = ",".join(sorted(table.name for table, _, _ in schema.HISTORY))
    airflow.run(
        "db", "clean", "--clean-before-timestamp", BETWEEN, "--yes", "--tables", ours, "--dag-ids", "old"
    )
    assert rows(postgres_own) == {
        "eaco_job": ["live", "recent"],
        "eaco_lease": ["live", "recent"],
        "eaco_decision": ["live", "old", "recent"],
        "eaco_event": ["old", "recent"],
        "eaco_energy": ["old", "recent"],
        "eaco_energy_run": ["old", "recent"],
        "eaco_energy_told": ["old", "recent"],
        "eaco_node_run": [],
        "eaco_booking": ["recent"],
        "eaco_node": ["kept"],
        "eaco_gpu": ["kept", "kept"],
        "eaco_profile_solo": ["kept"],
        "eaco_energy_device": ["kept"] * 4,
        "eaco_energy_node": ["kept", "kept"],
    }
    archives = [name for name in sa.inspect(postgres_own).get_table_names() if "_airflow_deleted" in name]
    assert len(archives) == 7
