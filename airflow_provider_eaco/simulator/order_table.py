"""The table of the benchmark ``order``: what each order uses of the day, over all seeds, beside its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from airflow_provider_eaco.simulator.order_workload import DayKind, DemandKept, Oversized
from airflow_provider_eaco.simulator.report.results import RunResult
from airflow_provider_eaco.simulator.trace import TraceError

UNKNOWN = "\N{EN DASH}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"

# The baselines of one seed, by their name in the table.
Baselines = Mapping[str, RunResult]
Value = Callable[[RunResult, Baselines], float | None]


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    digits: int
    value: Value
    signed: bool = False


def table_of(runs: Sequence[RunResult]) -> str:
    """Return the runs of one scenario, load and size as a table in Markdown: mean and standard deviation.

    :raises TraceError: if a run is not of the benchmark, or one has no baseline under its seed.
    """
    by_label: dict[str, list[RunResult]] = {}
    for run in runs:
        _day(run)
        by_label.setdefault(run.label, []).append(run)
    baselines = _baselines(runs)
    names = list(dict.fromkeys(name for of_seed in baselines.values() for name in of_seed))
    columns = _columns(names)
    lines = [
        _line(["order", "days", *(column.title for column in columns)]),
        _line(["---", "---:", *("---:" for _ in columns)]),
    ]
    for label, group in by_label.items():
        cells = [_cell(column, group, baselines) for column in columns]
        lines.append(_line([label, str(len(group)), *cells]))
    return "\n".join(lines) + "\n"


def _baselines(runs: Sequence[RunResult]) -> Mapping[int, Baselines]:
    """Return FIFO of each seed; beside real-time inference with its peak kept, in both ways to queue."""
    found: dict[int, dict[str, RunResult]] = {}
    for run in runs:
        day = _day(run)
        mixed = day["scenario"] == DayKind.MIXED
        if run.summary["order"] == "fifo" and (not mixed or day["demand"] == DemandKept.PEAK):
            blocks = mixed and day["oversized"] == Oversized.WAIT
            name = "fifo that oversized jobs block" if blocks else "fifo"
            found.setdefault(int(run.summary["seed"]), {})[name] = run
    for run in runs:
        if int(run.summary["seed"]) not in found:
            raise TraceError(str(run.folder), f"has no fifo beside it, seed {run.summary['seed']}")
    return found


def _columns(baselines: Sequence[str]) -> list[_Column]:
    return [
        _Column("used, %", 1, lambda run, _: 100 * _day(run)["used"]),
        *(_Column(f"to {name}, points", 1, _gain(name), signed=True) for name in baselines),
        _Column("no schedule exceeds, %", 1, lambda run, _: 100 * _day(run)["bound"]),
        _Column("below it, points", 1, lambda run, _: 100 * (_day(run)["bound"] - _day(run)["used"])),
        _Column("value, %", 1, lambda run, _: 100 * _day(run)["value"]),
        _Column("mean wait, h", 2, lambda run, _: run.summary["wait_s"]["mean"] / 3600),
        _Column("p95 wait, h", 2, lambda run, _: run.summary["wait_s"]["p95"] / 3600),
        _Column("never started", 1, lambda run, _: _day(run)["never_started"]),
        _Column("decision p50, ms", 2, lambda run, _: run.summary["decision_ms"]["p50"]),
        _Column("p99, ms", 2, lambda run, _: run.summary["decision_ms"]["p99"]),
    ]


def _gain(name: str) -> Value:
    def gain(run: RunResult, baselines: Baselines) -> float | None:
        base = baselines.get(name)
        return None if base is None else 100 * (_day(run)["used"] - _day(base)["used"])

    return gain


def _day(run: RunResult) -> Mapping[str, Any]:
    day = run.summary.get("order_day")
    if not isinstance(day, dict):
        raise TraceError(str(run.folder), "is no run of the benchmark order")
    return day


def _cell(column: _Column, group: Sequence[RunResult], baselines: Mapping[int, Baselines]) -> str:
    values = [column.value(run, baselines[int(run.summary["seed"])]) for run in group]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return UNKNOWN
    sign = "+" if column.signed else ""
    mean = f"{fmean(known):{sign}.{column.digits}f}"
    return mean if len(known) < 2 else f"{mean} {PLUS_MINUS} {stdev(known):.{column.digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
