"""What a benchmark hands back: figures with their aims, and the machine that they were taken on."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """How far a figure carries: a time or rate belongs to one machine, a ratio mostly does not."""

    TIME = "time on this machine"
    CPU_TIME = "CPU time on this machine"
    RATE = "rate on this machine"
    RATIO = "ratio of two rates, paired in one run"
    MEMORY = "highest memory of a process"
    SIZE = "what is sent over the network"
    GROWTH = "exponent of CPU time in the number of jobs"


@dataclass(frozen=True, slots=True)
class Aim:
    """The value that a figure should stay below, or with ``at_least`` reach."""

    value: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Tell whether ``value`` is as good as the aim asks for."""
        return value >= self.value if self.at_least else value < self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``unit`` is empty for a ratio; ``low`` and ``high`` are the extremes seen."""

    what: str
    statistic: str
    value: float
    unit: str
    kind: Kind
    samples: int
    aim: Aim | None = None
    low: float | None = None
    high: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the aim is met, ``None`` without one."""
        return None if self.aim is None else self.aim.met_by(self.value)

    def as_json(self) -> dict[str, Any]:
        """Return the figure as JSON values, with ``met``."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a figure goes: rows of text under a head, and what they say in one sentence."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one benchmark found. ``details`` are JSON values for whoever looks closer."""

    figures: Sequence[Figure]
    breakdowns: Sequence[Breakdown] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (above 0, to 1) of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * share) - 1]


def figures_of(
    what: str,
    values: Sequence[float],
    unit: str,
    kind: Kind,
    *,
    median_aim: Aim | None = None,
    high: tuple[str, float] = ("p99", 0.99),
    high_aim: Aim | None = None,
) -> list[Figure]:
    """Return the median and one high quantile (name, share) of ``values``."""
    name, share = high
    low, top, count = min(values), max(values), len(values)
    return [
        Figure(what, "median", statistics.median(values), unit, kind, count, median_aim, low, top),
        Figure(what, name, quantile(values, share), unit, kind, count, high_aim, low, top),
    ]


def load_1m() -> float:
    """Return the machine's load average over the last minute: how many processes wanted a core."""
    return os.getloadavg()[0]


def machine() -> dict[str, Any]:
    """Return what has to stand beside every figure of this machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine() or "unknown"
