"""Reports of tasks: reading them, taking them into the ledger, and what tasks are told."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.engine.progress import (
    InvalidReportError,
    Report,
    TaskInstruction,
    UnitTime,
    ingest,
    ingest_one,
    instructions,
    parse_report,
)
from airflow_provider_eaco.provider.progress_record import Instruction, ProgressRecord, UnitReport
from tests.builders import NOW_S, make_job
from tests.unit.engine.rig import Rig

GOOD: dict[str, Any] = {
    "v": 1,
    "try_number": 1,
    "token": 7,
    "unit": "epoch",
    "units_done": 3,
    "units_total": 90,
    "checkpoint": "/models/3.npz",
    "can_yield": True,
    "recent": [[1, 10.5, 1, 1], [2, 12, 1, 2]],
}


def test_a_report_is_read_whole() -> None:
    """Every field of a good report is there, and fields of a later release are ignored."""
    assert parse_report("j", {**GOOD, "checkpoint_units": 3}) == Report(
        "j",
        token=7,
        units_done=3,
        units_total=90,
        checkpoint="/models/3.npz",
        can_yield=True,
        try_number=1,
        unit="epoch",
        recent=(UnitTime(1, 10.5, 1, 1), UnitTime(2, 12.0, 1, 2)),
    )


def test_a_report_that_knows_little_is_read() -> None:
    """A task that was granted nothing and knows no total still tells how far it has come."""
    value = {**GOOD, "token": None, "units_total": None, "checkpoint": None, "recent": [[0, 1.0, None, None]]}
    report = parse_report("j", value)
    assert (report.token, report.units_total, report.checkpoint) == (None, None, None)
    assert report.recent == (UnitTime(0, 1.0, None, None),)


def test_what_a_task_writes_is_what_is_read() -> None:
    """The task's own record and this reader agree, in both directions."""
    record = ProgressRecord(1, 7, "epoch", 90)
    record.complete(UnitReport(0, 10.5, 1, 2), "/models/1.npz")
    report = parse_report("j", record.as_json())
    assert (report.token, report.units_done, report.can_yield) == (7, 1, True)
    assert report.recent == (UnitTime(0, 10.5, 1, 2),)
    told = TaskInstruction("j", 7, 4, True).as_json()
    assert Instruction.read(told, 7) == Instruction(4, True, 1)
    assert Instruction.read(told, 8) == Instruction()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        pytest.param(None, "value", id="nothing"),
        pytest.param([1], "value", id="a-list"),
        pytest.param({**GOOD, "v": 2}, "v", id="version"),
        pytest.param({**GOOD, "units_done": -1}, "units_done", id="negative"),
        pytest.param({**GOOD, "units_done": "3"}, "units_done", id="text"),
        pytest.param({**GOOD, "units_done": True}, "units_done", id="bool"),
        pytest.param({**GOOD, "units_total": 1.5}, "units_total", id="fraction"),
        pytest.param({**GOOD, "token": "seven"}, "token", id="token"),
        pytest.param({**GOOD, "try_number": None}, "try_number", id="try"),
        pytest.param({**GOOD, "checkpoint": 5}, "checkpoint", id="checkpoint"),
        pytest.param({**GOOD, "can_yield": 1}, "can_yield", id="can-yield"),
        pytest.param({**GOOD, "recent": "all"}, "recent", id="recent"),
        pytest.param({**GOOD, "recent": [[0, 1.0, 1]]}, "recent", id="short-unit"),
        pytest.param({**GOOD, "recent": [[0, float("nan"), 1, 1]]}, "recent", id="nan"),
        pytest.param({**GOOD, "recent": [[0, -1.0, 1, 1]]}, "recent", id="negative-time"),
        pytest.param({**GOOD, "recent": [[0, "1", 1, 1]]}, "recent", id="text-time"),
        pytest.param({**GOOD, "recent": [[-1, 1.0, 1, 1]]}, "unit_index", id="index"),
        pytest.param({**GOOD, "recent": [[0, 1.0, 1, "1"]]}, "set_version_at_end", id="version-at-end"),
    ],
)
def test_a_bad_report_names_its_field(value: object, names: str) -> None:
    """What cannot be read is refused with the field and what is allowed."""
    with pytest.raises(InvalidReportError) as caught:
        parse_report("j", value)
    assert caught.value.field == names
    assert "must be" in caught.value.problem or "reads 1" in caught.value.problem


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(make_job("a", "A", gpus=1))
    rig.loop.run_once()
    rig.start("a")
    return rig


