"""What runs have used since an instant, from their records and leases."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart, UsedEnergy
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_use import SqlEnergyUse
from airflow_provider_eaco.store.ledger import SqlLedger
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

# Two hours before a month begins, so that one run has records in two months.
LAST_DAY_S = datetime(2026, 11, 30, 22, tzinfo=UTC).timestamp()
MONTH_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
HOUR_S = 3600.0


def test_parts_are_those_of_records_that_end_later(engine: Engine) -> None:
    """Each GPU, each run, on its node, from grant or month to the last record."""
    clock = ManualClock(LAST_DAY_S)
    database = database_on(engine, clock)
    ledger, energy, use = SqlLedger(database), SqlEnergyLog(database), SqlEnergyUse(database)
    ledger.save_nodes([make_node()])
    for name in ("early", "over", "unknown"):
        ledger.add_waiting(make_job(name), "executor")
    early = grant(ledger, "early", place(0))
    over = grant(ledger, "over", place(1))
    clock.advance(HOUR_S)
    measured = EnergyMethod.COUNTER
    energy.add(EnergyPart("early", early.token, "GPU-n1-0", 500.0, 60.0, measured))
    energy.add(EnergyPart("over", over.token, "GPU-n1-1", 700.0, 60.0, measured))
    ledger.set_running(early.token, "process")
    ledger.release(early.token, JobPhase.FINISHED)
    clock.advance(2 * HOUR_S)
    energy.add(EnergyPart("over", over.token, "GPU-n1-1", 900.0, 60.0, measured, partial=True))
    unknown = grant(ledger, "unknown", place(2))
    energy.add(EnergyPart("unknown", unknown.token, "GPU-n1-2", None, 60.0, measured))
    now_s = MONTH_S + HOUR_S
    assert use.used_since(MONTH_S) == [
        UsedEnergy("over", "n1", MONTH_S, now_s, 900.0, partial=True),
        UsedEnergy("unknown", "n1", now_s, now_s, None, partial=True),
    ]
    of_yesterday = use.used_since(LAST_DAY_S)[:2]
    assert of_yesterday == [
        UsedEnergy("early", "n1", LAST_DAY_S, LAST_DAY_S + HOUR_S, 500.0),
        UsedEnergy("over", "n1", LAST_DAY_S, LAST_DAY_S + HOUR_S, 700.0),
    ]
    assert use.used_since(now_s) == []
