"""``eaco-sim figures``: one experiment under several seeds as a table, with means and ranges.

It reads the summaries of runs that are there, whoever made them: a table in a document and the runs behind it
are one command apart.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean

from airflow_provider_eaco.simulator.bounds import distance_to_bound
from airflow_provider_eaco.simulator.report.results import RunResult, read_summary
from airflow_provider_eaco.simulator.scenario import EXCLUSIVE, Accounting
from airflow_provider_eaco.simulator.trace import TraceError

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"


class Format(StrEnum):
    """``MARKDOWN`` shows means with ranges; ``CSV`` has mean, lowest and highest of each in columns."""

    MARKDOWN = "markdown"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(fmean(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Baselines:
    """FIFO exclusive on the same jobs: in the same accounting, and with nodes that are always on."""

    same: RunResult
    always_on: RunResult | None


Value = Callable[[RunResult, Baselines], float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity of a run: its name in CSV, its title with the unit, and how it is shown."""

    name: str
    title: str
    digits: int
    value: Value
    signed: bool = False


def _saved(run: RunResult, base: Baselines) -> float:
    return 100 * (run.energy_j["total"] / base.same.energy_j["total"] - 1)


def _saved_to_always_on(run: RunResult, base: Baselines) -> float | None:
    return None if base.always_on is None else 100 * (run.energy_j["total"] / _total_j(base.always_on) - 1)


def _bound(run: RunResult, base: Baselines) -> float | None:
    bound_j = run.bound_at_stretch_j
    return None if bound_j is None else 100 * (bound_j / _total_j(base.same) - 1)


def _distance(run: RunResult, base: Baselines) -> float | None:
    bound_j = run.bound_at_stretch_j
    return None if bound_j is None else 100 * distance_to_bound(_total_j(run), bound_j, _total_j(base.same))


def _total_j(run: RunResult) -> float:
    return run.energy_j["total"]


def _wait_h(run: RunResult, base: Baselines) -> float:
    return float(run.summary["wait_s"]["mean"]) / 3600


def _active_nodes(run: RunResult, base: Baselines) -> float | None:
    nodes = run.summary.get("active_nodes_mean")
    return None if nodes is None else float(nodes)


def _misses(run: RunResult, base: Baselines) -> float | None:
    misses = run.summary.get("limit_misses")
    return None if misses is None else float(misses)


