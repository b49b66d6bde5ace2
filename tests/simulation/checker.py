"""Checks the files of a run against the rules of the benchmarks; knows nothing of the simulator's code.

It reads ``jobs.csv``, ``schedule.csv``, ``nodes.csv``, ``decisions.csv``, ``summary.json`` and, where power
was limited, ``limits.csv``, and asks the truth that the caller hands in what a set of families does. Every
finding is one sentence.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.simulation.check_summary import summary_problems
from tests.simulation.files import DecisionRow, JobRow, LimitRow, NodeRow, RunFiles, ScheduleRow

RESTART_S = 30.0
SLEEP_AFTER_S = 300.0
WAKE_S = 120.0
EPOCH_S = 1404.0
# Times are whole milliseconds; two of them make a difference.
TICK_S = 0.0021

# Families (sorted), the number of GPUs and the power limit in W (none: the boards' own) -> power in W, and
# each member's progress per second.
Truth = Callable[[tuple[str, ...], int, float | None], tuple[float, tuple[float, ...]]]


@dataclass(frozen=True)
class Rules:
    """What the caller knows of the run: the truth, the draw of a node's parts, and how many may share."""

    truth: Truth
    free_gpu_w: float
    base_w: float
    asleep_w: float
    max_residents: int


def problems_of(folder: Path, rules: Rules) -> list[str]:
    """Return everything that is wrong with the run in ``folder``; a sound run has nothing."""
    files = RunFiles(folder)
    return [
        *_jobs(files, rules),
        *_leaving(files),
        *_places(files, rules),
        *_limits(files),
        *_rates(files, rules),
        *_nodes(files),
        *_power(files, rules),
        *_sleep(files),
        *_admissions(files),
        *summary_problems(files),
    ]


def _jobs(files: RunFiles, rules: Rules) -> Iterator[str]:
    """Every job runs, does its work, never twice at a time, never before it is submitted."""
    for job in files.jobs.values():
        rows = files.by_job.get(job.job_id, [])
        work_s = math.fsum((row.end_s - row.start_s) * row.rate for row in rows)
        if abs(work_s - job.work_s) > 1e-3 * job.work_s:
            yield f"{job.job_id}: did {work_s} of {job.work_s} s of work"
        if rows and rows[0].start_s < job.submit_s:
            yield f"{job.job_id}: starts before it is submitted"
        yield from _intervals(job, rows, rules)


def _intervals(job: JobRow, rows: Sequence[ScheduleRow], rules: Rules) -> Iterator[str]:
    """One after the other, on as many GPUs as it wants, with no more residents than may be."""
    for row in rows:
        if not 0 <= row.start_s < row.end_s:
            yield f"{job.job_id}: interval from {row.start_s} to {row.end_s}"
        if len(set(row.gpus)) != job.gpus:
            yield f"{job.job_id}: holds {len(set(row.gpus))} GPUs, wants {job.gpus}"
        if len(row.residents) > rules.max_residents:
            yield f"{job.job_id}: {len(row.residents)} residents on its GPUs"
    for before, after in pairwise(rows):
        if after.start_s < before.end_s:
            yield f"{job.job_id}: two intervals overlap at {after.start_s}"
        moved = (before.node, before.gpus) != (after.node, after.gpus)
        if moved and after.start_s == before.end_s and after.rate > 0:
            yield f"{job.job_id}: moves at {after.start_s} without a restart"


def _leaving(files: RunFiles) -> Iterator[str]:
    """A job gives way only at the end of an epoch, and stands still for 30 s when it comes back."""
    for job in files.jobs.values():
        epoch_s, done_s = min(EPOCH_S, job.work_s / 5), 0.0
        rows = files.by_job.get(job.job_id, [])
        for number, row in enumerate(rows):
            before = rows[number - 1] if number else None
            stopped = before is not None and (
                before.end_s < row.start_s
                or (before.node, before.gpus) != (row.node, row.gpus)
                or (row.rate == 0 and before.rate > 0)
            )
            if stopped:
                epochs = done_s / epoch_s
                if abs(epochs - round(epochs)) * epoch_s > TICK_S * (round(epochs) + 1):
                    yield f"{job.job_id}: stops after {epochs} epochs"
                if row.rate != 0:
                    yield f"{job.job_id}: goes on at {row.start_s} without its restart"
            if row.rate == 0 and not (stopped or (before is not None and before.rate == 0)):
                yield f"{job.job_id}: stands still at {row.start_s}, and was not moved"
            done_s += (row.end_s - row.start_s) * row.rate
        for still_s in _still(rows):
            if still_s > RESTART_S + TICK_S:
                yield f"{job.job_id}: stands still for {still_s} s"


def _still(rows: Sequence[ScheduleRow]) -> Iterator[float]:
    """The lengths of unbroken times without progress."""
    still_s, until_s = 0.0, -1.0
    for row in rows:
        if row.rate == 0:
            still_s = still_s + row.end_s - row.start_s if until_s == row.start_s else row.end_s - row.start_s
            until_s = row.end_s
        elif still_s:
            yield still_s
            still_s = 0.0
    if still_s:
        yield still_s


