"""Lines of ours in a task's own log, so that its reader sees why it did not start."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path


def prepare(log_path: str) -> Path:
    """Return the log file of a workload, made with Airflow's permissions if it is not there yet.

    :param log_path: relative path, as the workload carries it.
    :raises OSError: if the file cannot be made (disk full, no permission).
    """
    from airflow.sdk.log import init_log_file

    return init_log_file(log_path)


def append(log_path: str, text: str, level: str = "error") -> None:
    """Add one line in the form in which Airflow writes task logs.

    :raises OSError: if the file cannot be written.
    """
    line = {
        "timestamp": datetime.now(tz=UTC).isoformat().replace("+00:00", "Z"),
        "level": level,
        "event": text,
        "logger": "eaco",
    }
    with prepare(log_path).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
