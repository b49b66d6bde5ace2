"""Values that come back as they were stored: names, instants, unknown numbers, JSON."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Finding, Reason, Verdict, hold
from airflow_provider_eaco.core.model.gpu import ForeignProcess, GpuReading
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.profile import ProfileBook, SoloProfile
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.columns import canonical_json
from airflow_provider_eaco.store.decisions import SqlDecisionLog, decisions_of
from airflow_provider_eaco.store.energy import SqlEnergyLog, energy_of
from airflow_provider_eaco.store.inventory import SqlReadings
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.read_model import ReadModel
from airflow_provider_eaco.store.session import Database, DatabaseClock
from tests.contract.parts import ManualClock, grant, make_job, make_node, place
from tests.databases import database_on

LONG = "Übung-\U0001f422-" + "学" * 242
assert len(LONG) == 250


def long_job() -> Job:
    job = make_job()
    return replace(
        job,
        request=replace(job.request, family=f"{LONG}.{LONG}#0123456789abcdef"),
        pool=LONG,
        order=replace(job.order, dag_id=LONG, task_id=LONG),
    )


def test_names_of_250_characters(database: Database) -> None:
    """DAG, task, pool and family of full length and any script go through every table and index."""
    ledger, job = SqlLedger(database), long_job()
    ledger.save_nodes([make_node(LONG)])
    ledger.add_waiting(job, LONG)
    lease = grant(ledger, "j1", place(0, node=LONG), owner=LONG)
    SqlProfileStore(database, ProfileBook()).save_solo(SoloProfile(job.request.family, LONG, 8, unit_s=1.0))
    log = SqlDecisionLog(database)
    log.record(Plan(LONG, 1.0, decisions=(KindDecision(job.kind, ("j1",), hold(Finding(Reason.ON_HOLD))),)))
    log.record_event("j1", LONG, LONG * 10, 1.0)
    SqlEnergyLog(database).add(EnergyPart("j1", lease.token, LONG, 1.0, 1.0, EnergyMethod.COUNTER))
    reader = ReadModel(database)
    assert [record.job for record in reader.jobs_of_task(LONG, LONG)] == [job]
    story = reader.story("j1")
    assert story is not None
    assert story.events[0].text == LONG * 10
    book = SqlProfileStore(database, ProfileBook()).book()
    assert book.solo_of(job.request.family, LONG, 8) is not None


@pytest.mark.parametrize(
    "instant_s", [0.0, 1.5, 1_700_000_000.123456, 1_790_000_000.999999, 4_000_000_000.5, -86_400.25]
)
def test_instants_come_back_to_the_microsecond(database: Database, instant_s: float) -> None:
    """An instant is the same number of seconds after the store as before, whatever the machine's zone."""
    SqlLedger(database).add_waiting(make_job(queued_s=instant_s), "x")
    (record,) = SqlLedger(database).view().jobs
    assert record.job.queued_s == record.job.order.run_after_s == instant_s


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns"])
def test_time_stamps_are_utc_in_every_zone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """The column holds UTC, so that rows written on machines in other zones compare; the clock agrees."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        SqlLedger(database_on(engine)).add_waiting(make_job(queued_s=1_700_000_000.0), "x")
        clock_s = DatabaseClock(sessionmaker(engine)).now_s()
        real_s = time.time()
    finally:
        monkeypatch.undo()
        time.tzset()
    with engine.connect() as connection:
        stored = connection.scalar(sa.text("SELECT queued_at FROM eaco_job"))
    text = stored if isinstance(stored, str) else stored.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert text.startswith(datetime.fromtimestamp(1_700_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S"))
    assert abs(clock_s - real_s) < 60


def test_the_clock_has_fractions_and_moves_inside_a_transaction(database: Database) -> None:
    """The clock shows milliseconds or better, and the present, not the beginning of the transaction."""
    with database.reading() as connection:
        seen = {database.now_s(connection)}
        deadline = time.monotonic() + 10
        while len(seen) < 3 and time.monotonic() < deadline:
            seen.add(database.now_s(connection))
    assert len(seen) == 3
    assert max(seen) - min(seen) < 1


def test_json_null_missing_and_odd_numbers(database: Database) -> None:
    """A number that is null stays null, one that is missing stays missing; NaN, infinity and NUL survive."""
    numbers = {
        "known": 1,
        "unknown": None,
        "none_at_all": float("inf"),
        "odd": "a\x00b\ud800",
        "list": [1, None],
    }
    decision = hold(Finding(Reason.WAITING_FOR_GPU, numbers), Finding(Reason.HOST_MEMORY))
    log = SqlDecisionLog(database)
    log.record(Plan("eaco", 1.0, decisions=(KindDecision(make_job().kind, ("j1",), decision),)))
    with database.reading() as connection:
        (stored,) = decisions_of(connection)
    found = {finding.reason: finding.numbers for finding in stored.decision.findings}
    assert found == {Reason.WAITING_FOR_GPU: numbers, Reason.HOST_MEMORY: {}}
    assert (stored.decision.prediction, stored.decision.placement) == (None, None)


def test_nan_is_kept_and_equal_values_have_one_text() -> None:
    """The canonical text of a value does not depend on the order of keys."""
    assert (
        canonical_json({"b": 1, "a": [Reason.ON_HOLD.code, Verdict.HOLD]}) == '{"a":["on_hold","hold"],"b":1}'
    )
    assert canonical_json({"x": math.nan}) == '{"x":NaN}'


def test_numbers_follow_without_a_new_row(database: Database) -> None:
    """While the answer stands its numbers are those of the newest plan, and its beginning stays."""
    log, kind = SqlDecisionLog(database), make_job().kind
    for at_s, free in ((1.0, 0), (2.0, 3)):
        answer = hold(Finding(Reason.WAITING_FOR_GPU, {"free": free}))
        log.record(Plan("eaco", at_s, decisions=(KindDecision(kind, ("j1",), answer),)))
    with database.reading() as connection:
        (stored,) = decisions_of(connection)
    assert stored.decision.findings[0].numbers == {"free": 3}
    assert stored.decided_s == 1.0


def test_an_unchanged_plan_writes_nothing(engine: Engine) -> None:
    """An idle queue of 1,000 jobs of 1,000 kinds is looked at without one INSERT, UPDATE or DELETE."""
    log = SqlDecisionLog(database_on(engine))
    held = hold(Finding(Reason.WAITING_FOR_GPU, {"free": 0}))
    jobs = [replace(make_job(f"j{index}"), priority=index) for index in range(1000)]
    items = tuple(KindDecision(job.kind, (job.job_id,), held) for job in jobs)
    order = tuple(job.job_id for job in jobs)
    assert len(log.record(Plan("eaco", 1.0, decisions=items, order=order))) == 1000
    written: list[str] = []
    sa.event.listen(
        engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_rest: written.append(statement),
    )
    for cycle in range(3):
        assert list(log.record(Plan("eaco", 2.0 + cycle, decisions=items, order=order))) == []
    assert [text for text in written if text.startswith(("INSERT", "UPDATE", "DELETE"))] == []


def energy_of_jobs(database: Database) -> dict[str, JobEnergy]:
    with database.reading() as connection:
        return energy_of(connection)


def test_energy_adds_up_and_unknown_is_not_zero(database: Database) -> None:
    """Parts add up per GPU and job; an unmeasured part marks the sum as partial and adds nothing."""
    log = SqlEnergyLog(database)

    def part(token: int, uuid: str, energy_j: float | None, method: EnergyMethod) -> EnergyPart:
        return EnergyPart("j1", token, uuid, energy_j, 10.0, method)

    log.add(part(1, "GPU-1", 5.0, EnergyMethod.COUNTER))
    log.add(part(1, "GPU-1", 2.5, EnergyMethod.COUNTER))
    log.add(part(2, "GPU-2", 1.0, EnergyMethod.COUNTER))
    energy = energy_of_jobs(database)["j1"]
    assert (energy.energy_j, energy.partial) == (8.5, False)
    assert (energy.per_gpu_j, energy.methods) == ({"GPU-1": 7.5, "GPU-2": 1.0}, {EnergyMethod.COUNTER})
    log.add(part(2, "GPU-2", None, EnergyMethod.UNKNOWN))
    log.add(part(2, "GPU-2", 1.0, EnergyMethod.INTEGRATED))
    energy = energy_of_jobs(database)["j1"]
    assert (energy.energy_j, energy.partial) == (9.5, True)
    assert energy.methods == {EnergyMethod.COUNTER, EnergyMethod.INTEGRATED}
    log.add(EnergyPart("j2", 3, "GPU-1", None, 10.0, EnergyMethod.UNKNOWN))
    unknown = energy_of_jobs(database)["j2"]
    assert (unknown.energy_j, unknown.partial, unknown.per_gpu_j) == (None, True, {"GPU-1": None})
    assert set(energy_of_jobs(database)) == {"j1", "j2"}


@pytest.mark.parametrize("energy_j", [-1.0, math.nan, math.inf])
def test_impossible_energy_is_refused(database: Database, energy_j: float) -> None:
    """No sum is ever spoilt by a number that no device can have drawn."""
    with pytest.raises(ValueError, match="energy_j"):
        SqlEnergyLog(database).add(EnergyPart("j", 1, "GPU-1", energy_j, 1.0, EnergyMethod.COUNTER))


def test_readings_keep_unknown(database: Database) -> None:
    """The last reading of each GPU is kept; what it did not know is unknown, not what was known before."""
    readings = SqlReadings(database)
    by = (ForeignProcess(7, "alice"), ForeignProcess(8))
    first = GpuReading("GPU-1", 1.0, 50.0, 100, 200.0, 3.0, 7, 2, by)
    readings.save([first, GpuReading("GPU-2", 1.0)])
    assert ReadModel(database).overview().readings["GPU-1"] == first
    readings.save([GpuReading("GPU-1", 2.5)])
    assert ReadModel(database).overview().readings == {
        "GPU-1": GpuReading("GPU-1", 2.5),
        "GPU-2": GpuReading("GPU-2", 1.0),
    }


def test_a_view_is_one_state_of_the_database(engine: Engine) -> None:
    """What others commit between two queries of a view is not in it."""
    database, other = database_on(engine), SqlLedger(database_on(engine))
    other.save_nodes([make_node()])
    other.add_waiting(make_job(), "x")
    with database.reading() as connection:
        count = sa.text("SELECT count(*) FROM eaco_lease")
        assert connection.scalar(count) == 0
        grant(other, "j1", place(0))
        assert connection.scalar(count) == 0
    assert len(other.view().leases) == 1


def test_profiles_saved_together_are_all_or_none(database: Database) -> None:
    """One profile that cannot be stored keeps all of its batch out, and the revision as it was."""
    store = SqlProfileStore(database, ProfileBook())
    store.save_all([SoloProfile("a", "V100", 1), SoloProfile("b", "V100", 1)])
    before = store.book()
    broken = SoloProfile("c", "V100", None)  # type: ignore[arg-type] # what a careless caller may do
    with pytest.raises(Exception, match="gpu_count"):
        store.save_all([SoloProfile("a", "V100", 1, unit_s=9.0), broken])
    assert store.book() == before
    assert set(before.solo) == {SoloProfile("a", "V100", 1).key, SoloProfile("b", "V100", 1).key}


def test_two_stores_see_each_others_profiles(database: Database) -> None:
    """Another process's profile is in the next book, and its revision tells."""
    mine, other = SqlProfileStore(database, ProfileBook()), SqlProfileStore(database, ProfileBook())
    first = mine.book()
    other.save_solo(SoloProfile("theirs", "V100", 1, unit_s=3.0))
    assert mine.book().solo_of("theirs", "V100", 1) is not None
    assert mine.book().revision != first.revision
    assert mine.book() is mine.book()


def test_a_handed_in_clock_judges(engine: Engine) -> None:
    """With a clock of its own the store writes that clock's instants: recorded days can be replayed."""
    clock = ManualClock(123.5)
    ledger = SqlLedger(database_on(engine, clock))
    ledger.save_nodes([make_node()])
    view = ledger.view()
    assert (view.now_s, view.nodes[0].last_report_s) == (123.5, 123.5)


def test_an_admission_is_stored_whole(database: Database) -> None:
    """Placement, co-residents and the absence of a prediction come back."""
    admitted = AdmissionDecision(Verdict.ADMIT, placement=place(0, 1), co_residents=("a", "b"))
    job = make_job()
    SqlDecisionLog(database).record(Plan("eaco", 1.0, decisions=(KindDecision(job.kind, ("j1",), admitted),)))
    with database.reading() as connection:
        (stored,) = decisions_of(connection)
    assert (stored.decision, stored.job_id) == (admitted, "j1")
