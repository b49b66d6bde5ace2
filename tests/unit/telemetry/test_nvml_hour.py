"""An hour of eight GPUs with 32 residents through the real pynvml: all joules are somebody's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyMethod
from airflow_provider_eaco.core.ports import Occupant
from tests.contract.metering_suite import KeptParts
from tests.contract.parts import ManualClock
from tests.nvml.machine import GIB, FakeMachine, fake_machine
from tests.nvml.rig import ListedProcesses, direct_meter, holder, uuid_of

STEP_S = 15
STEPS = 3600 // STEP_S
GPUS, RESIDENTS = 8, 4
KEYS = {(f"j{number}", number + 1) for number in range(GPUS * RESIDENTS)}

Present = Mapping[int, Sequence[int]]


def who_is_there(step: int) -> Present:
    """Return the residents of each GPU: they come and go, and each GPU is empty at some time."""
    return {
        gpu: [slot for slot in range(RESIDENTS) if (step // 20 + slot + gpu) % 6 and (step // 40 + gpu) % 7]
        for gpu in range(GPUS)
    }


def occupants(machine: FakeMachine, present: Present) -> list[Occupant]:
    return [
        holder(f"j{RESIDENTS * gpu + slot}", RESIDENTS * gpu + slot + 1, uuid_of(machine, gpu))
        for gpu, slots in present.items()
        for slot in slots
    ]


def run_step(machine: FakeMachine, step: int, present: Present) -> dict[int, float]:
    """Let the machine draw for one step, with every fault that a counter has; return the true joules.

    GPU 0 loses its counter's value three times, GPU 1 has no counter for a while, GPU 2 is lost for a while.
    """
    true_j = {}
    machine.processes = [
        (gpu, "c", 100 + RESIDENTS * gpu + slot, GIB, 10 + 5 * slot)
        for gpu, slots in present.items()
        for slot in slots
    ]
    for gpu, values in machine.gpus.items():
        power_w = 40.0 + len(present[gpu]) * (40.0 + 20.0 * math.sin(step / 7 + gpu))
        true_j[gpu] = power_w * STEP_S
        values["power_mw"] = round(power_w * 1000)
        values["energy_mj"] += round(true_j[gpu] * 1000)
        values["lost"] = 1 if gpu == 2 and 0.3 < step / STEPS < 0.33 else None
    if step % (STEPS // 3) == 10:
        machine.gpus[0]["energy_mj"] = 0
    machine.errors = {"nvmlDeviceGetTotalEnergyConsumption": {1: 3}} if 0.4 < step / STEPS < 0.6 else {}
    machine.write()
    return true_j


def test_c53_c55_an_hour_on_real_counters_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Residents plus idle are the devices within 1 %, each device is its true energy within 1 %, whatever
    counters do and whoever comes and goes.
    """
    machine = fake_machine(tmp_path, monkeypatch, GPUS)
    processes = ListedProcesses({99 + token: (job_id, token) for job_id, token in KEYS})
    meter, rows = direct_meter(clock, processes), KeptParts()
    meter.inventory()
    true_j: dict[int, float] = defaultdict(float)
    for step in range(STEPS):
        present = who_is_there(step)
        clock.advance(STEP_S)
        for gpu, used_j in run_step(machine, step, present).items():
            true_j[gpu] += used_j
        meter.read()
        meter.occupy(occupants(machine, present))
    meter.write_interim(KEYS, rows)
    devices = meter.device_energy()
    runs_j = math.fsum(part.energy_j or 0.0 for part in rows.parts)
    idle_j = math.fsum(device.idle_j for device in devices.values())
    assert {part.job_id for part in rows.parts} == {job_id for job_id, _ in KEYS}
    assert {part.method for part in rows.parts} == {EnergyMethod.COUNTER, EnergyMethod.INTEGRATED}
    assert 0.01 < idle_j / runs_j < 0.5
    assert runs_j + idle_j == pytest.approx(math.fsum(true_j.values()), rel=0.01)
    for gpu, used_j in true_j.items():
        assert devices[uuid_of(machine, gpu)].energy_j == pytest.approx(used_j, rel=0.01)
