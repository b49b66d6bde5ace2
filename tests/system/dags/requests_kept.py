"""Requests of overridden and mapped tasks, of one that fails, and of ten that load a GPU library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow.sdk import DAG, task

PARAMS = {"folder": ""}


def note_it(index=0, params=None, ti=None):
    from told import note

    note(Path(params["folder"]), ti)


with DAG("requests_kept", schedule=None, params=PARAMS) as kept:
    asks = task.eaco(gpus=1)(note_it)
    asks.override(task_id="two", gpus=2)()
    asks.override(task_id="each").expand(index=[0, 1])
    asks.override(task_id="wider", gpus=3).expand(index=[0])


def note_failure(context):
    (Path(context["params"]["folder"]) / "failure-callback").touch()


with DAG("fails", schedule=None, params=PARAMS) as fails:

    @task.eaco(gpus=1, on_failure_callback=note_failure)
    def work():
        raise RuntimeError("it was bound to fail")

    work()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def load_cuda(index, params=None, ti=None):
    from told import note

    loaded_before = "fake_cuda" in sys.modules
    import fake_cuda

    # Its parent is its supervisor, whose parent is the keeper, whose parent is what all are forked from.
    forkserver = parent_of(parent_of(os.getppid()))
    note(
        Path(params["folder"]),
        ti,
        seen=fake_cuda.SEEN,
        loaded_before=loaded_before,
        forkserver=forkserver,
    )


with DAG("loads_cuda", schedule=None, params=PARAMS) as loads:
    task.eaco(gpus=1, pool="wide")(load_cuda).override(task_id="work").expand(index=list(range(10)))
