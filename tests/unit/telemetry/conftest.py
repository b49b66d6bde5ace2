from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from tests.contract.parts import ManualClock
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import ListedProcesses, direct_meter


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "eaco" / "simulated.json"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return fake_machine(tmp_path, monkeypatch)


@pytest.fixture
def processes() -> ListedProcesses:
    return ListedProcesses()


@pytest.fixture
def meter(machine: FakeMachine, clock: ManualClock, processes: ListedProcesses) -> NvmlTelemetry:
    meter = direct_meter(clock, processes)
    meter.inventory()
    return meter
