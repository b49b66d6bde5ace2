"""One of several processes that work on one state file; imports little, so that it starts fast."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_eaco.telemetry.simulated_device import SimulatedDevice


def do_units(state: Path, token: int, units: int) -> None:
    """Do ``units`` units as the job of this token, on the real clock; each must take its 600 s."""
    one = SimulatedDevice(state, f"job-{token}", token)
    for _ in range(units):
        one.begin_unit()
        elapsed_s = one.wait_unit()
        if elapsed_s is None or abs(elapsed_s - 600) > 1e-6:
            raise AssertionError(f"a unit took {elapsed_s} s")