def record(rig: Rig, job_id: str = "a") -> JobRecord:
    found = rig.ledger.record_of(job_id)
    assert found is not None
    return found


def take(rig: Rig, *units: tuple[int, float, int, int], done: int, token: int | None = None) -> None:
    report = Report(
        "a",
        rig.held("a").token if token is None else token,
        units_done=done,
        units_total=10,
        can_yield=True,
        recent=tuple(UnitTime(*unit) for unit in units),
    )
    ingest(rig.ledger, rig.profiles, [report])


def test_units_alone_become_progress_and_observation(rig: Rig) -> None:
    """Units under the present set are its observation; as long as the job is alone they are its solo time."""
    take(rig, (0, 10.0, 1, 1), (1, 14.0, 1, 1), done=2)
    spread_s = 8**0.5
    told = Progress(2, 10, 24.0, True, 12.0, 2, spread_s, reported_s=rig.clock.now_s(), lost_s=0.0)
    assert record(rig).job.progress == told
    assert record(rig).observation == Observation(1, 2, 12.0, 24.0, spread_s)


def test_taking_a_report_again_changes_nothing(rig: Rig) -> None:
    """A report that is read at two heartbeats counts once, and the second writes nothing."""
    take(rig, (0, 10.0, 1, 1), done=1)
    before = record(rig)
    take(rig, (0, 10.0, 1, 1), done=1)
    assert record(rig) is before


def test_only_the_new_units_of_a_report_count(rig: Rig) -> None:
    """A report lists recent units; those taken before are not counted again."""
    take(rig, (0, 10.0, 1, 1), done=1)
    take(rig, (0, 10.0, 1, 1), (1, 20.0, 1, 1), done=2)
    assert record(rig).job.progress.run_s == 30.0
    assert record(rig).job.progress.solo_unit_s == 15.0


def test_an_older_token_is_ignored(rig: Rig) -> None:
    """A process whose lease has ended changes nothing, nor is it told anything."""
    old = rig.held("a").token
    rig.end("a", JobPhase.YIELDED)
    rig.add(make_job("a", "A", gpus=1))
    rig.loop.run_once()
    report = Report("a", old, units_done=5, recent=(UnitTime(4, 1.0, 1, 1),))
    assert ingest(rig.ledger, rig.profiles, [report]) == ()
    assert record(rig).job.progress == Progress()


def test_a_report_of_nobody_is_ignored(rig: Rig) -> None:
    """A task without a lease, and one that was granted nothing, are no residents."""
    reports = [Report("nobody", 1, units_done=1), Report("a", None, units_done=1)]
    assert ingest(rig.ledger, rig.profiles, reports) == ()


def join(rig: Rig) -> int:
    rig.add(make_job("b", "B", gpus=1))
    rig.loop.run_once()
    return rig.held("a").set_version


def test_a_unit_across_a_change_of_the_set_counts_for_neither(rig: Rig) -> None:
    """Only a unit that began and ended under the present set is an observation; its time still passed."""
    take(rig, (0, 10.0, 1, 1), done=1)
    version = join(rig)
    take(rig, (0, 10.0, 1, 1), (1, 13.0, 1, version), done=2)
    assert record(rig).observation == Observation(version, 0, None, 13.0)
    take(rig, (1, 13.0, 1, version), (2, 15.0, version, version), done=3)
    assert record(rig).observation == Observation(version, 1, 15.0, 28.0)
    progress = record(rig).job.progress
    assert (progress.run_s, progress.solo_unit_s, progress.solo_units) == (38.0, 10.0, 1)


