"""The simulated node keeps the contract of a meter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_eaco.core.ports import Telemetry
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, TruthTable, simulated_node
from tests.contract.parts import ManualClock
from tests.contract.telemetry_suite import TelemetryContract


class TestSimulatedCluster(TelemetryContract):
    """The simulated node."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path, clock: ManualClock) -> None:
        self.folder = tmp_path / "eaco"
        self.clock_of_test = clock

    @pytest.fixture
    def meter(self, clock: ManualClock) -> Telemetry:
        return self._cluster()

    def _cluster(self) -> SimulatedCluster:
        nodes = [simulated_node("n1", 2), simulated_node("n2", 1, "A100-40")]
        return SimulatedCluster(
            self.folder / "state.json",
            nodes,
            TruthTable(built_in_book()),
            time_scale=600.0,
            clock=self.clock_of_test.now_s,
        )

    def again(self, meter: Telemetry) -> Telemetry:
        return self._cluster()

    def break_source(self, meter: Telemetry) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.touch()