def _places(files: RunFiles, rules: Rules) -> Iterator[str]:
    """Who shares a GPU shares all of them, and both say so for the same time."""
    for node, rows in files.by_node.items():
        present: list[ScheduleRow] = []
        for row in rows:
            present = [other for other in present if other.end_s > row.start_s]
            for other in present:
                overlaps = set(row.gpus) & set(other.gpus)
                mates = row.job_id in other.residents and other.job_id in row.residents
                if overlaps and (row.gpus != other.gpus or not mates):
                    yield f"{row.job_id} and {other.job_id} meet on {node} at {row.start_s} unawares"
                if overlaps and set(row.residents) != set(other.residents):
                    yield f"{row.job_id} and {other.job_id} name different residents at {row.start_s}"
            present.append(row)
    for row in files.schedule:
        if row.job_id not in row.residents or tuple(sorted(set(row.residents))) != row.residents:
            yield f"{row.job_id}: residents {row.residents} at {row.start_s}"
        for mate in row.residents:
            there_s = math.fsum(
                max(0.0, min(row.end_s, other.end_s) - max(row.start_s, other.start_s))
                for other in files.by_job.get(mate, [])
                if (other.node, other.gpus, other.residents) == (row.node, row.gpus, row.residents)
            )
            if abs(there_s - (row.end_s - row.start_s)) > TICK_S:
                yield f"{row.job_id}: {mate} is said to be there from {row.start_s} to {row.end_s}"


def _families(files: RunFiles, residents: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(files.jobs[job_id].family for job_id in residents))


def _limits(files: RunFiles) -> Iterator[str]:
    """Power is limited only where somebody is or comes to, one limit at a time."""
    for row in files.limits:
        if not 0 <= row.start_s < row.end_s:
            yield f"{row.node}: a limit from {row.start_s} to {row.end_s}"
        if not any(from_s <= row.start_s and row.end_s <= to_s for from_s, to_s in _held(files, row)):
            yield f"{row.node}: limited from {row.start_s} to {row.end_s}, where nobody is or comes"
    for number, row in enumerate(files.limits):
        for other in files.limits[:number]:
            if (row.node, row.gpus) == (other.node, other.gpus) and row.start_s < other.end_s:
                yield f"{row.node}: two limits at {row.start_s}"


def _held(files: RunFiles, limit: LimitRow) -> Sequence[tuple[float, float]]:
    """When the GPUs are held, and the time before in which their node may have been waking."""
    spans: list[tuple[float, float]] = []
    for row in files.by_node.get(limit.node, []):
        if row.gpus == limit.gpus:
            if spans and row.start_s <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(row.end_s, spans[-1][1])
            else:
                spans.append((row.start_s - WAKE_S - TICK_S, row.end_s))
    return spans


def _limit_at(files: RunFiles, node: str, gpus: tuple[int, ...], start_s: float) -> float | None:
    return next(
        (
            limit.limit_w
            for limit in files.limits
            if (limit.node, limit.gpus) == (node, gpus) and limit.start_s <= start_s < limit.end_s
        ),
        None,
    )


def _rates(files: RunFiles, rules: Rules) -> Iterator[str]:
    """Progress is what the truth says of the set under its power limit, which stays for the interval."""
    for row in files.schedule:
        families = _families(files, row.residents)
        _, rates = rules.truth(families, len(row.gpus), _limit_at(files, row.node, row.gpus, row.start_s))
        for limit in files.limits:
            inside = any(row.start_s < at_s < row.end_s for at_s in (limit.start_s, limit.end_s))
            if inside and (limit.node, limit.gpus) == (row.node, row.gpus):
                yield f"{row.job_id}: its limit changes within {row.start_s} to {row.end_s}"
        true_rate = rates[families.index(files.jobs[row.job_id].family)]
        if row.rate and abs(row.rate - true_rate) > 1e-9:
            yield f"{row.job_id}: rate {row.rate} at {row.start_s}, the truth is {true_rate}"


def _by_node(files: RunFiles) -> dict[str, list[NodeRow]]:
    by_node: dict[str, list[NodeRow]] = defaultdict(list)
    for row in files.nodes:
        by_node[row.node].append(row)
    return by_node


def _nodes(files: RunFiles) -> Iterator[str]:
    """Intervals cover each node from 0 to the end of the run."""
    by_node = _by_node(files)
    if len(by_node) != files.summary["nodes"]:
        yield f"nodes.csv has {len(by_node)} nodes, the summary {files.summary['nodes']}"
    for node, rows in by_node.items():
        until_s = 0.0
        for row in rows:
            if row.start_s != until_s or row.end_s <= row.start_s:
                yield f"{node}: a gap or an overlap at {row.start_s}"
            until_s = row.end_s
        if abs(until_s - files.end_s) > 1e-9:
            yield f"{node}: is told until {until_s}, the run ends at {files.end_s}"


