"""Energy in the database: months, accounts that are told again, one meter a machine, records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, SplitRule
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals, RunNote
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.energy import SqlEnergyLog, bring_to
from airflow_provider_eaco.store.energy_tables import energy_device, energy_node
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.session import Database
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

# 2026-11-30 23:59:50 UTC
END_OF_NOVEMBER_S = 1_796_083_190.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(END_OF_NOVEMBER_S)


@pytest.fixture
def database(engine: Engine, clock: ManualClock) -> Database:
    return database_on(engine, clock)


@pytest.fixture
def energy(database: Database) -> SqlEnergyLog:
    return SqlEnergyLog(database)


def part(energy_j: float | None, seconds: float, uuid: str = "GPU-n1-0", token: int = 1) -> EnergyPart:
    return EnergyPart("j", token, uuid, energy_j, seconds, EnergyMethod.COUNTER)


def by_month(database: Database, table: sa.Table, column: str) -> dict[str, float]:
    with database.reading() as connection:
        return {row.month: getattr(row, column) for row in connection.execute(sa.select(table))}


def test_a_run_over_the_end_of_a_month_is_in_both(
    database: Database, energy: SqlEnergyLog, clock: ManualClock
) -> None:
    """What was stored in a month stays there, and the record of the run is the sum."""
    energy.add(part(100.0, 10.0))
    clock.advance(20)
    energy.add(part(50.0, 10.0))
    assert by_month(database, schema.energy, "energy_j") == {"2026-11": 100.0, "2026-12": 50.0}
    record = energy.job_energy("j")
    assert record is not None
    assert (record.energy_j, record.seconds, record.mean_w) == (150.0, 20.0, 7.5)


def test_an_account_that_is_told_again_adds_nothing(
    database: Database, energy: SqlEnergyLog, clock: ManualClock
) -> None:
    """A whole account brings the stored sum to its own, over months, and never makes it less."""
    energy.bring_to(part(100.0, 10.0))
    energy.bring_to(part(100.0, 10.0))
    clock.advance(20)
    energy.bring_to(part(160.0, 30.0))
    energy.bring_to(part(20.0, 3.0))
    assert by_month(database, schema.energy, "energy_j") == {"2026-11": 100.0, "2026-12": 60.0}
    record = energy.job_energy("j")
    assert record is not None
    assert (record.energy_j, record.seconds, record.partial) == (160.0, 30.0, False)


def tell(database: Database, told: EnergyPart, origin: str | None) -> None:
    with database.writing() as connection:
        bring_to(connection, told, database.now_s(connection), origin)


def known(energy: SqlEnergyLog) -> tuple[float | None, float, bool]:
    record = energy.job_energy("j")
    assert record is not None
    return record.energy_j, record.seconds, record.partial


def test_c53_a_meter_that_is_started_anew_adds_to_the_one_before(
    database: Database, energy: SqlEnergyLog, clock: ManualClock
) -> None:
    """Each origin counts from 0 and adds what it has grown by, in the month in which it says so."""
    tell(database, part(5000.0, 50.0), "first")
    tell(database, part(500.0, 5.0), "second")
    clock.advance(20)
    tell(database, part(4500.0, 45.0), "second")
    assert known(energy) == (9500.0, 95.0, False)
    assert by_month(database, schema.energy, "energy_j") == {"2026-11": 5500.0, "2026-12": 4000.0}


def test_c53_what_is_told_twice_or_late_adds_nothing(database: Database, energy: SqlEnergyLog) -> None:
    """Less than what the same origin told before is late; it does not make the next account grow anew."""
    tell(database, part(5000.0, 50.0), "first")
    for joules, seconds in ((4500.0, 45.0), (4500.0, 45.0), (3000.0, 30.0), (4500.0, 45.0)):
        tell(database, part(joules, seconds), "second")
    assert known(energy) == (9500.0, 95.0, False)


def test_c53_joules_and_seconds_grow_each_by_themselves(database: Database, energy: SqlEnergyLog) -> None:
    """An account that has more of the one and less of the other takes nothing back of either."""
    tell(database, part(100.0, 10.0), "first")
    tell(database, part(60.0, 20.0), "first")
    tell(database, part(110.0, 5.0), "first")
    tell(database, part(110.0, 20.0), "first")
    assert known(energy) == (110.0, 20.0, False)


def test_c53_an_old_origin_that_speaks_late_adds_its_own_growth(
    database: Database, energy: SqlEnergyLog
) -> None:
    """Its last second may arrive after the first account of the next meter."""
    tell(database, part(5000.0, 50.0), "first")
    tell(database, part(4500.0, 45.0), "second")
    tell(database, part(5100.0, 51.0), "first")
    assert known(energy) == (9600.0, 96.0, False)


def test_c53_origins_are_kept_apart_by_gpu_and_lease(database: Database, energy: SqlEnergyLog) -> None:
    """A second meter that tells of one GPU only says nothing of the other one, nor of another lease."""
    tell(database, part(1000.0, 10.0, "GPU-n1-0"), "first")
    tell(database, part(2000.0, 10.0, "GPU-n1-1"), "first")
    tell(database, part(300.0, 3.0, "GPU-n1-1"), "second")
    tell(database, part(70.0, 1.0, "GPU-n1-1", token=2), "second")
    record = energy.job_energy("j")
    assert record is not None
    assert record.per_gpu_j == {"GPU-n1-0": 1000.0, "GPU-n1-1": 2370.0}


def test_an_account_without_an_origin_is_one_of_all_that_is_stored(
    database: Database, energy: SqlEnergyLog
) -> None:
    """So is the first one that has an origin: a meter that learns to say it goes on counting."""
    tell(database, part(100.0, 10.0), None)
    tell(database, part(100.0, 10.0), "first")
    assert known(energy) == (100.0, 10.0, False)
    tell(database, part(90.0, 9.0), None)
    tell(database, part(40.0, 4.0), "second")
    assert known(energy) == (140.0, 14.0, False)


def test_a_second_origin_that_does_not_know_marks_a_lower_bound(
    database: Database, energy: SqlEnergyLog
) -> None:
    """Unknown joules are not 0, and what it knows later counts from 0."""
    tell(database, part(100.0, 10.0), "first")
    tell(database, part(None, 5.0), "second")
    assert known(energy) == (100.0, 15.0, True)
    tell(database, part(30.0, 8.0), "second")
    assert known(energy) == (130.0, 18.0, True)


def test_mean_and_peak_are_of_all_gpus_together(energy: SqlEnergyLog) -> None:
    """GPUs of one lease are held at one time; times without a measurement do not lower the mean."""
    for uuid in ("GPU-n1-0", "GPU-n1-1"):
        energy.add(part(1000.0, 10.0, uuid))
        energy.add(part(None, 10.0, uuid))
    energy.add(part(500.0, 10.0, "GPU-n1-1", token=2))
    energy.note_run(RunNote("j", 1, 250.0, frozenset({SplitRule.SM_TIME})))
    energy.note_run(RunNote("j", 1, 210.0, frozenset({SplitRule.ALONE})))
    energy.note_run(RunNote("j", 2, None))
    record = energy.job_energy("j")
    assert record is not None
    assert (record.energy_j, record.partial, record.seconds) == (2500.0, True, 30.0)
    assert (record.mean_w, record.peak_w) == (125.0, 250.0)
    assert record.rules == {SplitRule.SM_TIME, SplitRule.ALONE}


def test_the_record_names_who_was_beside_it(
    database: Database, energy: SqlEnergyLog, clock: ManualClock
) -> None:
    """Who held the same GPUs at the same time, by name; who came later or sat elsewhere is not named."""
    ledger = SqlLedger(database)
    ledger.save_nodes([make_node(gpus=2)])

    def run(job_id: str, gpu: int) -> int:
        ledger.add_waiting(make_job(job_id), "x")
        token = grant(ledger, job_id, place(gpu)).token
        ledger.set_running(token, "p")
        return token

    own, _, _ = run("j", 0), run("beside", 0), run("elsewhere", 1)
    clock.advance(10)
    energy.add(part(100.0, 10.0, token=own))
    ledger.release(own, JobPhase.FINISHED)
    clock.advance(1)
    run("later", 0)
    record = energy.job_energy("j")
    assert record is not None
    label = make_job("beside").label
    assert record.co_residents == (label,)
    assert energy.job_energy("nobody") is None


def machine(
    origin: str, began_s: float, until_s: float, totals: DeviceTotals, node_j: float = 0.0
) -> MachineEnergy:
    counted = NodeTotals(node_j, totals.energy_j, until_s - began_s)
    return MachineEnergy("n1", origin, began_s, until_s, {"GPU-n1-0": totals}, counted)


def test_counters_of_a_machine_add_up_by_month(
    database: Database, energy: SqlEnergyLog, clock: ManualClock
) -> None:
    """Two readings of the same counters add their difference; the machine's own meter beside them."""
    assert energy.add_machine(machine("a", 0.0, 10.0, DeviceTotals(100.0, 60.0, 30.0, 10.0), 150.0))
    clock.advance(20)
    assert energy.add_machine(machine("a", 0.0, 30.0, DeviceTotals(180.0, 100.0, 60.0, 20.0, 5.0), 270.0))
    assert by_month(database, energy_device, "energy_j") == {"2026-11": 100.0, "2026-12": 80.0}
    assert by_month(database, energy_device, "unknown_s") == {"2026-11": 0.0, "2026-12": 5.0}
    assert by_month(database, energy_node, "node_j") == {"2026-11": 150.0, "2026-12": 120.0}


