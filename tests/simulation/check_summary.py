"""Checks that the figures in a run's summary follow from its other files."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.simulation.files import JobRow, NodeRow, RunFiles


def summary_problems(files: RunFiles) -> Iterator[str]:
    """The summary's figures follow from the files."""
    told = _told(files.summary)
    for name, value in _true(files).items():
        if not math.isclose(told[name], value, rel_tol=1e-6, abs_tol=1e-6):
            yield f"summary: {name} is {told[name]}, the files say {value}"


def _told(summary: Mapping[str, Any]) -> dict[str, float]:
    """What the summary says, by dotted name."""
    return {
        **{f"energy_j.{state}": summary["energy_j"][state] for state in ("total", *_STATES)},
        "stretch.mean": summary["stretch"]["mean"],
        "stretch.unweighted": summary["stretch"]["unweighted"],
        "stretch.max": summary["stretch"]["max"],
        "wait_s.mean": summary["wait_s"]["mean"],
        "jct_s.mean": summary["jct_s"]["mean"],
        "makespan_s": summary["makespan_s"],
        "limit_misses": summary["limit_misses"],
        "allocated_utilisation": summary["allocated_utilisation"],
    }


def _true(files: RunFiles) -> dict[str, float]:
    """The same figures from the other files."""
    energy_j = _energy_by_state(files.nodes)
    starts_s = {job_id: rows[0].start_s for job_id, rows in files.by_job.items()}
    ends_s = {job_id: max(row.end_s for row in rows) for job_id, rows in files.by_job.items()}
    runs_s = {job_id: ends_s[job_id] - start_s for job_id, start_s in starts_s.items()}
    ran = [files.jobs[job_id] for job_id in runs_s]
    stretches = [runs_s[job.job_id] / job.work_s for job in ran]
    waits_s = [starts_s[job.job_id] - job.submit_s for job in ran]
    completions_s = [ends_s[job.job_id] - job.submit_s for job in ran]
    capacity_s = files.summary["nodes"] * files.summary["gpus_per_node"] * files.end_s
    return {
        **{f"energy_j.{state}": energy_j[state] for state in ("total", *_STATES)},
        "stretch.mean": sum(runs_s.values()) / sum(job.work_s for job in ran),
        "stretch.unweighted": sum(stretches) / len(stretches),
        "stretch.max": max(stretches),
        "wait_s.mean": sum(waits_s) / len(waits_s),
        "jct_s.mean": sum(completions_s) / len(completions_s),
        "makespan_s": files.end_s,
        "limit_misses": sum(_missed(job, runs_s[job.job_id]) for job in ran),
        "allocated_utilisation": _allocated_gpu_s(files) / capacity_s,
    }


def _energy_by_state(rows: Sequence[NodeRow]) -> Mapping[str, float]:
    energy_j: dict[str, float] = defaultdict(float)
    for row in rows:
        energy_j[row.state] += row.power_w * (row.end_s - row.start_s)
    energy_j["total"] = sum(energy_j.values())
    return energy_j


def _missed(job: JobRow, run_s: float) -> bool:
    return job.stretch_limit is not None and run_s > job.stretch_limit * job.work_s + 1e-3


_STATES = ("active", "idle", "waking", "asleep")


def _allocated_gpu_s(files: RunFiles) -> float:
    """GPU seconds that somebody held, found by going through every GPU's intervals."""
    by_gpu: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in files.schedule:
        for gpu in row.gpus:
            by_gpu[row.node, gpu].append((row.start_s, row.end_s))
    held_s = 0.0
    for spans in by_gpu.values():
        until_s = -1.0
        for start_s, end_s in sorted(spans):
            held_s += max(0.0, end_s - max(start_s, until_s))
            until_s = max(until_s, end_s)
    return held_s
