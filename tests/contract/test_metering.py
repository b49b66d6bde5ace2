"""Both meters keep accounts of runs: the simulated node, and real GPUs through NVML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.telemetry.simulated import SimulatedDevice
from tests.contract.metering_suite import MeteringContract
from tests.contract.parts import ManualClock
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import direct_meter
from tests.unit.telemetry.rig import make_cluster


class TestSimulatedMetering(MeteringContract):
    """The simulated node, on simulated time."""

    @pytest.fixture
    def meter(self, clock: ManualClock, tmp_path: Path) -> Any:
        self.clock_of_test, self.state = clock, tmp_path / "eaco" / "state.json"
        return make_cluster(self.state, clock)

    def work(self, meter: Any, occupants: Sequence[Occupant]) -> None:
        devices = [
            SimulatedDevice(self.state, one.job_id, one.token, clock=self.clock_of_test.now_s)
            for one in occupants
        ]
        for device in devices:
            device.begin_unit()
        # Longer than a job that does not wait for its unit may hold the clock.
        self.clock_of_test.advance(60)


class TestNvmlMetering(MeteringContract):
    """Two V100 behind NVML, which draw for a minute."""

    @pytest.fixture
    def meter(self, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        self.clock_of_test = clock
        self.machine: FakeMachine = fake_machine(tmp_path, monkeypatch)
        return direct_meter(clock)

    def work(self, meter: Any, occupants: Sequence[Occupant]) -> None:
        for values in self.machine.gpus.values():
            values["energy_mj"] += 60 * 200_000
        self.machine.set(0, gpu_pct=50, memory_pct=20)
        self.clock_of_test.advance(60)
        meter.read()
