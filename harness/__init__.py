"""Runs a small real Airflow on this machine, for the tests, the demo and the benchmarks."""

from harness.airflow import Airflow, AirflowSettings
from harness.errors import HarnessError

__all__ = ["Airflow", "AirflowSettings", "HarnessError"]
