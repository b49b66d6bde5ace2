"""The benchmarks' results as one table to read and one JSON file to keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark's end: its outcome, or the error that kept it from one; load averages around it."""

    name: str
    command: str
    load_before: float
    load_after: float
    wall_s: float
    outcome: Outcome | None
    error: str | None = None


def print_results(console: Console, machine: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Print the table of all figures, then where the time goes, then what could not be measured."""
    table = Table(title="airflow-provider-eaco: speed", title_justify="left")
    table.add_column("figure", ratio=1)
    for column in ("value", "range", "n", "aim", "load"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for result in results:
        for figure in () if result.outcome is None else result.outcome.figures:
            table.add_row(*_row(figure, result))
        table.add_section()
    console.print(table)
    console.print(
        f"{machine['cores']} cores, {machine['processor']}, {machine['system']}, Python {machine['python']}. "
        "load = load average over a minute before and after; above the number of cores, others competed.\n"
        "Times and rates are of this machine; a ratio is of two rates measured in turn, and carries further."
    )
    for result in results:
        for breakdown in () if result.outcome is None else result.outcome.breakdowns:
            part = Table(title=breakdown.title, title_justify="left")
            for number, head in enumerate(breakdown.head):
                part.add_column(head, justify="left" if number == 0 else "right")
            for row in breakdown.rows:
                part.add_row(*row)
            console.print(part)
    for result in results:
        console.print(f"{result.name}: {result.command}  ({result.wall_s:.0f} s)", highlight=False)
        if result.error is not None:
            console.print(f"{result.name} gave no figures: {result.error}", style="red", markup=False)


def write_results(path: Path, machine: Mapping[str, Any], results: Sequence[Result], *, quick: bool) -> None:
    """Write everything that was measured as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": dict(machine),
        "quick": quick,
        "benchmarks": {result.name: _as_json(result) for result in results},
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _row(figure: Figure, result: Result) -> list[str]:
    spread = (
        "" if figure.low is None or figure.high is None else f"{_short(figure.low)}-{_short(figure.high)}"
    )
    return [
        f"{figure.what}: {figure.statistic}",
        f"{_short(figure.value)} {figure.unit}".strip(),
        spread,
        str(figure.samples),
        _aim(figure),
        f"{result.load_before:.1f}-{result.load_after:.1f}",
        figure.kind.name.lower().replace("_", " "),
    ]


def _aim(figure: Figure) -> str:
    if figure.aim is None:
        return ""
    text = f"{'>=' if figure.aim.at_least else '<'} {figure.aim.value:g}"
    return f"[green]{text} met[/]" if figure.met else f"[bold red]{text} missed[/]"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _as_json(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "command": result.command,
        "load_1m_before": result.load_before,
        "load_1m_after": result.load_after,
        "wall_s": result.wall_s,
        "error": result.error,
        "figures": [] if outcome is None else [figure.as_json() for figure in outcome.figures],
        "breakdowns": [] if outcome is None else [asdict(each) for each in outcome.breakdowns],
        "details": {} if outcome is None else dict(outcome.details),
    }
