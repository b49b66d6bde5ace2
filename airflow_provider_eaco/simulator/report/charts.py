"""The charts of a report that compare runs: energy by state, energy against stretch, and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from airflow_provider_eaco.simulator.report.drawing import SERIES, Dot, Drawing, Line, Rect, Text
from airflow_provider_eaco.simulator.report.results import RunResult
from airflow_provider_eaco.simulator.report.scales import (
    TIME_TICKS,
    Axis,
    energy_text,
    energy_unit,
    logarithmic,
    percent_text,
    round_ticks,
    short,
    time_text,
)

WIDTH = 920.0
_LEFT, _RIGHT = 190.0, 120.0
# Asleep comes after active: both are in the bound.
_STATES_IN_BAR = ("active", "asleep", "idle", "waking")
# The most series that can be told apart by colour; later ones share the last.
_MOST_SERIES = len(SERIES)


def series_role(index: int) -> str:
    """Return the colour role of the series at ``index``."""
    return SERIES[index] if index < _MOST_SERIES else "other"


def energy_chart(runs: Sequence[RunResult]) -> Drawing:
    """Show each run's energy by state, with the bound at its stretch as a mark."""
    row, top = 34.0, 44.0
    height = top + row * len(runs) + 46
    drawing = Drawing("Energy by state against the bound", WIDTH, height)
    most_j = max([run.energy_j["total"] for run in runs] + [run.bound_at_stretch_j or 0.0 for run in runs])
    axis = Axis(0, most_j or 1.0, _LEFT, WIDTH - _RIGHT)
    unit_j, unit = energy_unit(most_j)
    _legend(drawing, [(state, state) for state in _STATES_IN_BAR], mark="bound at the run's stretch")
    bottom = top + row * len(runs)
    for tick in round_ticks(0, most_j / unit_j):
        x = axis.at(tick * unit_j)
        drawing.add(
            Line([(x, top - 6), (x, bottom)], "grid"), Text(x, bottom + 18, short(tick), anchor="middle")
        )
    drawing.add(Text(WIDTH - _RIGHT + 10, bottom + 18, unit))
    for index, run in enumerate(runs):
        _energy_row(drawing, run, axis, top + row * index, row)
    return drawing


def _energy_row(drawing: Drawing, run: RunResult, axis: Axis, y: float, row: float) -> None:
    middle = y + row / 2
    drawing.add(Text(_LEFT - 12, middle + 4, run.label, "ink", "end"))
    done_j, total_j = 0.0, run.energy_j["total"]
    for state in _STATES_IN_BAR:
        energy_j = run.energy_j[state]
        start, end = axis.at(done_j), axis.at(done_j + energy_j)
        done_j += energy_j
        if end - start < 0.25:
            continue
        share = energy_j / total_j if total_j else 0.0
        title = f"{run.label}, {state}: {energy_text(energy_j)} ({100 * share:.1f} %)"
        gap = 1.5 if end - start > 4 else 0.0
        drawing.add(Rect(start, y + 6, end - start - gap, row - 12, state, title))
    bound_j = run.bound_at_stretch_j
    if bound_j is not None:
        x = axis.at(bound_j)
        title = f"{run.label}, bound at its stretch: {energy_text(bound_j)}"
        drawing.add(
            Line([(x, y + 1), (x, y + row - 1)], "surface", 5),
            Line([(x, y + 1), (x, y + row - 1)], "bound", 2.5, title=title),
        )
    drawing.add(Text(axis.at(total_j) + 8, middle + 4, energy_text(total_j), "ink"))


def pareto_chart(runs: Sequence[RunResult], reference_j: float) -> Drawing:
    """Show energy against stretch: the bound as a curve, each run as a ring above its active energy.

    ``runs`` are of one accounting; ``reference_j`` is 100 %.
    """
    top, bottom, left, right = 44.0, 420.0, 64.0, WIDTH - 150
    drawing = Drawing("Energy against mean stretch, with the bound", WIDTH, bottom + 52)
    curve = [(stretch, 100 * energy_j / reference_j) for stretch, energy_j in runs[0].curve]
    most = max([1.1, *(run.mean_stretch for run in runs)])
    # Beyond the slowest run the curve tells nothing about the runs.
    most = 1 + (most - 1) * 1.25
    shown = _until(curve, most)
    values = [value for _, value in shown] + [100 * run.energy_j["total"] / reference_j for run in runs]
    values += [100 * run.energy_j["active"] / reference_j for run in runs]
    across = Axis(1.0, most, left, right)
    down = Axis(max(0.0, min(values) - 6), max(values) + 8, bottom, top)
    _pareto_legend(drawing, left)
    for tick in round_ticks(down.low, down.high):
        y = down.at(tick)
        drawing.add(
            Line([(left, y), (right, y)], "grid"), Text(left - 8, y + 4, f"{short(tick)} %", anchor="end")
        )
    for tick in round_ticks(0, 100 * (most - 1)):
        x = across.at(1 + tick / 100)
        sign = "+" if tick > 0 else ""
        drawing.add(Text(x, bottom + 20, f"{sign}{short(tick)} %", anchor="middle"))
    drawing.add(
        Line([(left, bottom), (right, bottom)], "soft"),
        Text(right, bottom + 42, "mean stretch, weighted by work", anchor="end"),
    )
    if len(shown) > 1:
        points = [(across.at(stretch), down.at(value)) for stretch, value in shown]
        drawing.add(Line(points, "bound", 2))
    _runs_on_curve(drawing, runs, reference_j, across, down)
    return drawing


