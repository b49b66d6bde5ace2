"""A training's life in a real Airflow: yield, retry and clear, through Airflow's own task state store.

Tasks run by ``dag.test()``: Airflow's task runner, execution API and database, without a scheduler.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DAG = """
import json
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

TRACE = Path(__file__).with_name("trace.jsonl")


def trace(**seen):
    with TRACE.open("a") as lines:
        lines.write(json.dumps(seen) + "\\n")


def train(epochs, at_epoch):
    from airflow_provider_eaco import training_run

    context = get_current_context()
    ti = context["ti"]
    with training_run(epochs=epochs) as run:
        trace(task=ti.task_id, try_number=ti.try_number, start=run.units_done, checkpoint=run.checkpoint)
        for epoch in run.epochs():
            at_epoch(epoch, ti.try_number, context["task_state_store"])
            run.report(checkpoint=f"/ckpt/{ti.task_id}/{epoch + 1}")
    trace(task=ti.task_id, try_number=ti.try_number, end=run.units_done)


with DAG("life", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:

    @task.eaco
    def yields():
        os.environ["EACO_LEASE_TOKEN"] = "7"

        def ask_once(epoch, try_number, store):
            said = {"v": 1, "token": 7, "set_version": 1, "yield": epoch == 1}
            if epoch == 1 or store.get("eaco/instruction") is not None:
                store.set("eaco/instruction", said)

        train(4, ask_once)

    @task.eaco
    def fails_once():
        def fail_once(epoch, try_number, store):
            if epoch == 2 and try_number == 1:
                raise RuntimeError("the first try ends here")

        train(4, fail_once)

    @task.eaco
    def runs_out():
        os.environ["EACO_LEASE_TOKEN"] = "9"

        def run_out_beside_another(epoch, try_number, store):
            store.set("eaco/energy", {"token": 9, "record": {"energy_j": 50.0, "method": "counter"}})
            if epoch == 1 and store.get("eaco/instruction") is None:
                store.set("eaco/instruction", {"v": 1, "token": 9, "set_version": 1, "residents": 2})
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

        train(3, run_out_beside_another)

    yields()
    fails_once()
    runs_out()
"""
RUN = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.models.taskinstance import clear_task_instances
from airflow.sdk.definitions.dag import _run_task
from airflow.utils.session import create_session
from sqlalchemy import text

bag = DagBag(FOLDER)
assert not bag.import_errors, bag.import_errors
dag = bag.dags["life"]
run = dag.test()
print("FOUND", json.dumps({"state": run.state}))
with create_session() as session:
    (ti,) = [each for each in run.get_task_instances(session=session) if each.task_id == "fails_once"]
    clear_task_instances([ti], session)
with create_session() as session:
    (ti,) = [each for each in run.get_task_instances(session=session) if each.task_id == "fails_once"]
    ti.try_number += 1
    session.commit()
    _run_task(ti=ti, task=dag.task_dict["fails_once"])
    rows = session.execute(text("select task_id, value from task_state_store where key = 'eaco/progress'"))
    print("FOUND", json.dumps({task_id: json.loads(value) for task_id, value in rows}))
    pushed = session.execute(text("select task_id, value from xcom where key = 'eaco_energy'"))
    print("FOUND", json.dumps({task_id: value for task_id, value in pushed}))
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> dict[str, Any]:
    """Run the DAG once, clear the task that failed once, run that again; return what was seen."""
    home = tmp_path_factory.mktemp("airflow")
    shutil.copy(migrated, home / "airflow.db")
    folder = home / "dags"
    folder.mkdir()
    (folder / "life.py").write_text(DAG)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("FOLDER", repr(str(folder)))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    state, progress, energy = map(json.loads, lines)
    trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return {**state, "progress": progress, "energy": energy, "trace": trace}


def seen(life: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "task"} for line in life["trace"] if line["task"] == task]


@pytest.mark.timeout(320)
def test_a_yield_is_a_reschedule_of_the_same_try(life: dict[str, Any]) -> None:
    """The task leaves after the unit it was asked in, comes back with the same try number, and ends well."""
    assert seen(life, "yields") == [
        {"try_number": 1, "start": 0, "checkpoint": None},
        {"try_number": 1, "start": 2, "checkpoint": "/ckpt/yields/2"},
        {"try_number": 1, "end": 4},
    ]
    assert life["progress"]["yields"]["units_done"] == 4
    assert life["state"] == "success"


@pytest.mark.timeout(320)
def test_a_retry_resumes_and_a_clear_starts_from_nothing(life: dict[str, Any]) -> None:
    """After a failure the next try goes on from the checkpoint; after Airflow cleared it, it forgets."""
    assert seen(life, "fails_once") == [
        {"try_number": 1, "start": 0, "checkpoint": None},
        {"try_number": 2, "start": 2, "checkpoint": "/ckpt/fails_once/2"},
        {"try_number": 2, "end": 4},
        {"try_number": 3, "start": 0, "checkpoint": None},
        {"try_number": 3, "end": 4},
    ]
    assert life["progress"]["fails_once"]["try_number"] == 3


@pytest.mark.timeout(320)
def test_c38_a_training_out_of_memory_comes_back_with_its_retries_untouched(life: dict[str, Any]) -> None:
    """It leaves by reschedule, goes on from its checkpoint with the same try number, and says why it left."""
    assert seen(life, "runs_out") == [
        {"try_number": 1, "start": 0, "checkpoint": None},
        {"try_number": 1, "start": 1, "checkpoint": "/ckpt/runs_out/1"},
        {"try_number": 1, "end": 3},
    ]
    assert life["progress"]["runs_out"]["out_of_memory"] == 1


@pytest.mark.timeout(320)
def test_the_end_of_a_training_leaves_its_energy_in_xcom(life: dict[str, Any]) -> None:
    """Where the executor has told it; the others push nothing."""
    assert life["energy"].keys() == {"runs_out"}
    pushed = json.loads(life["energy"]["runs_out"])
    assert pushed == {"energy_j": 50.0, "method": "counter", "final": False}