COLUMNS: Sequence[Column] = (
    Column("energy_pct", "energy, %", 1, _saved, signed=True),
    Column("energy_to_always_on_pct", "to FIFO always-on, %", 1, _saved_to_always_on, signed=True),
    Column("bound_pct", "bound at its stretch, %", 1, _bound, signed=True),
    Column("distance_points", "above the bound, points", 1, _distance),
    Column(
        "mean_stretch_pct",
        "mean stretch, %",
        2,
        lambda run, base: 100 * (run.mean_stretch - 1),
        signed=True,
    ),
    Column("mean_wait_h", "mean wait, h", 2, _wait_h),
    Column("active_nodes", "active nodes", 1, _active_nodes),
    Column("limit_misses", "limit misses", 0, _misses),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to run the jobs, in one accounting; ``spreads`` by the name of the column."""

    label: str
    accounting: str
    seeds: tuple[int, ...]
    spreads: Mapping[str, Spread | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "experiments",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folder with runs at any depth that differ in policy, order, accounting and seed alone",
    )
    parser.add_argument(
        "--format", type=Format, choices=list(Format), default=Format.MARKDOWN, help="default: %(default)s"
    )


def execute(options: argparse.Namespace) -> int:
    """Print a table for each experiment; return the exit code."""
    shown = {Format.MARKDOWN: markdown_of, Format.CSV: csv_of}[options.format]
    print("\n".join(shown(folder, rows_of(folder)) for folder in options.experiments), end="")  # noqa: T201 - the answer
    return 0


def rows_of(folder: Path) -> list[Row]:
    """Return a row for each way to run the jobs under ``folder``, in the order of their names.

    :raises TraceError: if there is no run, two differ in nothing that is told apart, or one lacks its
        baseline: FIFO exclusive under the same seed in the same accounting.
    """
    runs = [read_summary(path.parent) for path in sorted(folder.rglob("summary.json"))]
    if not runs:
        raise TraceError(str(folder), "has no run; expected folders with a summary.json")
    baselines = _baselines_of(runs)
    found: dict[tuple[str, str], dict[int, RunResult]] = {}
    for run in runs:
        of_seed = found.setdefault((run.accounting, run.label), {})
        seed = int(run.summary["seed"])
        if seed in of_seed:
            other = of_seed[seed].folder
            raise TraceError(str(run.folder), f"is {run.label}, {run.accounting}, seed {seed}, as {other} is")
        of_seed[seed] = run
    return [_row(label, accounting, of_seed, baselines) for (accounting, label), of_seed in found.items()]


def _baselines_of(runs: Sequence[RunResult]) -> Mapping[tuple[str, int], RunResult]:
    return {
        (str(run.summary["accounting"]), int(run.summary["seed"])): run
        for run in runs
        if (run.summary["policy"], run.summary["order"]) == (EXCLUSIVE, "fifo")
    }


def _row(
    label: str,
    accounting: str,
    of_seed: Mapping[int, RunResult],
    baselines: Mapping[tuple[str, int], RunResult],
) -> Row:
    pairs = []
    for seed, run in sorted(of_seed.items()):
        same = baselines.get((str(run.summary["accounting"]), seed))
        if same is None:
            problem = f"has no FIFO exclusive beside it, seed {seed}, accounting {run.summary['accounting']}"
            raise TraceError(str(run.folder), problem)
        pairs.append((run, Baselines(same, baselines.get((Accounting.ALWAYS_ON, seed)))))
    spreads = {column.name: _spread(column, pairs) for column in COLUMNS}
    return Row(label, accounting, tuple(sorted(of_seed)), spreads)


def _spread(column: Column, pairs: Sequence[tuple[RunResult, Baselines]]) -> Spread | None:
    values = [column.value(run, base) for run, base in pairs]
    known = [value for value in values if value is not None]
    return Spread.of(known) if len(known) == len(values) else None


def markdown_of(folder: Path, rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown: the mean, and the range where there are several seeds.

    A row with fewer seeds than the table names its own.
    """
    seeds = {seed for row in rows for seed in row.seeds}
    head = ["policy", "accounting", *(column.title for column in COLUMNS)]
    lines = [
        f"`{folder.name}`, {_seeds_text(seeds)}:",
        "",
        _line(head),
        _line(["---", "---", *("---:" for _ in COLUMNS)]),
    ]
    for row in rows:
        cells = [_spread_text(row.spreads[column.name], column) for column in COLUMNS]
        fewer = "" if set(row.seeds) == seeds else f" ({_seeds_text(set(row.seeds))})"
        lines.append(_line([f"{row.label}{fewer}", row.accounting, *cells]))
    return "\n".join(lines) + "\n"


def csv_of(folder: Path, rows: Sequence[Row]) -> str:
    """Return the rows as CSV, with a head line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = [f"{column.name}{end}" for column in COLUMNS for end in ("", "_low", "_high")]
    writer.writerow(["experiment", "policy", "accounting", "seeds", *parts])
    for row in rows:
        values: list[str] = []
        for column in COLUMNS:
            spread = row.spreads[column.name]
            values += (
                [""] * 3 if spread is None else [f"{v:.6g}" for v in (spread.mean, spread.low, spread.high)]
            )
        seeds = ";".join(map(str, row.seeds))
        writer.writerow([folder.name, row.label, row.accounting, seeds, *values])
    return text.getvalue()


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _seeds_text(seeds: set[int]) -> str:
    ordered = sorted(seeds)
    run = len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1
    if run:
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"{'seeds' if len(ordered) > 1 else 'seed'} {', '.join(map(str, ordered))}"


def _spread_text(spread: Spread | None, column: Column) -> str:
    if spread is None:
        return UNKNOWN
    mean, low, high = (_number_text(value, column) for value in (spread.mean, spread.low, spread.high))
    return mean if low == high else f"{mean} ({low} to {high})"


def _number_text(value: float, column: Column) -> str:
    rounded = round(value, column.digits) or 0.0
    sign = "+" if column.signed and rounded > 0 else ""
    return f"{sign}{rounded:.{column.digits}f}".replace("-", MINUS)
