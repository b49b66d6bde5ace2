"""What a run achieved, from its jobs and its recording alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.simulator.recording import NodeInterval, Recording, RunInterval
from airflow_provider_eaco.simulator.trace import TraceJob

# Times are whole milliseconds: a limit that is kept exactly may be missed by half of one.
_LIMIT_ROUNDING_S = 1e-3


@dataclass(frozen=True, slots=True)
class Span:
    """When a job first started and last ended."""

    job: TraceJob
    start_s: float
    end_s: float

    @property
    def run_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def stretch(self) -> float:
        return self.run_s / self.job.work_s

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.submit_s

    @property
    def jct_s(self) -> float:
        return self.end_s - self.job.submit_s

    @property
    def misses_its_limit(self) -> bool:
        limit = self.job.stretch_limit
        return limit is not None and self.run_s > limit * self.job.work_s + _LIMIT_ROUNDING_S


def spans_of(jobs: Iterable[TraceJob], runs: Iterable[RunInterval]) -> list[Span]:
    """Return the span of every job that ran, in the order of ``jobs``."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for run in runs:
        first[run.job_id] = min(first.get(run.job_id, math.inf), run.start_s)
        last[run.job_id] = max(last.get(run.job_id, 0.0), run.end_s)
    return [Span(job, first[job.job_id], last[job.job_id]) for job in jobs if job.job_id in first]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile with linear interpolation between the values, 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of none."""
    return math.fsum(values) / len(values) if values else 0.0


def energy_of(nodes: Iterable[NodeInterval]) -> dict[str, float]:
    """Return the joules in all and in each state of a node."""
    parts: dict[str, list[float]] = {state.value: [] for state in NodePower}
    for interval in nodes:
        parts[interval.state.value].append(interval.energy_j)
    by_state = {state: math.fsum(values) for state, values in parts.items()}
    return {"total": math.fsum(by_state.values()), **by_state}


def allocated_gpu_s(runs: Iterable[RunInterval]) -> float:
    """Return the GPU seconds in which somebody held the GPU, once however many share it."""
    # Everybody of a set has the same intervals but for one who restarts: the union over time is what counts.
    by_place: dict[tuple[str, tuple[int, ...]], list[tuple[float, float]]] = {}
    for run in runs:
        by_place.setdefault((run.node, run.gpus), []).append((run.start_s, run.end_s))
    return math.fsum(len(gpus) * _covered_s(spans) for (_, gpus), spans in by_place.items())


def _covered_s(spans: list[tuple[float, float]]) -> float:
    covered: list[float] = []
    until_s = -math.inf
    for start_s, end_s in sorted(spans):
        if end_s > until_s:
            covered.append(end_s - max(start_s, until_s))
            until_s = end_s
    return math.fsum(covered)


def measures(
    jobs: Sequence[TraceJob], recording: Recording, nodes: int, gpus_per_node: int
) -> dict[str, object]:
    """Return what ``summary.json`` says of jobs, nodes and decisions; times in s, energy in J."""
    spans = spans_of(jobs, recording.runs)
    end_s = max((span.end_s for span in spans), default=0.0)
    stretches = [span.stretch for span in spans]
    work_s = math.fsum(span.job.work_s for span in spans)
    weighted = math.fsum(span.run_s for span in spans) / work_s if work_s else 1.0
    active_s = math.fsum(
        interval.end_s - interval.start_s
        for interval in recording.nodes
        if interval.state is NodePower.ACTIVE
    )
    capacity_s = nodes * gpus_per_node * end_s
    return {
        "energy_j": energy_of(recording.nodes),
        "stretch": {
            "mean": weighted,
            "unweighted": mean(stretches),
            "p95": percentile(stretches, 95),
            "max": max(stretches, default=1.0),
        },
        "wait_s": _mean_and_p95([span.wait_s for span in spans]),
        "jct_s": _mean_and_p95([span.jct_s for span in spans]),
        "makespan_s": end_s,
        "allocated_utilisation": allocated_gpu_s(recording.runs) / capacity_s if capacity_s else 0.0,
        "limit_misses": sum(span.misses_its_limit for span in spans),
        "trials": recording.trials,
        "confirmed": recording.confirmed,
        "undone": recording.undone,
        "active_nodes_mean": active_s / end_s if end_s else 0.0,
        "oom": recording.out_of_memory,
    }


def decision_ms(seconds: Sequence[float]) -> Mapping[str, float]:
    """Return the median and the 99th percentile of the time that a cycle took."""
    return {
        "p50": round(1000 * percentile(seconds, 50), 3),
        "p99": round(1000 * percentile(seconds, 99), 3),
    }


def _mean_and_p95(values: Sequence[float]) -> dict[str, float]:
    return {"mean": mean(values), "p95": percentile(values, 95)}
