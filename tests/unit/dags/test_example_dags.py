"""The example DAGs parse with EacoExecutor, beside another executor, and with the provider switched off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DAGS = Path(__file__).parents[3] / "dags"
OURS = "airflow_provider_eaco.EacoExecutor"
RULES = [{"match": {"dag_id": "unannotated"}, "request": {"gpus": 8, "gpu_memory": "3GiB"}}]
# A process of its own each: Airflow reads which executors there are only once.
DUMP = f"""
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(DAGS)!r})
tasks = {{
    f"{{dag_id}}.{{task.task_id}}": [task.executor, task.pool, task.executor_config.get("eaco")]
    for dag_id, dag in bag.dags.items() for task in dag.tasks
}}
print("FOUND " + json.dumps([bag.import_errors, tasks]))
"""
WHOLE_NODE = {"gpus": 8, "gpu_memory": "3072MiB"}
ANNOTATED = {
    **{f"exclusive_baseline.j{n}": {"profile": f"J{n}", "share": "never"} for n in (1, 2, 3, 4)},
    **{f"coallocated_training.j{n}": {"profile": f"J{n}", "max_stretch": 1.1} for n in (1, 2, 3, 4)},
    "stretch_limit.tried_j2": {"profile": "J2", "max_stretch": 1.1, "share": "always"},
    "stretch_limit.tried_j3": {"profile": "J3", "max_stretch": 1.1, "share": "always"},
    "stretch_limit.strict": {"profile": "J4", "max_stretch": 1.01},
    "mapped_sweep.train": {"profile": "J1", "max_stretch": 1.1},
}
PLAIN = ["mapped_sweep.best", "unannotated.train"]


def parsed(home: Path, executors: str, rules: list[Any]) -> dict[str, list[Any]]:
    """Return executor, pool and request of every example task, as Airflow's DAG processor sees them."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": executors,
        "AIRFLOW__EACO__RULES": json.dumps(rules),
    }
    done = subprocess.run(
        [sys.executable, "-c", DUMP],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("FOUND ")]
    errors, tasks = json.loads(line.removeprefix("FOUND "))
    assert errors == {}
    assert sorted(tasks) == sorted([*ANNOTATED, *PLAIN])
    return dict(tasks)


@pytest.mark.parametrize(
    ("executors", "executor", "pool"),
    [
        (OURS, None, "eaco"),
        (f"LocalExecutor,{OURS}", "EacoExecutor", "eaco"),
        ("LocalExecutor", None, "default_pool"),
    ],
    ids=["alone", "beside LocalExecutor", "removed"],
)
def test_the_examples_parse_wherever_the_provider_is_switched_on(
    executors: str, executor: str | None, pool: str, tmp_path: Path
) -> None:
    """Every DAG imports without an error; annotated tasks ask for a whole node under their profile."""
    tasks = parsed(tmp_path, executors, [])
    for name, asked in ANNOTATED.items():
        assert tasks[name] == [executor, pool, {**WHOLE_NODE, **asked}]
    for name in PLAIN:
        assert tasks[name] == [None, "default_pool", None]


def test_a_rule_reaches_the_dag_that_nobody_touched(tmp_path: Path) -> None:
    """With the rule of its docstring the unannotated training asks for a node; others are unchanged."""
    tasks = parsed(tmp_path, f"LocalExecutor,{OURS}", RULES)
    assert tasks["unannotated.train"] == ["EacoExecutor", "default_pool", WHOLE_NODE]
    assert tasks["mapped_sweep.best"] == [None, "default_pool", None]
    assert tasks["coallocated_training.j1"][2]["profile"] == "J1"


def test_the_rule_in_the_docstring_is_the_one_that_is_tested() -> None:
    """What a reader copies from the example is what was tried here."""
    assert f"rules = {json.dumps(RULES)}" in (DAGS / "unannotated.py").read_text()
