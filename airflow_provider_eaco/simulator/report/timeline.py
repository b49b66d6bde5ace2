"""Who shares which GPU: a row for each set of GPUs, a bar for each job, split among residents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.simulator.report.charts import WIDTH, series_role
from airflow_provider_eaco.simulator.report.drawing import SERIES, Drawing, Line, Rect, Text
from airflow_provider_eaco.simulator.report.results import Interval, RunResult
from airflow_provider_eaco.simulator.report.scales import Axis, round_ticks, short, time_text

# What a page can hold and a reader can see.
MOST_ROWS = 32
MOST_BARS = 2500
_ROW = 22.0
_LEFT, _RIGHT, _TOP = 110.0, 20.0, 62.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """The drawing, and what it leaves out in words (empty if nothing)."""

    drawing: Drawing
    left_out: str


@dataclass(frozen=True, slots=True)
class _Row:
    node: str
    gpu: str | None
    label: str


def timeline_of(run: RunResult) -> Timeline:
    """Show who was where with whom, as much of it as a page can hold."""
    rows = _rows_of(run)
    shown = rows[:MOST_ROWS]
    where = {(row.node, row.gpu): index for index, row in enumerate(shown)}
    bars = _bars(run.schedule, where, whole_nodes=all(row.gpu is None for row in rows))
    end_s = max((interval.end_s for interval in run.schedule), default=1.0)
    until_s = end_s
    if len(bars) > MOST_BARS:
        until_s = sorted(interval.start_s for _, interval in bars)[MOST_BARS]
        bars = [(index, interval) for index, interval in bars if interval.start_s < until_s]
    drawing = Drawing(f"Timeline of {run.label}: who shares which GPUs", WIDTH, _TOP + _ROW * len(shown) + 44)
    axis = Axis(0, until_s, _LEFT, WIDTH - _RIGHT)
    role_of = _roles(run)
    _frame(drawing, shown, axis, role_of)
    _asleep(drawing, run, shown, axis)
    for index, interval in bars:
        drawing.add(_bar(run, interval, axis, _TOP + _ROW * index, role_of))
    left_out = []
    if len(rows) > len(shown):
        left_out.append(f"{len(rows) - len(shown)} of {len(rows)} rows")
    if until_s < end_s:
        left_out.append(f"all after {time_text(until_s)} of {time_text(end_s)}")
    return Timeline(drawing, " and ".join(left_out))


def _rows_of(run: RunResult) -> list[_Row]:
    """One row per node where every job takes the same GPUs of it, else one per GPU."""
    sets_of: dict[str, set[tuple[str, ...]]] = {interval.node: set() for interval in run.nodes}
    for interval in run.schedule:
        sets_of.setdefault(interval.node, set()).add(interval.gpus)
    names = sorted(sets_of, key=_natural)
    if all(len(sets) <= 1 for sets in sets_of.values()):
        return [_Row(name, None, name) for name in names]
    rows = []
    for name in names:
        gpus = {gpu for gpus in sets_of[name] for gpu in gpus}
        rows += [_Row(name, gpu, f"{name} GPU {gpu}") for gpu in sorted(gpus, key=_natural)]
    return rows


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    return tuple(
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)
    )


def _bars(
    schedule: Sequence[Interval], where: Mapping[tuple[str, str | None], int], whole_nodes: bool
) -> list[tuple[int, Interval]]:
    bars = []
    for interval in schedule:
        keys = [(interval.node, None)] if whole_nodes else [(interval.node, gpu) for gpu in interval.gpus]
        bars += [(where[key], interval) for key in keys if key in where]
    return bars


def _roles(run: RunResult) -> dict[str, str]:
    """Give the families with most work colours of their own; the others share one."""
    work_s: dict[str, float] = defaultdict(float)
    for job in run.jobs.values():
        work_s[job.family] += job.work_s
    most = sorted(sorted(work_s, key=lambda family: (-work_s[family], family))[: len(SERIES)])
    named = {family: series_role(index) for index, family in enumerate(most)}
    return {family: named.get(family, "other") for family in work_s}


def _frame(drawing: Drawing, rows: Sequence[_Row], axis: Axis, role_of: Mapping[str, str]) -> None:
    x, y = _LEFT, 11.0
    named = [(family, role) for family, role in sorted(role_of.items()) if role != "other"]
    if len(named) < len(role_of):
        named.append((f"{len(role_of) - len(named)} other families", "other"))
    for family, role in [*named, ("node asleep", "asleep")]:
        width = 36 + 7 * len(family)
        if x + width > WIDTH:
            x, y = _LEFT, y + 18
        drawing.add(Rect(x, y, 12, 12, role), Text(x + 17, y + 10, family))
        x += width
    bottom = _TOP + _ROW * len(rows)
    days = axis.high > 4 * 86400
    unit_s, unit = (86400.0, "d") if days else (3600.0, "h")
    for tick in round_ticks(0, axis.high / unit_s):
        at = axis.at(tick * unit_s)
        drawing.add(
            Line([(at, _TOP - 4), (at, bottom)], "grid"),
            Text(at, bottom + 18, f"{short(tick)} {unit}", anchor="middle"),
        )
    for index, row in enumerate(rows):
        drawing.add(Text(_LEFT - 8, _TOP + _ROW * index + 15, row.label, anchor="end", size=11))


def _asleep(drawing: Drawing, run: RunResult, rows: Sequence[_Row], axis: Axis) -> None:
    indices: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        indices.setdefault(row.node, []).append(index)
    for interval in run.nodes:
        if interval.state != "asleep" or interval.start_s >= axis.high:
            continue
        start, end = axis.at(interval.start_s), axis.at(interval.end_s)
        for index in indices.get(interval.node, ()):
            middle = _TOP + _ROW * index + _ROW / 2
            drawing.add(
                Rect(start, middle - 2, max(0.3, end - start), 4, "asleep", f"{interval.node} asleep")
            )


def _bar(run: RunResult, interval: Interval, axis: Axis, y: float, role_of: Mapping[str, str]) -> Rect:
    start, end = axis.at(interval.start_s), axis.at(interval.end_s)
    residents = sorted(interval.residents)
    height = (_ROW - 4) / len(residents)
    lane = residents.index(interval.job_id) if interval.job_id in residents else 0
    family = run.jobs[interval.job_id].family
    others = [job_id for job_id in residents if job_id != interval.job_id]
    company = f" with {', '.join(_named(run, other) for other in others)}" if others else " alone"
    title = f"{_named(run, interval.job_id)}{company}, at {100 * interval.rate:.1f} % of its speed"
    gap = 0.6 if end - start > 2 else 0.0
    split = 0.5 if others else 0.0
    box = (start, y + 2 + lane * height, max(0.3, end - start - gap), height - split)
    return Rect(*box, role_of[family], title)


def _named(run: RunResult, job_id: str) -> str:
    job = run.jobs.get(job_id)
    return job_id[:13] if job is None else f"{job.family} ({job_id[:13]})"
