"""Run twelve real trainings on two simulated GPU nodes under three policies in turn, and compare them.

Everything is real except the GPUs: Airflow with its scheduler and API server, the executor, the trainings.
Figures are in the simulated nodes' time (ADR 0002).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rich.console import Console
from rich.live import Live
from sqlalchemy.orm import sessionmaker

from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.store.read_model import ReadModel
from airflow_provider_eaco.store.session import Database
from airflow_provider_eaco.telemetry.history import History
from airflow_provider_eaco.telemetry.simulated import read_history
from demo.figures import PolicyFigures, TaskOutcome, TaskRow, policy_figures, summary, task_rows
from demo.show import cluster_table, policy_table, task_table
from harness import Airflow, AirflowSettings, HarnessError
from harness.airflow import FINAL_RUN_STATES

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "demo"
# In this order: each begins with what the runs before it have taught.
POLICIES = ("exclusive", "eaco", "frontier")
NODES = ("sim-1", "sim-2")
GPUS_PER_NODE = 8
# As many as let three policies take less than four minutes on two cores, slow ones too.
EPOCHS = 6
# Pairs of these trainings take 3.5 % longer: under frontier's default of 1.03 hardly any would share.
LIMITS = {"frontier": {"mean_stretch": 1.05}}
TIME_SCALE = 1500.0
# Longer than any run here; a demo that hangs ends with the components' last lines instead of waiting.
RUN_DEADLINE_S = 300.0

# What these nodes do to one set of families, unlike what was measured elsewhere and is believed: their
# storage cannot feed this trio. A co-allocation that looks good on paper has to be found out and undone.
SLOW_TRIO = {"families": ["J1", "J2", "J4"], "slowdowns": [1.3, 1.3, 1.3]}


def main() -> int:
    """Run the demo and return the exit code: 0 only if every task of every policy succeeded."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave Airflow up until Ctrl-C")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Without a terminal the width is unknown; the tables need this much.
    console = Console(width=None if sys.stdout.isatty() else 132)
    shutil.rmtree(BUILD, ignore_errors=True)
    airflow = Airflow(_settings())
    try:
        console.print("Starting Airflow (database, API server, DAG processor, scheduler) on loopback ...")
        airflow.start()
        code = _compare(airflow, console)
        if arguments.keep:
            console.print(f"Airflow is up at {airflow.api.base_url}; Ctrl-C stops it.")
            signal.pause()
    except KeyboardInterrupt:
        console.print("Stopping everything.")
        code = 130
    except HarnessError as error:
        console.print(str(error), style="red", markup=False)
        code = 1
    finally:
        airflow.stop()
    return code


def _settings() -> AirflowSettings:
    node_setting = [
        {"name": name, "gpus": GPUS_PER_NODE, "gpu_model": "V100", "gpu_memory": "16GiB"} for name in NODES
    ]
    pools = {
        policy: {
            "mode": "exclusive" if policy == "exclusive" else "share",
            "policy": policy,
            **LIMITS.get(policy, {}),
        }
        for policy in POLICIES
    }
    paths = os.pathsep.join([str(ROOT / "dags"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return AirflowSettings(
        home=BUILD / "airflow",
        dags_folder=ROOT / "demo" / "dags",
        executor="airflow_provider_eaco.EacoExecutor",
        options={
            "core.parallelism": "16",
            "logging.logging_level": "INFO",
            "eaco.pools": json.dumps(pools),
            "eaco.simulated_nodes": json.dumps(node_setting),
            "eaco.simulated_time_scale": str(TIME_SCALE),
            "eaco.simulated_state": str(_state_file()),
            "eaco.simulated_truth": json.dumps([SLOW_TRIO]),
        },
        environment={"EACO_DEMO_EPOCHS": str(EPOCHS), "PYTHONPATH": paths},
    )


def _state_file() -> Path:
    return BUILD / "airflow" / "simulated.json"


def _compare(airflow: Airflow, console: Console) -> int:
    began = time.monotonic()
    figures: dict[str, PolicyFigures] = {}
    rows: list[TaskRow] = []
    engine = sa.create_engine(airflow.database_url)
    reads = ReadModel(Database(sessionmaker(engine)))
    for policy in POLICIES:
        outcomes = _run_policy(airflow, reads, console, policy)
        history = _history()
        own_rows = task_rows(policy, outcomes, history, _true_epoch_s())
        figures[policy] = policy_figures(own_rows, outcomes, history, len(NODES) * GPUS_PER_NODE)
        rows += own_rows
    engine.dispose()
    facts = {"epochs": EPOCHS, "time_scale": TIME_SCALE, "nodes": list(NODES), "gpus_per_node": GPUS_PER_NODE}
    result = BUILD / "summary.json"
    result.write_text(json.dumps(summary(figures, rows, facts), indent=2) + "\n")
    console.print(task_table(rows))
    console.print(policy_table(figures))
    console.print(
        f"{time.monotonic() - began:.0f} s of wall time; {result.relative_to(ROOT)} holds all figures."
    )
    return int(any(each.failed for each in figures.values()))


def _run_policy(airflow: Airflow, reads: ReadModel, console: Console, policy: str) -> list[TaskOutcome]:
    dag_id = f"demo_{policy}"
    run_id = airflow.trigger(dag_id)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def ended() -> bool:
            table = cluster_table(reads.overview(), policy, EPOCHS)
            if console.is_terminal:
                live.update(table, refresh=True)
            else:
                console.print(table)
            return airflow.api.run_state(dag_id, run_id) in FINAL_RUN_STATES

        pause_s = 0.5 if console.is_terminal else 10.0
        airflow.wait_for(_paced(ended, pause_s), f"the run of {dag_id}", RUN_DEADLINE_S)
    return [_outcome(airflow, dag_id, run_id, each) for each in airflow.api.task_instances(dag_id, run_id)]


def _paced(condition: Callable[[], bool], pause_s: float) -> Callable[[], bool]:
    """Return the condition, asked once in ``pause_s``; the trainings need the cores more than the view."""
    due = 0.0

    def asked() -> bool:
        nonlocal due
        if time.monotonic() < due:
            return False
        due = time.monotonic() + pause_s
        return condition()

    return asked


def _outcome(airflow: Airflow, dag_id: str, run_id: str, instance: dict[str, Any]) -> TaskOutcome:
    value: dict[str, Any] = {}
    task_id = instance["task_id"]
    if instance["state"] == "success":
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        value = airflow.api.call("GET", path, parameters={"deserialize": "true"})["value"]
    return TaskOutcome(
        instance["id"],
        task_id,
        str(instance["state"]),
        int(instance["try_number"]),
        value.get("epochs"),
        value.get("accuracy"),
    )


def _history() -> History:
    history = read_history(_state_file(), time.time())
    if history is None:
        raise HarnessError(f"no simulated node ever ran: {_state_file().name} is missing")
    return history


def _true_epoch_s() -> dict[str, float]:
    solo = built_in_book().solo.values()
    return {profile.family: profile.unit_s for profile in solo if profile.unit_s is not None}


if __name__ == "__main__":
    sys.exit(main())
