"""A training whose data loaders, and whose own process, take no notice of SIGTERM (case C27)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(900)"


def train(params=None, ti=None):
    folder = Path(params["folder"])
    if ti.try_number > 1:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loaders = [
        subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=detached)
        for detached in (False, True)
    ]
    pids = [os.getpid(), *(loader.pid for loader in loaders)]
    (folder / "pids.json.new").write_text(json.dumps(pids))
    (folder / "pids.json.new").rename(folder / "pids.json")
    time.sleep(900)


def deaf(dag_id: str, **arguments) -> DAG:
    with DAG(dag_id, schedule=None, params={"folder": ""}, **arguments) as dag:
        task.eaco(gpus=1)(train).override(task_id="work")()
    return dag


deaf_training = deaf("deaf")
deaf_with_timeout = deaf("deaf_with_timeout", dagrun_timeout=timedelta(seconds=30))
