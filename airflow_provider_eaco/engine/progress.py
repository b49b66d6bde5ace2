"""What tasks report, taken into the ledger, and what they have to be told (decisions 3 and 7).

A unit of work counts for a resident set only if it began and ended under that set's version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.model.quick_init import quick_init
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord, LedgerView, ProfileStore
from airflow_provider_eaco.engine.tally import Tally

REPORT_VERSION = 1
# What a store's integer columns and the sums of a mean bear; nothing real comes near.
MAX_COUNT = 2**53
MAX_UNIT_S = 1e9


class InvalidReportError(EacoError, ValueError):
    """A progress report that cannot be read; it is ignored and the last good one stays.

    :param field: the field as it is named in the report.
    :param problem: what is wrong with it and what is allowed.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"eaco/progress, {field}: {problem}")
        self.field = field
        self.problem = problem


@quick_init
@dataclass(frozen=True, slots=True)
class UnitTime:
    """One finished unit, counted from 0: its device time, and the set's version when it began and ended.

    ``limited``: a power limit was in force during some of it.
    """

    index: int
    elapsed_s: float
    version_at_begin: int | None
    version_at_end: int | None
    limited: bool = False


@quick_init
@dataclass(frozen=True, slots=True)
class Report:
    """One ``eaco/progress`` value of one job. ``token`` is ``None`` for a task that was granted nothing.

    ``ended``: the training has ended by itself, with whatever units it had done. ``out_of_memory``: how often
    it left because the memory of shared GPUs did not suffice.
    """

    job_id: str
    token: int | None
    units_done: int
    units_total: int | None = None
    checkpoint: str | None = None
    can_yield: bool = False
    try_number: int = 1
    unit: str = "unit"
    ended: bool = False
    recent: tuple[UnitTime, ...] = ()
    out_of_memory: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the training came to its end; a run that was killed or marked a success has not."""
        return self.ended or (self.units_total is not None and self.units_done >= self.units_total)


@quick_init
@dataclass(frozen=True, slots=True)
class TaskInstruction:
    """What a resident's ``eaco/instruction`` has to say now. ``residents`` hold its GPUs, it included."""

    job_id: str
    token: int
    set_version: int
    yield_asked: bool
    residents: int = 1

    def as_json(self) -> dict[str, object]:
        """Return the value for the task state store."""
        return {
            "v": REPORT_VERSION,
            "token": self.token,
            "set_version": self.set_version,
            "yield": self.yield_asked,
            "residents": self.residents,
        }


def parse_report(job_id: str, value: object) -> Report:
    """Return the report in a decoded ``eaco/progress`` value; fields that are not known are ignored.

    :raises InvalidReportError: naming the first field that cannot be read.
    """
    if not isinstance(value, Mapping):
        raise InvalidReportError("value", f"is {type(value).__name__}, must be a JSON object")
    if value.get("v") != REPORT_VERSION:
        raise InvalidReportError("v", f"is {value.get('v')!r}, this release reads {REPORT_VERSION}")
    units_done = _count(value, "units_done")
    units_total = _optional_count(value, "units_total")
    checkpoint = value.get("checkpoint")
    if checkpoint is not None and not isinstance(checkpoint, str):
        raise InvalidReportError("checkpoint", f"is {checkpoint!r}, must be a text or null")
    recent = value.get("recent", [])
    if not isinstance(recent, list | tuple):
        raise InvalidReportError("recent", f"is {recent!r}, must be a list")
    return Report(
        job_id=job_id,
        token=_optional_count(value, "token"),
        units_done=units_done,
        units_total=units_total,
        checkpoint=checkpoint,
        can_yield=_flag(value, "can_yield"),
        try_number=_count(value, "try_number"),
        unit=str(value.get("unit", "unit")),
        ended=_flag(value, "ended"),
        recent=tuple(_unit_time(each) for each in recent),
        out_of_memory=_optional_count(value, "out_of_memory") or 0,
    )


class ProgressSink(Protocol):
    """The part of a ledger that stores what was reported."""

    def save_progress(self, job_id: str, progress: Progress, observation: Observation | None) -> None: ...


class ProgressLedger(ProgressSink, Protocol):
    """The part of a ledger that takes reports in; its view may leave out who has nothing to do with them."""

    def view(self) -> LedgerView: ...


def ingest(
    ledger: ProgressLedger, profiles: ProfileStore, reports: Sequence[Report]
) -> tuple[TaskInstruction, ...]:
    """Take the reports into the ledger; return what every resident that reported has to be told now.

    Reports of jobs without a lease, and under another token than the present lease's, are ignored. Taking the
    same report again changes nothing. The caller writes an instruction where it differs from the last one.

    :raises StoreUnavailableError: if the ledger cannot be read or written; reports can be taken again later.
    """
    if not reports:
        return ()
    view = ledger.view()
    leases = {lease.job_id: lease for lease in view.leases}
    records = {record.job.job_id: record for record in view.jobs}
    shared = _shared(view.leases)
    reported = []
    for report in reports:
        lease, record = leases.get(report.job_id), records.get(report.job_id)
        if lease is None or record is None or lease.token != report.token:
            continue
        alone = lease.placement.gpu_uuids not in shared
        _take(ledger, profiles, ((view.now_s, report),), (lease, record), view.nodes, alone=alone)
        reported.append(lease)
    return instructions(reported, view.leases)


