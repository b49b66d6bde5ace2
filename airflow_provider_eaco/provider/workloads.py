"""What runs inside a task's fresh process: Airflow's supervisor for one workload."""

from __future__ import annotations

import io
import re
import sys
from typing import Any, BinaryIO

from airflow_provider_eaco.provider.compat import decode_workload, notice_ends_at_once

ENTRY_POINT = f"{__name__}:run_workload"
# What the forkserver imports once, so that no task pays for it. None of these starts a thread, opens a
# connection or touches CUDA when it is imported.
PRELOAD = (
    "airflow.executors.workloads",
    "airflow.executors.base_executor",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    # What every task imports to read its DAG file: half a second of a small machine's time.
    "airflow.dag_processing.bundles.local",
    "airflow.dag_processing.dagbag",
    "airflow.providers.standard.decorators.python",
    "airflow.sdk.definitions.asset.metadata",
    "airflow.sdk.definitions.decorators",
    "airflow_provider_eaco.provider.decorators",
    "airflow_provider_eaco.provider.workloads",
)

_ROUTINE = re.compile(rb'"level": ?"(debug|info)"')


class _WarningsOnly(io.BytesIO):
    """Where the supervisor's own log goes: what is wrong reaches the task's log, its routine does not.

    Its level cannot do this, since the same level filters what the task prints.
    """

    def __init__(self, target: BinaryIO) -> None:
        super().__init__()
        self._target = target

    def write(self, line: Any) -> int:
        if not _ROUTINE.search(bytes(line)):
            self._target.write(line)
            self._target.flush()
        return len(line)


def log_path_of(payload: str) -> str | None:
    """Return where the workload's log belongs, relative to Airflow's log folder.

    :raises ValueError: if the payload is no workload.
    """
    path: str | None = getattr(decode_workload(payload), "log_path", None)
    return path


def run_workload(payload: str) -> None:
    """Run the workload whose JSON is ``payload`` to its end; its own outcome is in Airflow's database then.

    :raises Exception: whatever kept the workload from running: a dead API server, a refused token.
    """
    from airflow.executors.base_executor import BaseExecutor
    from airflow.sdk.log import configure_logging
    from airflow.settings import dispose_orm

    # The database is the scheduler's; a task reaches Airflow by its API alone.
    dispose_orm(do_log=False)
    configure_logging(output=_WarningsOnly(sys.stderr.buffer), json_output=True)
    notice_ends_at_once()
    BaseExecutor.run_workload(decode_workload(payload), subprocess_logs_to_stdout=False)