def _pareto_legend(drawing: Drawing, left: float) -> None:
    drawing.add(
        Dot(left + 6, 17, 6, "soft", hollow=True),
        Text(left + 20, 21, "all energy of a run"),
        Dot(left + 176, 17, 4.5, "soft"),
        Text(left + 188, 21, "while jobs run"),
        Line([(left + 300, 17), (left + 322, 17)], "bound", 2),
        Text(left + 330, 21, "bound: least energy at that stretch (linear program)"),
    )


def _runs_on_curve(
    drawing: Drawing, runs: Sequence[RunResult], reference_j: float, across: Axis, down: Axis
) -> None:
    marks = []
    for index, run in enumerate(runs):
        total, active = (100 * run.energy_j[part] / reference_j for part in ("total", "active"))
        x, y = across.at(run.mean_stretch), down.at(total)
        role = series_role(index)
        title = f"{run.label}: {total:.1f} % of the energy at {percent_text(run.mean_stretch - 1, 2)} stretch"
        drawing.add(
            Line([(x, y), (x, down.at(active))], role, 1.5, dashed=True),
            Dot(x, down.at(active), 4.5, role, title=f"{run.label}, while jobs run: {active:.1f} %"),
            Dot(x, y, 6, role, hollow=True, title=title),
        )
        change = "" if total == 100 else f"  {percent_text(total / 100 - 1)}"
        marks.append((y, x, f"{run.label}{change}"))
    _mark_labels(drawing, marks, across.start_px)


def _mark_labels(drawing: Drawing, marks: Sequence[tuple[float, float, str]], left: float) -> None:
    """Write each label above its mark, and higher where another one is in the way: stems go down."""
    placed: list[tuple[float, float]] = []
    for y, x, label in sorted(marks, reverse=True):
        half = 3.4 * len(label)
        middle, free_y = max(x, left + half), y - 13
        while any(abs(free_y - other_y) < 15 and abs(middle - other) < 2 * half for other_y, other in placed):
            free_y -= 15
        placed.append((free_y, middle))
        drawing.add(Text(middle, free_y, label, "ink", "middle"))


def _until(curve: Sequence[tuple[float, float]], most: float) -> list[tuple[float, float]]:
    """Return the curve up to ``most``, where it ends on its last or on a point between two."""
    shown = [point for point in curve if point[0] <= most]
    after = next((point for point in curve if point[0] > most), None)
    if shown and after is not None:
        (stretch, value), (next_stretch, next_value) = shown[-1], after
        share = (most - stretch) / (next_stretch - stretch)
        shown.append((most, value + share * (next_value - value)))
    return shown


def wait_chart(runs: Sequence[RunResult]) -> Drawing:
    """Show which share of the jobs had started after how long a wait."""
    top, bottom, left, right = 44.0, 360.0, 64.0, WIDTH - 190
    drawing = Drawing("Waits: share of jobs that had started by then", WIDTH, bottom + 52)
    waits_of = [run.waits_s for run in runs]
    longest_s = max([60.0, *(waits[-1] for waits in waits_of if waits)])
    across = logarithmic(1.0, longest_s * 1.2, left, right)
    down = Axis(0, 100, bottom, top)
    for tick in (0, 25, 50, 75, 100):
        y = down.at(tick)
        drawing.add(Line([(left, y), (right, y)], "grid"), Text(left - 8, y + 4, f"{tick} %", anchor="end"))
    for seconds, name in TIME_TICKS:
        if seconds <= across.high:
            label = "at most 1 s" if seconds == 1 else name
            drawing.add(Text(across.at(seconds), bottom + 20, label, anchor="middle"))
    drawing.add(
        Line([(left, bottom), (right, bottom)], "soft"),
        Text(right, bottom + 42, "wait from submission to first start", anchor="end"),
    )
    ends = []
    for index, (run, waits) in enumerate(zip(runs, waits_of, strict=True)):
        if not waits:
            continue
        role = series_role(index)
        title = f"{run.label}: mean {time_text(sum(waits) / len(waits))}"
        steps = _steps(waits, across.at, down.at)
        drawing.add(Line([*steps, (right, steps[-1][1])], role, 2, title=title))
        ends.append((run, role, waits))
    _wait_labels(drawing, ends, top, right)
    return drawing


def _wait_labels(
    drawing: Drawing, ends: Sequence[tuple[RunResult, str, list[float]]], top: float, right: float
) -> None:
    for index, (run, role, waits) in enumerate(ends):
        y = top + 14 + 38 * index
        mean_s = sum(waits) / len(waits)
        drawing.add(
            Line([(right + 14, y - 4), (right + 30, y - 4)], role, 3),
            Text(right + 38, y, run.label, "ink"),
            Text(right + 38, y + 16, f"mean {time_text(mean_s)}, max {time_text(waits[-1])}", size=11),
        )


def _steps(
    waits: Sequence[float], across: Callable[[float], float], down: Callable[[float], float]
) -> list[tuple[float, float]]:
    """Return the corners of the cumulative share; equal pixels once, so that 50,000 jobs stay small."""
    points: list[tuple[float, float]] = []
    last_share = 100 * sum(1 for wait in waits if wait <= 1) / len(waits)
    points.append((across(1.0), down(last_share)))
    numbered = ((round(across(wait), 1), index) for index, wait in enumerate(waits, 1) if wait > 1)
    for x, group in groupby(numbered, key=lambda item: item[0]):
        share = 100 * max(index for _, index in group) / len(waits)
        points += [(x, down(last_share)), (x, down(share))]
        last_share = share
    return points


def _legend(drawing: Drawing, entries: Sequence[tuple[str, str]], mark: str) -> None:
    x = _LEFT
    for role, label in entries:
        drawing.add(Rect(x, 11, 12, 12, role), Text(x + 18, 21, label))
        x += 42 + 6.4 * len(label)
    drawing.add(Line([(x + 4, 8), (x + 4, 26)], "bound", 2.5), Text(x + 14, 21, mark))
