"""What came of a what-if: starts and ends by job, totals, and what was assumed for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.engine.snapshots import gpu_pool_of
from airflow_provider_eaco.provider.shown import counted, shown_instant
from airflow_provider_eaco.provider.whatif.present import Present

# A sentence with more names than these is read by nobody.
_MOST_NAMES = 5

ALWAYS = (
    "run times, slowdowns and power are those of the profiles as they are now",
    "no task is queued, held, released or fails later; starts, moves and restarts take no time",
    "nodes that are silent or draining now stay so, and so does what others hold on GPUs",
)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job that waits or runs now. ``start_s`` is ``None`` where it cannot be told or does not start.

    ``end_s`` is ``None`` where it cannot be told; ``why`` says what keeps a job that does not start.
    """

    job_id: str
    task: str
    pool: str
    waits: bool
    start_s: float | None
    end_s: float | None
    placement: Placement | None
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """All jobs, those that run first, then by start. ``end_s``: when the last one is through.

    ``mean_wait_s``: from now, of those that wait now and start; ``None`` if none does. ``energy_j``: what the
    GPUs of all runs draw from now on; a lower bound if ``is_energy_partial`` (a part is unknown, or somebody
    does not start), ``None`` if nothing is known.
    """

    now_s: float
    jobs: tuple[JobOutcome, ...]
    waiting: int
    started: int
    mean_wait_s: float | None
    end_s: float | None
    energy_j: float | None
    is_energy_partial: bool
    assumptions: tuple[str, ...]


@dataclass(slots=True)
class Happened:
    """What has happened so far.

    ``began``: by job id, when and where those began that waited; ``ended_s``: when they were through.
    ``reasons``: what was said last of those that wait. ``energy_j``: by job id, its share of the sets' draw.
    ``steered``: whether the policy asked for power limits or for nodes to sleep.
    """

    began: dict[str, tuple[float, Placement]] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    energy_j: dict[str, float] = field(default_factory=dict)
    is_energy_partial: bool = False
    steered: bool = False
    cut_short: bool = False
    failures: dict[str, str] = field(default_factory=dict)


def outcome_of(
    present: Present,
    happened: Happened,
    *,
    endless: Sequence[str],
    estimated: Iterable[tuple[str, ...]],
    untold: Iterable[tuple[str, ...]],
    until_s: float,
) -> Outcome:
    """Return the outcome of a what-if that began with ``present``.

    :param endless: families of the runs whose end cannot be told.
    :param estimated: sets that were never measured.
    :param untold: sets whose pace cannot be told.
    :param until_s: the instant up to which it was carried on.
    """
    jobs = _jobs(present, happened)
    waits_s = [job.start_s - present.view.now_s for job in jobs if job.waits and job.start_s is not None]
    waiting = sum(job.waits for job in jobs)
    ends_s = [job.end_s for job in jobs if job.end_s is not None]
    energies_j = happened.energy_j.values()
    return Outcome(
        now_s=present.view.now_s,
        jobs=jobs,
        waiting=waiting,
        started=len(waits_s),
        mean_wait_s=math.fsum(waits_s) / len(waits_s) if waits_s else None,
        end_s=max(ends_s) if jobs and len(ends_s) == len(jobs) else None,
        energy_j=math.fsum(energies_j) if energies_j else None,
        is_energy_partial=happened.is_energy_partial or bool(endless) or len(waits_s) < waiting,
        assumptions=(*ALWAYS, *_of_runs(endless, estimated, untold), *_of_plans(happened, until_s)),
    )


def _of_plans(happened: Happened, until_s: float) -> list[str]:
    sentences = [f"GPU pool {pool} cannot be planned: {why}" for pool, why in happened.failures.items()]
    if happened.steered:
        sentences.append("power limits and sleeping nodes that the policy asks for are left out")
    if happened.cut_short:
        sentences.append(f"it was cut short at {shown_instant(until_s)}: the policy does not come to rest")
    return sentences


def _jobs(present: Present, happened: Happened) -> tuple[JobOutcome, ...]:
    leases = {lease.job_id: lease for lease in present.view.leases}
    found = []
    for record in present.view.jobs:
        job = record.job
        lease = leases.get(job.job_id)
        start = happened.began.get(job.job_id) if lease is None else (lease.granted_s, lease.placement)
        found.append(
            JobOutcome(
                job_id=job.job_id,
                task=job.label,
                pool=gpu_pool_of(job.pool, present.pools),
                waits=record.phase in {JobPhase.WAITING, JobPhase.YIELDED},
                start_s=None if start is None else start[0],
                end_s=happened.ended_s.get(job.job_id),
                placement=None if start is None else start[1],
                why="" if start is not None else happened.reasons.get(job.job_id, "nobody has planned it"),
            )
        )
    return tuple(sorted(found, key=_first_start_first))


def _first_start_first(job: JobOutcome) -> tuple[object, ...]:
    return job.waits, math.inf if job.start_s is None else job.start_s, job.task, job.job_id


def _of_runs(
    endless: Sequence[str], estimated: Iterable[tuple[str, ...]], untold: Iterable[tuple[str, ...]]
) -> list[str]:
    sentences = []
    if endless:
        names = _named(Counter(endless))
        tasks = counted(len(endless), "task")
        sentences.append(
            f"how long {tasks} will run is unknown (families {names}): their ends, and the starts of those "
            "that wait for their GPUs, are unknown"
        )
    sets = sorted(" + ".join(families) for families in estimated)
    if sets:
        sentences.append(f"never measured, so as the policy predicts: {_named(sets)}")
    unknown = sorted(" + ".join(families) for families in untold)
    if unknown:
        sentences.append(f"how fast these run together is unknown, and so are their ends: {_named(unknown)}")
    return sentences


def _named(names: Iterable[str]) -> str:
    all_names = sorted(names)
    more = len(all_names) - _MOST_NAMES
    return ", ".join(all_names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
