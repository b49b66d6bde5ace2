"""The files of a run, read as they stand."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JobRow:
    """A line of ``jobs.csv``."""

    job_id: str
    family: str
    gpus: int
    submit_s: float
    work_s: float
    stretch_limit: float | None


@dataclass(frozen=True)
class ScheduleRow:
    """A line of ``schedule.csv``."""

    job_id: str
    start_s: float
    end_s: float
    node: str
    gpus: tuple[int, ...]
    residents: tuple[str, ...]
    rate: float


@dataclass(frozen=True)
class NodeRow:
    """A line of ``nodes.csv``."""

    node: str
    start_s: float
    end_s: float
    state: str
    power_w: float


@dataclass(frozen=True)
class DecisionRow:
    """A line of ``decisions.csv``."""

    time_s: float
    job_id: str
    verdict: str
    reason: str
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class LimitRow:
    """A line of ``limits.csv``."""

    node: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    limit_w: float


class RunFiles:
    """The files of one run, read as they stand."""

    def __init__(self, folder: Path) -> None:
        self.jobs = {row["job_id"]: _job(row) for row in _rows(folder / "jobs.csv")}
        self.schedule = [_schedule_row(row) for row in _rows(folder / "schedule.csv")]
        self.nodes = [_node_row(row) for row in _rows(folder / "nodes.csv")]
        self.decisions = [_decision(row) for row in _rows(folder / "decisions.csv")]
        limits = folder / "limits.csv"
        self.limits = [_limit(row) for row in _rows(limits)] if limits.exists() else []
        self.summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        self.by_job: dict[str, list[ScheduleRow]] = defaultdict(list)
        self.by_node: dict[str, list[ScheduleRow]] = defaultdict(list)
        for row in sorted(self.schedule, key=lambda row: row.start_s):
            self.by_job[row.job_id].append(row)
            self.by_node[row.node].append(row)
        self.end_s = max(row.end_s for row in self.schedule)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as lines:
        yield from csv.DictReader(lines)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(";")) if text else ()


def _job(row: Mapping[str, str]) -> JobRow:
    return JobRow(
        row["job_id"],
        row["family"],
        int(row["gpus"]),
        float(row["submit_s"]),
        float(row["work_s"]),
        float(row["stretch_limit"]) if row["stretch_limit"] else None,
    )


def _schedule_row(row: Mapping[str, str]) -> ScheduleRow:
    return ScheduleRow(
        row["job_id"],
        float(row["start_s"]),
        float(row["end_s"]),
        row["node"],
        _numbers(row["gpus"]),
        tuple(row["residents"].split(";")),
        float(row["rate"]),
    )


def _node_row(row: Mapping[str, str]) -> NodeRow:
    return NodeRow(
        row["node"], float(row["start_s"]), float(row["end_s"]), row["state"], float(row["power_w"])
    )


def _limit(row: Mapping[str, str]) -> LimitRow:
    return LimitRow(
        row["node"], _numbers(row["gpus"]), float(row["start_s"]), float(row["end_s"]), float(row["limit_w"])
    )


def _decision(row: Mapping[str, str]) -> DecisionRow:
    return DecisionRow(
        float(row["time_s"]),
        row["job_id"],
        row["verdict"],
        row["reason"],
        row["node"],
        _numbers(row["gpus"]),
    )
