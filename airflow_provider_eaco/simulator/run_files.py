"""The files of a run: what anybody needs to recompute every figure. Each is there whole or not at all.

Times have millisecond precision, which is the grid of the simulation; other numbers are written with all the
digits that tell them apart, so that the same run gives the same bytes.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from airflow_provider_eaco.simulator.recording import (
    Decided,
    LimitInterval,
    NodeInterval,
    Recording,
    RunInterval,
)
from airflow_provider_eaco.simulator.trace import TraceJob, write_trace
from airflow_provider_eaco.simulator.whole_file import whole_file

SCHEDULE_COLUMNS = ("job_id", "start_s", "end_s", "node", "gpus", "residents", "rate")
NODE_COLUMNS = ("node", "start_s", "end_s", "state", "power_w")
LIMIT_COLUMNS = ("node", "gpus", "start_s", "end_s", "limit_w")
DECISION_COLUMNS = (
    "time_s",
    "job_id",
    "verdict",
    "reason",
    "node",
    "gpus",
    "predicted_rate",
    "predicted_energy_j",
)

Cells = Sequence[str]


def write_run(
    folder: Path,
    jobs: Sequence[TraceJob],
    recording: Recording,
    summary: Mapping[str, object],
) -> None:
    """Write ``jobs.csv``, ``schedule.csv``, ``nodes.csv``, ``decisions.csv`` and ``summary.json``.

    Where power was limited, ``limits.csv`` says where and when. The summary comes last: where it stands, the
    others are of the same run.
    """
    write_trace(folder / "jobs.csv", jobs, further=False)
    order = {job.job_id: number for number, job in enumerate(jobs)}
    by_job = sorted(recording.runs, key=lambda run: (order[run.job_id], run.start_s))
    by_node = sorted(recording.nodes, key=lambda node: (node.node, node.start_s))
    _write(folder / "schedule.csv", SCHEDULE_COLUMNS, map(_run_cells, by_job))
    _write(folder / "nodes.csv", NODE_COLUMNS, map(_node_cells, by_node))
    _write(folder / "decisions.csv", DECISION_COLUMNS, map(decision_cells, recording.decisions))
    by_place = sorted(recording.limits, key=lambda limit: (limit.node, limit.gpus, limit.start_s))
    if by_place:
        _write(folder / "limits.csv", LIMIT_COLUMNS, map(_limit_cells, by_place))
    else:
        (folder / "limits.csv").unlink(missing_ok=True)
    with whole_file(folder / "summary.json") as partial:
        partial.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _write(path: Path, columns: Sequence[str], rows: Iterable[Cells]) -> None:
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _run_cells(run: RunInterval) -> Cells:
    residents = ";".join(run.residents)
    return (
        run.job_id,
        _time(run.start_s),
        _time(run.end_s),
        run.node,
        _gpus(run.gpus),
        residents,
        _number(run.rate),
    )


def _node_cells(node: NodeInterval) -> Cells:
    return node.node, _time(node.start_s), _time(node.end_s), node.state.value, _number(node.power_w)


def _limit_cells(limit: LimitInterval) -> Cells:
    gpus = _gpus(limit.gpus)
    return limit.node, gpus, _time(limit.start_s), _time(limit.end_s), _number(limit.limit_w)


def decision_cells(decided: Decided) -> Cells:
    """Return the line of ``decisions.csv``."""
    return (
        _time(decided.time_s),
        decided.job_id,
        decided.verdict,
        decided.reason,
        decided.node,
        _gpus(decided.gpus),
        _number(decided.predicted_rate),
        _number(decided.predicted_energy_j),
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _gpus(gpus: Sequence[int]) -> str:
    return ";".join(map(str, gpus))


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
