"""EacoExecutor alone: how tasks are held, live and share."""

from tests.system.executor_alone import alone, quiet_rig, rig

__all__ = ["alone", "quiet_rig", "rig"]
