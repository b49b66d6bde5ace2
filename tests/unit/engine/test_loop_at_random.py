"""Long random days through the loop: the invariants of the cases hold after every cycle."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.profiling import ended_run, learn_run
from tests.builders import make_book, make_job, make_pair, make_solo
from tests.unit.engine.rig import Rig, unlimited

PROFILED = ("A", "B", "C", "D", "E", "F")
FAMILIES = (*PROFILED, "unknown")
MARGIN_MIB = PoolSettings().memory_margin_mib
MAX_RESIDENTS = PoolSettings().max_residents


def wide_book() -> ProfileBook:
    solos = [make_solo(family, gpu_count=count) for family in PROFILED for count in (1, 2)]
    pairs = [make_pair({"A": 1.04, "B": 1.06}, gpu_count=count) for count in (1, 2)]
    return make_book(*solos, *pairs)


def check(view: LedgerView) -> None:
    """I1 and I3: memory fits with its margin on every GPU, sets are identical, leases = held jobs."""
    records = {record.job.job_id: record for record in view.jobs}
    taken_mib: Counter[str] = Counter()
    residents: Counter[str] = Counter()
    places: dict[str, object] = {}
    for lease in view.leases:
        assert records[lease.job_id].phase in (JobPhase.LEASED, JobPhase.RUNNING)
        for uuid in lease.placement.gpu_uuids:
            assert places.setdefault(uuid, lease.placement) == lease.placement, "placements overlap in part"
            taken_mib[uuid] += records[lease.job_id].job.request.gpu_memory_mib or 0
            residents[uuid] += 1
    for gpu in (gpu for node in view.nodes for gpu in node.gpus):
        assert gpu.memory_usable_mib is not None
        if residents[gpu.uuid]:
            assert taken_mib[gpu.uuid] + MARGIN_MIB <= gpu.memory_usable_mib
        assert residents[gpu.uuid] <= MAX_RESIDENTS
    holders = {lease.job_id for lease in view.leases}
    assert holders == {
        job_id for job_id, r in records.items() if r.phase in (JobPhase.LEASED, JobPhase.RUNNING)
    }


class Day:
    """Jobs come, run, report, yield, fail and end at random over one rig."""

    def __init__(self, seed: int) -> None:
        self.rig = Rig(book=wide_book(), nodes=("n1", "n2"), gpus=4)
        self.chance = random.Random(seed)
        self.next_job = 0
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        self.rig.clock.advance(self.chance.uniform(1, 600))
        for record in self.rig.ledger.view().jobs:
            self.move(record.job.job_id, record.phase)
        if self.chance.random() < 0.5:
            self.arrive()
        report = self.rig.loop.run_once()
        assert (report.problem, report.failures, report.conflicts) == (None, {}, ())
        self.seen.update(
            granted=len(report.granted), confirmed=len(report.confirmed), yielding=len(report.yielding)
        )
        check(self.rig.ledger.view())

    def arrive(self) -> None:
        family = self.chance.choice(FAMILIES)
        gpus = self.chance.choice((1, 1, 2))
        memory_mib = self.chance.choice((3000, 7000, 12_000))
        job = make_job(
            f"job-{self.next_job}", family, gpus, run_after_s=self.next_job, gpu_memory_mib=memory_mib
        )
        self.next_job += 1
        self.rig.add(job)

    def move(self, job_id: str, phase: JobPhase) -> None:
        if phase is JobPhase.LEASED:
            self.rig.start(job_id)
        elif phase is JobPhase.YIELDED:
            record = self.rig.ledger.record_of(job_id)
            assert record is not None
            self.rig.add(record.job)
        elif phase is JobPhase.RUNNING and self.chance.random() < 0.7:
            self.report(job_id)

    def report(self, job_id: str) -> None:
        lease = self.rig.held(job_id)
        crowd = sum(each.placement == lease.placement for each in self.rig.ledger.view().leases)
        slowdown = 1.0 if crowd == 1 else 1.6 if self.chance.random() < 0.05 else 1.02
        self.rig.unit(job_id, 100.0 * slowdown, total=6)
        record = self.rig.ledger.record_of(job_id)
        assert record is not None
        if record.job.progress.units_done >= 6 or self.chance.random() < 0.02:
            done = record.job.progress.units_done >= 6
            phase = JobPhase.FINISHED if done else JobPhase.FAILED
            self.rig.end(job_id, phase)
            run = ended_run(record, lease, self.rig.ledger.view().nodes, phase)
            assert run is not None
            learn_run(self.rig.profiles, run, self.rig.clock.now_s())
        elif lease.state is LeaseState.YIELDING:
            self.rig.end(job_id, JobPhase.YIELDED)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_invariants_hold_through_random_days(seed: int) -> None:
    """I1 and I3 hold after each of many cycles with arrivals, trials, undos, failures and ends."""
    day = Day(seed)
    for _ in range(400):
        day.step()
    enough = {"granted": 100, "confirmed": 5, "yielding": 2}
    assert all(day.seen[what] >= least for what, least in enough.items()), f"too little happened: {day.seen}"


def test_no_job_is_moved_twice_within_a_trial_window() -> None:
    """C59: between two grants of one job it is asked to leave at most once."""
    day = Day(7)
    for _ in range(300):
        day.step()
    stories: dict[str, list[tuple[str, str]]] = {}
    for row in day.rig.log.events:
        stories.setdefault(row.job_id, []).append((row.event, row.text))
    for story in stories.values():
        asked = 0
        for event, text in story:
            if event in {"granted", "trial"} and "joined" not in text:
                asked = 0
            if event == "undone" and "was asked to leave" not in text:
                asked += 1
            assert asked <= 1, story


def test_c40_planners_in_threads_never_over_admit() -> None:
    """Many planners over one ledger, each believing that it alone plans: conflicts, but no double grant."""
    rig = Rig(gpus=4, pools=unlimited(PoolSettings()))
    rig.add(*(make_job(f"job-{index}", "C", gpus=1, run_after_s=index) for index in range(12)))

    class NoLock:
        """A planner lock that has expired for everybody."""

        def acquire(self, owner: str, ttl_s: float) -> bool:
            return True

        def release(self, owner: str) -> None:
            return None

    rig.planner = NoLock()  # type: ignore[assignment]  # the rig's lock is replaced on purpose
    loops = [rig.make_loop(f"planner-{index}") for index in range(8)]
    barrier = threading.Barrier(len(loops))
    granted: list[str] = []

    def plan(index: int) -> None:
        barrier.wait(30)
        granted.extend(lease.job_id for lease in loops[index].run_once().granted)

    threads = [threading.Thread(target=plan, args=(index,)) for index in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    view = rig.ledger.view()
    check(view)
    assert len(view.leases) == 4
    assert len({lease.placement for lease in view.leases}) == 4
    assert sorted(granted) == sorted(lease.job_id for lease in view.leases)
