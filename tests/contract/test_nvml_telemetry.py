"""The NVML meter keeps the contract of a meter: the real pynvml over a library that answers from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.core.ports import Telemetry
from tests.contract.parts import ManualClock
from tests.contract.telemetry_suite import TelemetryContract
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import direct_meter


class TestNvmlTelemetry(TelemetryContract):
    """Two V100 behind NVML."""

    @pytest.fixture(autouse=True)
    def _machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
        self.machine: FakeMachine = fake_machine(tmp_path, monkeypatch)
        self.clock_of_test = clock

    @pytest.fixture
    def meter(self, clock: ManualClock) -> Telemetry:
        return direct_meter(clock)

    def again(self, meter: Telemetry) -> Telemetry:
        return direct_meter(self.clock_of_test)

    def break_source(self, meter: Telemetry) -> None:
        """Do as a driver that was replaced under a running NVML."""
        self.machine.errors = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInitWithFlags"), 18)
        self.machine.write()