def ingest_one(
    ledger: ProgressSink,
    profiles: ProfileStore,
    reports: Sequence[tuple[float, Report]],
    *,
    lease: Lease,
    record: JobRecord,
    residents: int,
    node: Node,
) -> None:
    """Take reports of one job in, as :func:`ingest` does, without a view of the ledger.

    :param reports: each with its instant, oldest first; since the first of them nobody came or left there.
    :param residents: how many hold the GPUs of the job.
    :param node: theirs.
    """
    own = [(at_s, report) for at_s, report in reports if report.token == lease.token]
    if own:
        _take(ledger, profiles, own, (lease, record), (node,), alone=residents == 1)


def _take(
    ledger: ProgressSink,
    profiles: ProfileStore,
    reports: Sequence[tuple[float, Report]],
    member: tuple[Lease, JobRecord],
    nodes: Sequence[Node],
    *,
    alone: bool,
) -> None:
    lease, record = member
    tally = Tally(record, lease.set_version, partial(_usual_unit_s, record, lease, nodes, profiles))
    for at_s, report in reports:
        tally.take(report, at_s, alone=alone)
    progress, observation = tally.progress(), tally.observation()
    stored = record.job.progress
    # Most reports tell of a unit more, which is seen at once.
    told = progress.units_done != stored.units_done
    if told or observation != record.observation or progress != stored:
        ledger.save_progress(lease.job_id, progress, observation)


def instructions(leases: Iterable[Lease], present: Iterable[Lease]) -> tuple[TaskInstruction, ...]:
    """Return what the holder of each lease has to be told now.

    :param present: all leases that are held, also those of others.
    """
    members = Counter([lease.placement.gpu_uuids for lease in present])
    return tuple(
        [
            TaskInstruction(
                lease.job_id,
                lease.token,
                lease.set_version,
                lease.state is LeaseState.YIELDING,
                members[lease.placement.gpu_uuids],
            )
            for lease in leases
        ]
    )


def _shared(leases: Iterable[Lease]) -> set[tuple[str, ...]]:
    """Return the GPUs, by their UUIDs, of which there are several leases."""
    held: set[tuple[str, ...]] = set()
    shared: set[tuple[str, ...]] = set()
    for lease in leases:
        uuids = lease.placement.gpu_uuids
        (shared if uuids in held else held).add(uuids)
    return shared


def _usual_unit_s(
    record: JobRecord, lease: Lease, nodes: Sequence[Node], profiles: ProfileStore
) -> float | None:
    """Return the unit time alone of this run, else of its family on these GPUs; ``None`` if unknown."""
    if record.job.progress.solo_unit_s is not None:
        return record.job.progress.solo_unit_s
    first = lease.placement.gpu_uuids[0]
    model = next((gpu.model for node in nodes for gpu in node.gpus if gpu.uuid == first), None)
    if model is None:
        return None
    profile = profiles.book().solo_of(record.job.request.family, model, len(lease.placement.gpu_uuids))
    return None if profile is None else profile.unit_s


def _unit_time(value: object) -> UnitTime:
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise InvalidReportError("recent", f"{value!r} must be [unit_index, elapsed_s, version, version]")
    index, elapsed_s, begin, end = value
    unit = {"unit_index": index, "set_version_at_begin": begin, "set_version_at_end": end}
    if isinstance(elapsed_s, bool) or not isinstance(elapsed_s, int | float):
        raise InvalidReportError("recent", f"elapsed_s is {elapsed_s!r}, must be a number of seconds")
    # Compared before it is converted: an int of any length is a JSON number, and few of them are floats.
    if not 0 <= elapsed_s <= MAX_UNIT_S:
        raise InvalidReportError("recent", f"elapsed_s must be from 0 to {MAX_UNIT_S:g} seconds")
    return UnitTime(
        _count(unit, "unit_index"),
        float(elapsed_s),
        _optional_count(unit, "set_version_at_begin"),
        _optional_count(unit, "set_version_at_end"),
    )


def _flag(value: Mapping[str, object], name: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise InvalidReportError(name, f"is {flag!r}, must be true or false")
    return flag


def _count(value: Mapping[str, object], name: str) -> int:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidReportError(name, f"is {type(number).__name__}, must be a whole number")
    if not 0 <= number <= MAX_COUNT:
        raise InvalidReportError(name, f"must be from 0 to {MAX_COUNT}")
    return number


def _optional_count(value: Mapping[str, object], name: str) -> int | None:
    return None if value.get(name) is None else _count(value, name)
