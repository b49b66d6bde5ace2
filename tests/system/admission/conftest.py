"""EacoExecutor alone: whose turn it is, in which Airflow pool."""

from tests.system.executor_alone import alone, quiet_rig, rig

__all__ = ["alone", "quiet_rig", "rig"]