def _power(files: RunFiles, rules: Rules) -> Iterator[str]:
    """A node draws what the truth says of the sets on it, and of its free GPUs."""
    gpus = files.summary["gpus_per_node"]
    for node, rows in _by_node(files).items():
        held = files.by_node.get(node, [])
        for row in rows:
            held = [run for run in held if run.end_s > row.start_s]
            limits = [limit for limit in files.limits if limit.node == node]
            for start_s, there in _sets_during(row, held, limits):
                if bool(there) != (row.state == "active"):
                    yield f"{node}: {row.state} at {start_s} with {len(there)} sets"
                free = gpus - sum(len(placed) for placed, _ in there)
                true_w = rules.base_w + free * rules.free_gpu_w
                true_w += sum(
                    rules.truth(
                        _families(files, residents), len(placed), _limit_at(files, node, placed, start_s)
                    )[0]
                    for placed, residents in there
                )
                true_w = rules.asleep_w if row.state == "asleep" else true_w
                if abs(row.power_w - true_w) > 1e-6:
                    yield f"{node}: draws {row.power_w} W at {start_s}, the truth is {true_w} W"


def _sets_during(
    row: NodeRow, held: Sequence[ScheduleRow], limits: Sequence[LimitRow]
) -> Iterator[tuple[float, set[tuple[tuple[int, ...], tuple[str, ...]]]]]:
    """The sets on a node, for each part of the row in which nobody comes or goes: several may draw alike."""
    inside = [run for run in held if run.start_s < row.end_s]
    edges = {row.start_s, row.end_s}
    edges.update(
        at_s
        for change in (*inside, *limits)
        for at_s in (change.start_s, change.end_s)
        if row.start_s < at_s < row.end_s
    )
    for start_s, end_s in pairwise(sorted(edges)):
        yield (
            start_s,
            {(run.gpus, run.residents) for run in inside if run.start_s < end_s and run.end_s > start_s},
        )


def _sleep(files: RunFiles) -> Iterator[str]:
    """Nodes sleep after 300 s, as the policy says or never, as the accounting says, and wake in 120 s."""
    sleeps = files.summary["accounting"] == "sleep"
    by_rule = files.summary["sleep"] == "rule"
    for node, rows in _by_node(files).items():
        for number, row in enumerate(rows):
            length_s = row.end_s - row.start_s
            last = number == len(rows) - 1
            after = None if last else rows[number + 1].state
            if row.state in {"asleep", "waking"} and not sleeps:
                yield f"{node}: {row.state} at {row.start_s} in a run where nobody sleeps"
            if sleeps and by_rule and row.state == "idle" and length_s > SLEEP_AFTER_S + TICK_S:
                yield f"{node}: idle for {length_s} s"
            if (
                by_rule
                and row.state == "idle"
                and after == "asleep"
                and abs(length_s - SLEEP_AFTER_S) > TICK_S
            ):
                yield f"{node}: falls asleep after {length_s} s"
            if row.state == "asleep" and after not in {None, "waking"}:
                yield f"{node}: is {after} right after it slept"
            if row.state == "waking" and not last and abs(length_s - WAKE_S) > TICK_S:
                yield f"{node}: wakes for {length_s} s"


def _admissions(files: RunFiles) -> Iterator[str]:
    """Every start was decided, at that instant or when its node began to wake, for that place."""
    admitted: dict[str, list[DecisionRow]] = defaultdict(list)
    last_s = 0.0
    for row in files.decisions:
        if row.time_s < last_s:
            yield f"decisions.csv goes back to {row.time_s}"
        last_s = row.time_s
        if (row.verdict == "admit") != (row.reason == ""):
            yield f"{row.job_id}: {row.verdict} at {row.time_s} because of {row.reason!r}"
        if row.verdict == "admit":
            admitted[row.job_id].append(row)
    for job_id, rows in files.by_job.items():
        places = [(row.node, row.gpus, row.start_s) for row in _starts(rows)]
        decided = [(row.node, row.gpus) for row in admitted[job_id]]
        if decided != [place[:2] for place in places]:
            yield f"{job_id}: was admitted to {decided}, ran on {places}"
        for row, (_, _, start_s) in zip(admitted[job_id], places, strict=False):
            if not -1e-9 <= start_s - row.time_s <= WAKE_S + TICK_S:
                yield f"{job_id}: admitted at {row.time_s}, started at {start_s}"


def _starts(rows: Sequence[ScheduleRow]) -> Iterator[ScheduleRow]:
    """The rows in which a job comes to its GPUs; one that stopped stands still first."""
    for number, row in enumerate(rows):
        before = rows[number - 1] if number else None
        if before is None or before.end_s < row.start_s or (row.rate == 0 and before.rate > 0):
            yield row
