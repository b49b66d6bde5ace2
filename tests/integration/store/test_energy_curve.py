"""What a run used over time: few points, no joule lost, and nothing shown where nothing was measured."""

from __future__ import annotations

import math

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.energy.records import RunNote
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_curve import MOST_POINTS, Watts, grown, is_due, watts_over_time
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.past import PastReads
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

WEEK_S = 7 * 24 * 3600


def test_a_curve_stays_small_and_keeps_its_sums() -> None:
    """A week at 100 W, told every 10 s, is at most 120 points, whose steps are 100 W and all joules."""
    curve: list[list[float]] = []
    told = 0
    for at_s in range(10, WEEK_S, 10):
        if is_due(curve, at_s):
            curve = grown(curve, (at_s, 100.0 * at_s, at_s))
            told += 1
    assert len(curve) == MOST_POINTS
    assert told < 1000
    steps = watts_over_time([(at_s, joules, seconds) for at_s, joules, seconds in curve], 0.0)
    assert [step.mean_w for step in steps] == [pytest.approx(100.0)] * MOST_POINTS
    assert math.fsum((step.until_s - step.from_s) * 100 for step in steps) == pytest.approx(curve[-1][1])
    # No step is longer than a tenth of the run, so that its course is still seen.
    assert max(step.until_s - step.from_s for step in steps) < curve[-1][0] / 10


def test_a_time_without_a_meter_has_no_watts() -> None:
    """Seconds that nobody measured are neither 0 W nor spread over the others."""
    curve = [(10.0, 1000.0, 10.0), (20.0, 1000.0, 10.0), (30.0, 3000.0, 20.0)]
    assert watts_over_time(curve, 0.0) == [
        Watts(0.0, 10.0, 100.0),
        Watts(10.0, 20.0, None),
        Watts(20.0, 30.0, 200.0),
    ]


def test_a_curve_waits_for_its_next_step() -> None:
    """A short run has a point every 10 s, a long one seldom."""
    assert is_due([], 5.0)
    assert not is_due([[0.0, 0.0, 0.0]], 9.0)
    assert is_due([[0.0, 0.0, 0.0]], 10.0)
    assert not is_due([[0.0, 0.0, 0.0], [6000.0, 0.0, 0.0]], 6099.0)
    assert is_due([[0.0, 0.0, 0.0], [6000.0, 0.0, 0.0]], 6100.0)


def test_a_meters_notes_become_watts_over_time(engine: Engine) -> None:
    """Each note of a meter is a step of the mean draw of all GPUs since the last, up to what is stored."""
    clock = ManualClock(1_000_000.0)
    database = database_on(engine, clock)
    ledger, energy, past = SqlLedger(database), SqlEnergyLog(database), PastReads(database)
    ledger.save_nodes([make_node("n1", 2)])
    ledger.add_waiting(make_job("j", gpus=2), "x")
    lease = grant(ledger, "j", place(0, 1))
    assert past.of_jobs(["j"])["j"].watts == {lease.token: []}
    for joules in (500.0, 1000.0):
        clock.advance(10)
        for uuid in lease.placement.gpu_uuids:
            energy.add(EnergyPart("j", lease.token, uuid, joules, 10.0, EnergyMethod.COUNTER))
        energy.note_run(RunNote("j", lease.token, None))
    clock.advance(5)
    energy.add(EnergyPart("j", lease.token, lease.placement.gpu_uuids[0], 400.0, 5.0, EnergyMethod.COUNTER))
    (steps,) = past.of_jobs(["j"])["j"].watts.values()
    assert [(step.until_s - step.from_s, step.mean_w) for step in steps] == [
        (10.0, 100.0),
        (10.0, 200.0),
        (5.0, 80.0),
    ]


def test_a_note_before_new_sums_leaves_no_gap(engine: Engine) -> None:
    """A meter that stores its sums more seldom than it notes the run has drawn all the time."""
    clock = ManualClock(1_000_000.0)
    database = database_on(engine, clock)
    ledger, energy, past = SqlLedger(database), SqlEnergyLog(database), PastReads(database)
    ledger.save_nodes([make_node("n1", 1)])
    ledger.add_waiting(make_job("j", gpus=1), "x")
    lease = grant(ledger, "j", place(0))
    (uuid,) = lease.placement.gpu_uuids
    for _ in range(2):
        clock.advance(20)
        energy.add(EnergyPart("j", lease.token, uuid, 2000.0, 20.0, EnergyMethod.COUNTER))
        for _ in range(2):
            clock.advance(10)
            energy.note_run(RunNote("j", lease.token, None))
    (steps,) = past.of_jobs(["j"])["j"].watts.values()
    assert [(step.until_s - step.from_s, step.mean_w) for step in steps] == [(20.0, 100.0), (40.0, 100.0)]
