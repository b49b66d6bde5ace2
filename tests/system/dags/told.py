"""GPU tasks whose end a test decides.

Each leaves a line in ``started.jsonl`` of the folder that its run was told, and ends when the file ``end``,
or ``end-TASK`` for its task alone, or ``end-TASK-INDEX`` for one that is mapped, is there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from airflow.sdk import DAG, task


def note(folder: Path, ti, **more) -> None:
    """Append who runs, with which GPUs; one write, so that many can."""
    line = {
        "task": ti.task_id,
        "map_index": ti.map_index,
        "try_number": ti.try_number,
        "pid": os.getpid(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "node": os.environ.get("EACO_NODE"),
        **more,
    }
    with (folder / "started.jsonl").open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def wait_for_the_end(index=0, params=None, ti=None):
    folder = Path(params["folder"])
    note(folder, ti)
    ends = [folder / name for name in ("end", f"end-{ti.task_id}", f"end-{ti.task_id}-{ti.map_index}")]
    while not any(end.exists() for end in ends):
        time.sleep(0.1)


def note_failure(context):
    """Leave a file when Airflow calls a failure callback."""
    (Path(context["params"]["folder"]) / "failure-callback").touch()


def told(dag_id: str, count: int = 0, **arguments) -> DAG:
    """Return a DAG with one such task ``work``, mapped over ``count`` indexes if that is not 0."""
    with DAG(
        dag_id,
        schedule=None,
        params={"folder": ""},
        max_active_runs=64,
        max_active_tasks=64,
        default_args={"on_failure_callback": note_failure},
    ) as dag:
        work = task.eaco(**arguments)(wait_for_the_end).override(task_id="work")
        if count:
            work.expand(index=list(range(count)))
        else:
            work()
    return dag


anywhere = told("told")
pair = told("told_two", gpus=2)
all_of_a_node = told("told_four", gpus=4)
team = told("told_team", pool="team")
team_pair = told("told_team_two", pool="team", gpus=2)
ghost = told("told_ghost", pool="ghost")
fleeting = told("told_fleeting", pool="fleeting")
too_big = told("told_too_big", gpu_memory="82GiB")
never_fits = told("told_never_fits", pool="impatient", gpu_memory="82GiB")
backlog = told("told_backlog", count=20)
churn = told("told_churn", count=8, pool="sharing", gpus=8)
wide = told("told_wide", pool="wide", count=20)
moody = told("told_moody", pool="moody")
small = told("told_small", pool="ordered", count=3)
late = told("told_late", pool="ordered")
big = told("told_big", pool="ordered", gpus=2, priority_weight=10)
flood = told("told_flood", pool="fair", count=3)
single = told("told_single", pool="fair")
rationed = told("told_rationed", pool="rationed")
off = told("told_off", pool="off")
observed = told("told_observed", pool="observed")

with DAG("told_together", schedule=None, params={"folder": ""}) as together:
    for name in ("J1", "J4"):
        task.eaco(pool="sharing", gpus=8, gpu_memory="3GiB", profile=name)(wait_for_the_end).override(
            task_id=name
        )()

with DAG("cpu", schedule=None, max_active_runs=64) as cpu:

    @task
    def work(index):
        return [index, os.environ.get("CUDA_VISIBLE_DEVICES")]

    work.expand(index=[0, 1, 2, 3])
