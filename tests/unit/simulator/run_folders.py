"""Folders with the files of small runs, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOBS = """job_id,family,gpus,submit_s,work_s,stretch_limit,priority
a,J1,8,0,3600,,0
b,J4,8,0,3600,1.15,0
c,<J3>,8,600,1800,,0
"""
# a and b share node-0 from 0; c runs alone on node-1, which had to wake for it.
SCHEDULE = """job_id,start_s,end_s,node,gpus,residents,rate
a,0,4000,node-0,0;1;2;3;4;5;6;7,a;b,0.9
b,0,4000,node-0,0;1;2;3;4;5;6;7,a;b,0.9
c,720,2520,node-1,0;1;2;3;4;5;6;7,c,1
"""
NODES = """node,start_s,end_s,state,power_w
node-0,0,4000,active,1500
node-1,0,300,idle,392
node-1,300,600,asleep,15
node-1,600,720,waking,392
node-1,720,2520,active,1330
node-1,2520,2820,idle,392
node-1,2820,4000,asleep,15
"""
ENERGY_J = {
    "active": 1500.0 * 4000 + 1330.0 * 1800,
    "idle": 392.0 * 600,
    "waking": 392.0 * 120,
    "asleep": 15.0 * 1480,
}


def summary(**changed: Any) -> dict[str, Any]:
    return {
        "benchmark": "eaco-nodes",
        "policy": "eaco",
        "order": "fifo",
        "accounting": "sleep",
        "seed": 1,
        "nodes": 2,
        "gpus_per_node": 8,
        "version": "0.1.0",
        "max_residents": 2,
        "energy_j": {"total": sum(ENERGY_J.values()), **ENERGY_J},
        "stretch": {"mean": 1.0889, "unweighted": 1.07, "p95": 1.11, "max": 1.11},
        "wait_s": {"mean": 40.0, "p95": 108.0},
        "jct_s": {"mean": 3306.7, "p95": 4000.0},
        "makespan_s": 4000.0,
        "allocated_utilisation": 0.725,
        "limit_misses": 0,
        "trials": 1,
        "undone": 0,
        "bounds": {"energy_j": 7e6, "energy_j_at_stretch": 7.5e6},
        "further_bounds": {"energy_j_at_stretch_within_limits": 7.6e6},
        "gaps": {"energy_j": 0.2, "energy_j_at_stretch": 0.15},
        "pareto": [
            {"mean_stretch": 1.0, "energy_j": 1e7},
            {"mean_stretch": 1.05, "energy_j": 8e6},
            {"mean_stretch": 1.5, "energy_j": 7e6},
        ],
        **changed,
    }


def run_folder(
    folder: Path,
    jobs: str = JOBS,
    schedule: str = SCHEDULE,
    nodes: str = NODES,
    **changed: Any,
) -> Path:
    """Write the files of one run and return their folder."""
    files: Mapping[str, str] = {
        "jobs.csv": jobs,
        "schedule.csv": schedule,
        "nodes.csv": nodes,
        "summary.json": json.dumps(summary(**changed)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def exclusive_folder(folder: Path, **changed: Any) -> Path:
    """Write a run of FIFO exclusive that took 20 MJ."""
    energy_j = {"total": 2e7, "active": 1.5e7, "idle": 5e6, "waking": 0.0, "asleep": 0.0}
    values = {
        "policy": "exclusive",
        "energy_j": energy_j,
        "stretch": {"mean": 1.0, "unweighted": 1.0, "p95": 1.0, "max": 1.0},
        "bounds": {"energy_j": 7e6, "energy_j_at_stretch": 1e7},
    }
    return run_folder(folder, **{**values, **changed})


def many_jobs(count: int) -> tuple[str, str]:
    """Return the texts of ``jobs.csv`` and ``schedule.csv`` with one short job after another on one GPU."""
    jobs = ["job_id,family,gpus,submit_s,work_s,stretch_limit,priority"]
    schedule = ["job_id,start_s,end_s,node,gpus,residents,rate"]
    for number in range(count):
        jobs.append(f"j{number},F{number % 12},1,{10 * number},10,,0")
        schedule.append(f"j{number},{10 * number},{10 * number + 10},node-0,{number % 2},j{number},1")
    return "\n".join(jobs) + "\n", "\n".join(schedule) + "\n"
