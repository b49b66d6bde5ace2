"""What nodes report of energy: stored under the run's own job, once, and only for runs of that node."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_tables import energy_device
from tests.integration.node_api.gate import Gate, gpu_of


def part(token: int, energy_j: float | None = 50.0, **changes: Any) -> dict[str, Any]:
    return {
        "token": token,
        "gpu_uuid": gpu_of("one"),
        "energy_j": energy_j,
        "seconds": 10.0,
        "method": "counter",
        **changes,
    }


COUNTERS = {
    "origin": "meter",
    "began_s": 1.0,
    "until_s": 31.0,
    "devices": [
        {"uuid": gpu_of("one"), "energy_j": 90, "runs_j": 50, "idle_j": 40, "strangers_j": 0, "unknown_s": 0}
    ],
}


def test_energy_that_is_told_twice_is_stored_once(gate: Gate) -> None:
    """Joules, peak and the machine's counters, under the job that holds the lease."""
    token = gate.lease.token
    notes = [{"token": token, "peak_w": 7.0, "rules": ["alone"]}]
    for _ in range(2):
        told = gate.report("one", energy=[part(token)], notes=notes, counters=COUNTERS)
        assert told.status_code == 200, told.text
    record = SqlEnergyLog(gate.database).job_energy("job")
    assert record is not None
    assert (record.energy_j, record.peak_w, record.mean_w) == (50.0, 7.0, 5.0)
    (device,) = gate.everything()["eaco_energy_device"]
    assert 90.0 in device
    assert 180.0 not in device


def counters(origin: str, began_s: float, until_s: float, energy_j: float) -> dict[str, Any]:
    device = {"uuid": gpu_of("one"), "energy_j": energy_j, "runs_j": energy_j, "idle_j": 0, "strangers_j": 0}
    return {
        "origin": origin,
        "began_s": began_s,
        "until_s": until_s,
        "devices": [{**device, "unknown_s": 0}],
    }


def test_c53_a_restart_of_the_worker_keeps_task_and_device_together(gate: Gate) -> None:
    """Both add what the second worker process has counted from 0, each report once."""
    token = gate.lease.token
    first, second = counters("w1", 0.0, 50.0, 5000.0), counters("w2", 51.0, 96.0, 4500.0)
    for told, joules in ((first, 5000.0), (first, 5000.0), (second, 4500.0), (second, 4500.0)):
        assert gate.report("one", energy=[part(token, joules)], counters=told).status_code == 200
    record = SqlEnergyLog(gate.database).job_energy("job")
    assert record is not None
    with gate.engine.connect() as connection:
        device_j = connection.scalar(sa.select(energy_device.c.runs_j))
    assert record.energy_j == device_j == 9500.0


def test_a_report_without_counters_keeps_the_larger_account(gate: Gate) -> None:
    """Nothing says whether its meter is another one."""
    for joules in (5000.0, 4500.0, 5200.0):
        assert gate.report("one", energy=[part(gate.lease.token, joules)]).status_code == 200
    record = SqlEnergyLog(gate.database).job_energy("job")
    assert record is not None
    assert record.energy_j == 5200.0


@pytest.mark.parametrize(
    "changes",
    [
        {"energy": [part(1, energy_j=-1.0)]},
        {"energy": [part(1, method="guess")]},
        {"energy": [part(1, job_id="another")]},
        {"notes": [{"token": 1, "peak_w": "high"}]},
        {"counters": {**COUNTERS, "until_s": 1e300}},
    ],
)
def test_nonsense_is_refused_and_changes_nothing(gate: Gate, changes: dict[str, Any]) -> None:
    """Values that no device can have, and fields that a node has no say in."""
    before = gate.everything()
    assert 400 <= gate.report("one", **changes).status_code < 500
    assert gate.everything() == before


def test_a_node_says_nothing_of_another_node_s_run(gate: Gate) -> None:
    """A lease of node one, told by node two, is refused as a whole."""
    before = gate.everything()
    told = gate.report("two", energy=[part(gate.lease.token, gpu_uuid=gpu_of("two"))])
    assert 400 <= told.status_code < 500
    assert gate.everything() == before


def test_a_run_that_nobody_knows_any_more_is_left_out(gate: Gate) -> None:
    """Its row was cleaned away; the rest of the report counts."""
    assert gate.report("one", energy=[part(4711), part(gate.lease.token)]).status_code == 200
    assert len(gate.everything()["eaco_energy"]) == 1