def test_of_two_meters_of_one_machine_one_counts(database: Database, energy: SqlEnergyLog) -> None:
    """The second one is refused while the first one counts, and goes on from where the first one stopped."""
    assert energy.add_machine(machine("a", 0.0, 30.0, DeviceTotals(300.0, 300.0)))
    assert not energy.add_machine(machine("b", 15.0, 45.0, DeviceTotals(300.0, 300.0)))
    assert energy.add_machine(machine("a", 0.0, 60.0, DeviceTotals(600.0, 600.0)))
    assert energy.add_machine(machine("b", 60.0, 90.0, DeviceTotals(300.0, 300.0)))
    assert by_month(database, energy_device, "energy_j") == {"2026-11": 900.0}


def test_what_a_gpu_used_between_two_countings_is_unknown(database: Database, energy: SqlEnergyLog) -> None:
    """That time is told once, and only of GPUs that were counted before it."""
    assert energy.add_machine(machine("a", 0.0, 60.0, DeviceTotals(600.0, 600.0)))
    later = machine("b", 75.0, 90.0, DeviceTotals(150.0, 150.0, unknown_s=2.0))
    devices = {**later.devices, "GPU-n1-1": DeviceTotals(30.0, 30.0)}
    for _ in range(2):
        assert energy.add_machine(replace(later, devices=devices))
    columns = energy_device.c.uuid, energy_device.c.energy_j, energy_device.c.unknown_s
    with database.reading() as connection:
        found = {tuple(row) for row in connection.execute(sa.select(*columns))}
    assert found == {("GPU-n1-0", 750.0, 17.0), ("GPU-n1-1", 30.0, 0.0)}


def test_c55_a_counter_that_went_back_adds_nothing(database: Database, energy: SqlEnergyLog) -> None:
    """It is read anew from there: no sum ever becomes less."""
    energy.add_machine(machine("a", 0.0, 30.0, DeviceTotals(300.0, 300.0)))
    energy.add_machine(machine("a", 0.0, 60.0, DeviceTotals(100.0, 100.0)))
    energy.add_machine(machine("a", 0.0, 90.0, DeviceTotals(150.0, 150.0)))
    assert by_month(database, energy_device, "energy_j") == {"2026-11": 350.0}
