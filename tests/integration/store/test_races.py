"""Case C40 on a real PostgreSQL: grants that race, without the planner lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.booking import BookingOverlapError, WantedBooking
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import JobRecord, LedgerView
from airflow_provider_eaco.store.bookings import SqlBookings
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from tests.contract.parts import grant, make_job, make_node, place
from tests.databases import database_on

pytestmark = pytest.mark.postgres
THREADS = 50
LIMIT_S = 60.0


def run_together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run ``work(0)`` to ``work(count - 1)`` in threads that begin at one time; raise what one raised."""
    barrier, failures = threading.Barrier(count), []

    def run(index: int) -> None:
        try:
            barrier.wait(LIMIT_S)
            work(index)
        except BaseException as error:  # noqa: BLE001 # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


@pytest.fixture
def ledger(postgres_engine: Engine) -> SqlLedger:
    ledger = SqlLedger(database_on(postgres_engine))
    for index in range(THREADS):
        ledger.add_waiting(make_job(f"j{index:02}"), "executor")
    return ledger


def job_of(view: LedgerView, index: int) -> JobRecord:
    return next(record for record in view.jobs if record.job.job_id == f"j{index:02}")


def test_c40_fifty_threads_race_for_one_gpu(ledger: SqlLedger) -> None:
    """Of fifty grants of the last GPU from one view exactly one wins, and its job alone is leased."""
    ledger.save_nodes([make_node(gpus=1)])
    view = ledger.view()
    granted: list[str] = []

    def race(index: int) -> None:
        record = job_of(view, index)
        try:
            lease = ledger.grant(
                Launch(record.job, place(0), ()), LeaseState.EXCLUSIVE, view.gpu_versions, f"planner-{index}"
            )
        except LeaseConflictError:
            return
        granted.append(lease.job_id)

    run_together(race)
    after = ledger.view()
    assert len(granted) == 1
    assert [lease.job_id for lease in after.leases] == granted
    assert [r.job.job_id for r in after.jobs if r.phase is JobPhase.LEASED] == granted
    assert after.gpu_versions["GPU-n1-0"] == 1


def fitting(view: LedgerView, needed_mib: int) -> Placement | None:
    """Return the first GPU that has room for ``needed_mib`` beside its residents, as a planner would."""
    memory = {record.job.job_id: record.job.request.gpu_memory_mib or 0 for record in view.jobs}
    used: Counter[str] = Counter()
    for lease in view.leases:
        for uuid in lease.placement.gpu_uuids:
            used[uuid] += memory[lease.job_id]
    for gpu in view.nodes[0].gpus:
        if used[gpu.uuid] + needed_mib <= (gpu.memory_total_mib or 0):
            return Placement("n1", (gpu.uuid,))
    return None


def test_c40_two_planners_never_over_admit_the_last_12_gib(ledger: SqlLedger) -> None:
    """Fifty planners that plan again after each conflict fill every GPU to its memory and not beyond it."""
    needed_mib, gpus, per_gpu = 12 * 1024, 4, 3
    ledger.save_nodes([make_node(gpus=gpus, memory_mib=per_gpu * needed_mib + 100)])

    def plan_until_full(index: int) -> None:
        while True:
            view = ledger.view()
            record = job_of(view, index)
            placement = fitting(view, needed_mib)
            if placement is None:
                return
            there = tuple(lease.job_id for lease in view.leases if lease.placement == placement)
            state = LeaseState.TRIAL if there else LeaseState.EXCLUSIVE
            try:
                ledger.grant(Launch(record.job, placement, there), state, view.gpu_versions, f"p{index}")
            except LeaseConflictError:
                continue
            return

    for index in range(THREADS):
        ledger.add_waiting(_with_memory(index, needed_mib), "executor")
    run_together(plan_until_full)
    leases = ledger.view().leases
    residents = Counter(lease.placement.gpu_uuids for lease in leases)
    assert residents == {(f"GPU-n1-{index}",): per_gpu for index in range(gpus)}
    assert len({lease.job_id for lease in leases}) == len({lease.token for lease in leases}) == gpus * per_gpu
    _assert_sets_agree(leases)


def _with_memory(index: int, memory_mib: int) -> Job:
    job = make_job(f"j{index:02}")
    return replace(job, request=replace(job.request, gpu_memory_mib=memory_mib))


def _assert_sets_agree(leases: Sequence[Lease]) -> None:
    versions: dict[Placement, set[int]] = {}
    for lease in leases:
        versions.setdefault(lease.placement, set()).add(lease.set_version)
    assert all(len(found) == 1 for found in versions.values())


