"""The example DAGs run in a real Airflow that has the provider installed and its executor not configured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DAGS = Path(__file__).parents[2] / "dags"
RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.utils.session import create_session
from sqlalchemy import text

bag = DagBag(sys.argv[1])
found = {}
for dag_id, dag in bag.dags.items():
    found[dag_id] = {"state": dag.test(run_conf={"epochs": 3}).state, "returned": {}}
with create_session() as session:
    rows = "select dag_id, task_id, map_index, value from xcom where key = 'return_value'"
    for dag_id, task_id, map_index, value in session.execute(text(rows)):
        # A number comes out of SQLite as one, everything else as JSON.
        value = json.loads(value) if isinstance(value, str) else value
        found[dag_id]["returned"][f"{task_id}[{map_index}]"] = value
print("FOUND", json.dumps(found))
"""
EXAMPLES = ["exclusive_baseline", "coallocated_training", "stretch_limit", "mapped_sweep", "unannotated"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> dict[str, Any]:
    """Run every example once; return each one's state and what its tasks returned."""
    home = tmp_path_factory.mktemp("airflow")
    shutil.copy(migrated, home / "airflow.db")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(DAGS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return dict(json.loads(line))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("dag_id", EXAMPLES)
def test_an_example_runs_with_the_executor_removed(examples: dict[str, Any], dag_id: str) -> None:
    """Every task succeeds, and what was trained recognises more than nine of ten unseen digits."""
    assert examples[dag_id]["state"] == "success"
    returned = examples[dag_id]["returned"].values()
    accuracies = [each["accuracy"] if isinstance(each, dict) else each for each in returned]
    assert accuracies
    assert max(accuracies) > 0.9


def test_no_example_is_left_out(examples: dict[str, Any]) -> None:
    """Each DAG in the folder is one of those that were run."""
    assert sorted(examples) == sorted(EXAMPLES)
