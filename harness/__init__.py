"""Runs a small real Airflow on this machine, for the tests, the demo and the benchmarks."""

from harness.airflow import Airflow
from harness.errors import HarnessError
from harness.settings import AirflowSettings

__all__ = ["Airflow", "AirflowSettings", "HarnessError"]