def test_c40_each_winner_has_a_device_of_its_own(ledger: SqlLedger) -> None:
    """Fifty exclusive jobs race for eight GPUs: eight get one each, nobody another's."""
    ledger.save_nodes([make_node(gpus=8)])

    def plan_until_full(index: int) -> None:
        while True:
            view = ledger.view()
            held = {uuid for lease in view.leases for uuid in lease.placement.gpu_uuids}
            free = [gpu.uuid for gpu in view.nodes[0].gpus if gpu.uuid not in held]
            if not free:
                return
            launch = Launch(job_of(view, index).job, Placement("n1", (free[0],)), ())
            try:
                ledger.grant(launch, LeaseState.EXCLUSIVE, view.gpu_versions, f"p{index}")
            except LeaseConflictError:
                continue
            return

    run_together(plan_until_full)
    leases = ledger.view().leases
    assert sorted(lease.placement.gpu_uuids[0] for lease in leases) == [f"GPU-n1-{i}" for i in range(8)]


def test_c40_overlapping_sets_cannot_both_win(ledger: SqlLedger) -> None:
    """Grants of sets that overlap in one GPU, in any order of naming, never deadlock and never both win."""
    ledger.save_nodes([make_node(gpus=3)])
    view = ledger.view()
    sets = [place(0, 1), place(1, 2), place(0, 2)]
    won: list[Placement] = []

    def race(index: int) -> None:
        placement = sets[index % 3]
        named = Placement("n1", placement.gpu_uuids[:: 1 if index % 2 else -1])
        try:
            ledger.grant(
                Launch(job_of(view, index).job, named, ()), LeaseState.EXCLUSIVE, view.gpu_versions, "p"
            )
        except LeaseConflictError:
            return
        won.append(placement)

    run_together(race)
    assert len(won) == 1
    assert [lease.placement for lease in ledger.view().leases] == won


def test_c40_joins_and_releases_race(ledger: SqlLedger) -> None:
    """Members that join and leave one set at the same time leave a ledger in which all members agree."""
    ledger.save_nodes([make_node(gpus=2)])
    first = [grant(ledger, f"j{index:02}", place(0, 1), LeaseState.TRIAL) for index in range(20)]

    def join_or_leave(index: int) -> None:
        if index < 20:
            assert ledger.release(first[index].token, JobPhase.FAILED)
            return
        while True:
            view = ledger.view()
            there = tuple(lease.job_id for lease in view.leases)
            launch = Launch(job_of(view, index).job, place(0, 1), there)
            try:
                ledger.grant(launch, LeaseState.TRIAL, view.gpu_versions, "p")
            except LeaseConflictError:
                continue
            return

    run_together(join_or_leave, 30)
    view = ledger.view()
    assert {lease.job_id for lease in view.leases} == {f"j{index:02}" for index in range(20, 30)}
    _assert_sets_agree(view.leases)
    # Each of 50 changes counted once on each GPU: 20 first grants, 20 releases, 10 joins.
    assert set(view.gpu_versions.values()) == {50}


def test_c40_fifty_releases_of_one_lease_count_once(ledger: SqlLedger) -> None:
    """However many end a lease at once, one does, and the GPU's counter grows by one."""
    ledger.save_nodes([make_node(gpus=1)])
    lease = grant(ledger, "j00", place(0))
    done: list[bool] = []
    run_together(lambda _: done.append(ledger.release(lease.token, JobPhase.FAILED)))
    assert sorted(done) == [False] * (THREADS - 1) + [True]
    assert ledger.view().gpu_versions["GPU-n1-0"] == 2


def test_c40_one_planner_of_fifty_schedulers(postgres_engine: Engine) -> None:
    """Fifty schedulers that ask for an expired planner lock at once: one holds it."""
    database = database_on(postgres_engine)
    lock = SqlPlannerLock(database)
    assert lock.acquire("dead", 0.001)
    winners: list[int] = []

    def race(index: int) -> None:
        if SqlPlannerLock(database).acquire(f"scheduler-{index}", 60):
            winners.append(index)

    run_together(race)
    assert len(winners) == 1


def test_of_those_who_book_a_gpu_at_one_time_one_has_it(postgres_engine: Engine) -> None:
    """Of fifty bookings of one GPU for one hour exactly one is stored; the others learn by whom."""
    database = database_on(postgres_engine)
    SqlLedger(database).save_nodes([make_node(gpus=1)])
    bookings = SqlBookings(database)
    made: list[str] = []

    def race(index: int) -> None:
        try:
            found = bookings.book(
                WantedBooking("n1", (), None, SqlLedger(database).view().now_s + 3600, f"booker-{index}")
            )
        except BookingOverlapError:
            return
        made.append(found.name)

    run_together(race)
    assert [each.name for each in bookings.present()] == made
    assert len(made) == 1
