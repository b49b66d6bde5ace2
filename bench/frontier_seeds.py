"""``python -m bench.frontier_seeds DIR ...``: the tables of frontier's page.

A row for each way in which the jobs were run, over the seeds: mean (lowest to highest). The distance is to
the bound under which every job keeps its own limit; ``eaco-sim figures`` takes it without these limits.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from airflow_provider_eaco.simulator.bounds import distance_to_bound
from airflow_provider_eaco.simulator.figures import MINUS, UNKNOWN, Spread
from airflow_provider_eaco.simulator.report.results import Interval, RunResult, read_run
from airflow_provider_eaco.simulator.scenario import EXCLUSIVE, Accounting
from airflow_provider_eaco.simulator.trace import TraceError

FIRST_DAY_S = 24 * 3600.0
# Times in the files are whole milliseconds.
ROUNDING_S = 2e-3

# The run, and FIFO exclusive under the same seed by its accounting.
Value = Callable[[RunResult, dict[str, RunResult]], float | None]


def _total_j(run: RunResult) -> float:
    return run.energy_j["total"]


def _saved_pct(run: RunResult, base: dict[str, RunResult]) -> float:
    return 100 * (_total_j(run) / _total_j(base[run.accounting]) - 1)


def _saved_to_always_on_pct(run: RunResult, base: dict[str, RunResult]) -> float | None:
    always_on = base.get(Accounting.ALWAYS_ON)
    return None if always_on is None else 100 * (_total_j(run) / _total_j(always_on) - 1)


def _distance(run: RunResult, base: dict[str, RunResult]) -> float | None:
    bound_j = run.bound_within_limits_j
    if bound_j is None:
        return None
    return 100 * distance_to_bound(_total_j(run), bound_j, _total_j(base[run.accounting]))


def _hours(name: str) -> Value:
    return lambda run, _: float(run.summary[name]["mean"]) / 3600


def _count(name: str) -> Value:
    return lambda run, _: float(run.summary[name])


def _left_pct(run: RunResult, _: dict[str, RunResult]) -> float:
    """Return which part of the GPU time after the first day belongs to sets that somebody was made to leave.

    All the time of such a set counts, whatever was done in it, and moves count as undone trials do.
    """
    return _part_pct(run, lambda row: _gpu_s(row) / len(row.residents))


def _lost_pct(run: RunResult, _: dict[str, RunResult]) -> float:
    """Return which part of the GPU time was lost in these sets: what their work would not have needed alone.

    Less than nothing where they did more together than one after the other. Restarts are not in it.
    """
    return _part_pct(run, lambda row: _gpu_s(row) * (1 / len(row.residents) - row.rate))


def _part_pct(run: RunResult, part_of: Callable[[Interval], float]) -> float:
    by_job: dict[str, list[Interval]] = defaultdict(list)
    for row in sorted(run.schedule, key=attrgetter("start_s")):
        by_job[row.job_id].append(row)
    left = {
        _set_of(row)
        for rows in by_job.values()
        for row, after in pairwise(rows)
        if (row.node, row.gpus) != (after.node, after.gpus) or after.start_s - row.end_s > ROUNDING_S
    }
    later = [row for row in run.schedule if row.start_s >= FIRST_DAY_S]
    # Each resident has a row of the same time.
    whole_s = sum(_gpu_s(row) / len(row.residents) for row in later)
    return 100 * sum(part_of(row) for row in later if _set_of(row) in left) / whole_s if whole_s else 0.0


def _set_of(row: Interval) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return row.node, row.gpus, tuple(sorted(row.residents))


def _gpu_s(row: Interval) -> float:
    return len(row.gpus) * (row.end_s - row.start_s)


COLUMNS: Sequence[tuple[str, int, Value]] = (
    ("mean stretch, %", 2, lambda run, _: 100 * (run.mean_stretch - 1)),
    ("distance, points", 2, _distance),
    ("energy, %", 1, _saved_pct),
    ("to FIFO always-on, %", 1, _saved_to_always_on_pct),
    ("mean wait, h", 2, _hours("wait_s")),
    ("mean JCT, h", 2, _hours("jct_s")),
    ("limits missed", 0, _count("limit_misses")),
    ("undone", 0, _count("undone")),
    ("out of memory", 0, _count("oom")),
    ("in sets left, %", 2, _left_pct),
    ("lost there, %", 2, _lost_pct),
)


def table_of(folder: Path) -> str:
    """Return the runs in ``folder``, at any depth, as a Markdown table.

    :raises TraceError: if there is none, or one lacks FIFO exclusive of its own seed and accounting.
    """
    runs = [read_run(path.parent) for path in sorted(folder.rglob("summary.json"))]
    if not runs:
        raise TraceError(str(folder), "has no run; expected folders with a summary.json")
    baselines: dict[int, dict[str, RunResult]] = defaultdict(dict)
    rows: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    for run in runs:
        rows[run.label, run.accounting].append(run)
        if (run.summary["policy"], run.summary["order"]) == (EXCLUSIVE, "fifo"):
            baselines[int(run.summary["seed"])][run.accounting] = run
    for run in runs:
        if run.accounting not in baselines[int(run.summary["seed"])]:
            raise TraceError(str(run.folder), "has no FIFO exclusive of its seed and accounting beside it")
    head = ["policy", "accounting", "seeds", *(title for title, _, _ in COLUMNS)]
    lines = [_line(head), _line(["---", "---", *("---:" for _ in head[2:])])]
    for (label, accounting), group in rows.items():
        seeds = ", ".join(map(str, sorted(int(run.summary["seed"]) for run in group)))
        pairs = [(run, baselines[int(run.summary["seed"])]) for run in group]
        cells = [_cell([value(run, base) for run, base in pairs], digits) for _, digits, value in COLUMNS]
        lines.append(_line([label, accounting, seeds, *cells]))
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return UNKNOWN
    spread = Spread.of(known)
    mean, low, high = (
        f"{round(value, digits) or 0.0:.{digits}f}".replace("-", MINUS)
        for value in (spread.mean, spread.low, spread.high)
    )
    return mean if low == high else f"{mean} ({low} to {high})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(f"`{Path(each).name}`:\n\n{table_of(Path(each))}")  # noqa: T201 - the answer