def test_a_run_that_resumed_repeats_units(rig: Rig) -> None:
    """After a yield without the newest checkpoint, repeated units are new work in a new lease."""
    take(rig, (0, 10.0, 1, 1), (1, 10.0, 1, 1), (2, 10.0, 1, 1), done=3)
    rig.end("a", JobPhase.YIELDED)
    rig.add(make_job("a", "A", gpus=1))
    rig.loop.run_once()
    version = rig.held("a").set_version
    take(rig, (2, 11.0, version, version), done=3)
    progress = record(rig).job.progress
    assert (progress.units_done, progress.run_s, progress.solo_units) == (3, 41.0, 4)


@pytest.mark.parametrize(
    ("units", "done", "run_s"),
    [
        pytest.param((), 5, 500.0, id="profile"),
        pytest.param(((5, 20.0, 1, 1),), 6, 120.0, id="mean-of-seen"),
    ],
)
def test_units_that_nobody_saw_count_in_the_run_time(
    rig: Rig, units: tuple[tuple[int, float, int, int], ...], done: int, run_s: float
) -> None:
    """A retry that resumed at unit 5 has run for five units: like those seen, else like its family alone."""
    take(rig, *units, done=done)
    assert record(rig).job.progress.run_s == run_s


def test_each_resident_is_told_its_sets_version_and_whether_to_yield(rig: Rig) -> None:
    """The instruction follows the lease: token, version, yield, and how many hold the GPUs."""
    version = join(rig)
    rig.ledger.ask_to_yield("b", version)
    a, b = rig.held("a"), rig.held("b")
    assert instructions([a, b], [a, b]) == (
        TaskInstruction("a", a.token, version, False, 2),
        TaskInstruction("b", b.token, version, True, 2),
    )


# Of several units at once; of one that nobody saw the time of; under a power limit; and of no new unit.
LATE = (
    Report("a", 1, 1, units_total=10, recent=(UnitTime(0, 10.1, None, 1),)),
    Report("a", 1, 3, can_yield=True, recent=(UnitTime(1, 10.3, 1, 1), UnitTime(2, 10.7, 1, 1))),
    Report("a", 1, 5, recent=(UnitTime(4, 11.9, 1, 1),)),
    Report("a", 1, 6, recent=(UnitTime(5, 13.3, 1, 1, limited=True),)),
    Report("a", 1, 6, can_yield=True, recent=(UnitTime(5, 13.3, 1, 1, limited=True),)),
    Report("a", 7, 9, recent=(UnitTime(8, 99.0, 1, 1),)),
)


@pytest.mark.parametrize("seen_before", [0, 1, 3])
def test_reports_that_are_taken_in_late_leave_what_they_leave_at_once(rig: Rig, seen_before: int) -> None:
    """Of several reports, each counts at its own instant and to the last bit as if taken in then."""
    late = Rig()
    late.add(make_job("a", "A", gpus=1))
    late.loop.run_once()
    late.start("a")
    told: list[tuple[float, Report]] = []
    for number, report in enumerate(LATE):
        ingest(rig.ledger, rig.profiles, [report])
        if number < seen_before:
            ingest(late.ledger, late.profiles, [report])
        else:
            told.append((rig.clock.now_s(), report))
        rig.clock.advance(17.3)
        late.clock.advance(17.3)
    standing = late.ledger.standing_of("a")
    assert standing is not None
    lease, known, residents = standing
    ingest_one(
        late.ledger,
        late.profiles,
        told,
        lease=lease,
        record=known,
        residents=residents,
        node=late.ledger.view().nodes[0],
    )
    assert record(late) == record(rig)


def test_late_reports_of_an_older_token_are_ignored(rig: Rig) -> None:
    """Where nothing is left to take in, nothing changes."""
    standing = rig.ledger.standing_of("a")
    assert standing is not None
    lease, known, residents = standing
    ingest_one(
        rig.ledger,
        rig.profiles,
        [(NOW_S, LATE[-1])],
        lease=lease,
        record=known,
        residents=residents,
        node=rig.ledger.view().nodes[0],
    )
    assert record(rig) is known


def test_no_reports_read_nothing(rig: Rig) -> None:
    """A heartbeat without reports costs no read of the ledger."""
    rig.ledger.view = None  # type: ignore[method-assign, assignment]  # a call would raise
    assert ingest(rig.ledger, rig.profiles, []) == ()
