"""The files of a run, read back for a report: anyone's run, not only one of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_eaco.simulator.readers.json_text import json_of
from airflow_provider_eaco.simulator.readers.own import read as read_jobs
from airflow_provider_eaco.simulator.readers.table import rows_of, text_of
from airflow_provider_eaco.simulator.trace import TraceError, TraceJob

STATES = ("active", "idle", "waking", "asleep")
_SCHEDULE = ("job_id", "start_s", "end_s", "node", "gpus", "residents", "rate")
_NODES = ("node", "start_s", "end_s", "state", "power_w")
_NEEDED = ("benchmark", "policy", "order", "accounting", "seed", "energy_j", "stretch", "wait_s")


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of ``schedule.csv``."""

    job_id: str
    start_s: float
    end_s: float
    node: str
    gpus: tuple[str, ...]
    residents: tuple[str, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class StateInterval:
    """A row of ``nodes.csv``."""

    node: str
    start_s: float
    end_s: float
    state: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run as its files tell it."""

    folder: Path
    summary: Mapping[str, Any]
    jobs: Mapping[str, TraceJob]
    schedule: Sequence[Interval]
    nodes: Sequence[StateInterval]

    @property
    def label(self) -> str:
        """What tells this run from others of one benchmark."""
        day = self.summary.get("order_day")
        if day:
            kept = "" if day["scenario"] != "mixed" or day["demand"] == "curve" else ", peak kept"
            waits = ", oversized jobs wait" if day["oversized"] == "wait" else ""
            return f"{self.summary['order']}{kept}{waits}"
        policy, order = str(self.summary["policy"]), str(self.summary["order"])
        residents = self.summary.get("max_residents")
        limit = f" \N{LESS-THAN OR EQUAL TO}{residents}" if residents and policy != "exclusive" else ""
        stretch = self.summary.get("mean_stretch_limit")
        mean = "" if stretch is None else f", mean \N{LESS-THAN OR EQUAL TO}{100 * (stretch - 1):.4g} %"
        return f"{policy}{limit}{mean}" if order == "fifo" else f"{policy}{limit}{mean}, {order}"

    @property
    def accounting(self) -> str:
        """The accounting; where the policy put nodes to sleep, another one than where the rule did."""
        by_policy = "-by-policy" if self.summary.get("sleep") == "policy" else ""
        return f"{self.summary['accounting']}{by_policy}"

    @property
    def energy_j(self) -> Mapping[str, float]:
        """Energy by state, with ``total``."""
        energy: Mapping[str, float] = self.summary["energy_j"]
        return energy

    @property
    def mean_stretch(self) -> float:
        return float(self.summary["stretch"]["mean"])

    @property
    def bound_at_stretch_j(self) -> float | None:
        """The energy bound at this run's stretch, with its asleep draw; ``None`` without bounds."""
        bound = (self.summary.get("bounds") or {}).get("energy_j_at_stretch")
        return None if bound is None else float(bound)

    @property
    def bound_within_limits_j(self) -> float | None:
        """The same if all jobs keep their limits; ``None`` where it is not known."""
        bound = (self.summary.get("further_bounds") or {}).get("energy_j_at_stretch_within_limits")
        return None if bound is None else float(bound)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """The Pareto curve of the bound: mean stretch and energy, empty without bounds."""
        return [
            (float(point["mean_stretch"]), float(point["energy_j"]))
            for point in self.summary.get("pareto") or ()
        ]

    @property
    def waits_s(self) -> list[float]:
        """The wait of every job from submission to its first start, ascending."""
        first_s: dict[str, float] = {}
        for interval in self.schedule:
            first_s[interval.job_id] = min(interval.start_s, first_s.get(interval.job_id, interval.start_s))
        return sorted(max(0.0, start_s - self.jobs[job_id].submit_s) for job_id, start_s in first_s.items())


def read_run(folder: Path) -> RunResult:
    """Return the run whose files are in ``folder``.

    :raises TraceError: if a file is missing or is not what it should be.
    """
    jobs = read_jobs(str(folder / "jobs.csv"), text_of(folder / "jobs.csv"))
    return RunResult(
        folder,
        _summary(folder / "summary.json"),
        {job.job_id: job for job in jobs.jobs},
        _schedule(folder / "schedule.csv"),
        _nodes(folder / "nodes.csv"),
    )


def read_summary(folder: Path) -> RunResult:
    """Return the run with its summary alone: it has no jobs, no schedule and no nodes.

    :raises TraceError: if the summary is missing or is not what it should be.
    """
    return RunResult(folder, _summary(folder / "summary.json"), {}, (), ())


def _summary(path: Path) -> Mapping[str, Any]:
    document = json_of(str(path), text_of(path), "an object")
    if not isinstance(document, dict):
        raise TraceError(str(path), f"a JSON {type(document).__name__}; expected an object", "line 1")
    for name in _NEEDED:
        if name not in document:
            raise TraceError(str(path), f"is missing; expected {', '.join(_NEEDED)}", column=name)
    return document


def _schedule(path: Path) -> list[Interval]:
    return [
        Interval(
            row.name("job_id"),
            row.number("start_s", 0, "seconds"),
            row.number("end_s", 0, "seconds"),
            row.name("node"),
            tuple(row.text("gpus").split(";")),
            tuple(row.text("residents").split(";")),
            row.number("rate", 0, "work seconds a second"),
        )
        for row in rows_of(str(path), text_of(path), _SCHEDULE)
    ]


def _nodes(path: Path) -> list[StateInterval]:
    found = []
    for row in rows_of(str(path), text_of(path), _NODES):
        if row.text("state") not in STATES:
            raise row.error("state", ", ".join(STATES))
        start_s, end_s = row.number("start_s", 0, "seconds"), row.number("end_s", 0, "seconds")
        found.append(StateInterval(row.name("node"), start_s, end_s, row.text("state")))
    return found
