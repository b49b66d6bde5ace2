"""The admission loop over stores in memory: trials, undo, conflicts, failures, modes, records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, Verdict
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import Gpu
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease, LeaseState
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, ClusterSnapshot, GpuSet, PoolState
from airflow_provider_eaco.core.policy.base import AdmissionPolicy, Review
from airflow_provider_eaco.core.policy.registry import make_policy
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.profiling import EndedRun, learn_run
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.builders import make_book, make_job, make_solo
from tests.unit.engine.rig import OWNER, Rig, unlimited


@pytest.fixture
def rig() -> Rig:
    return Rig()


def share_one_gpu(rig: Rig, first: str = "A", second: str = "B") -> None:
    """Let job a (of the first family) run alone for a unit, then job b join it as a trial."""
    rig.add(make_job("a", first, gpus=1))
    rig.loop.run_once()
    rig.start("a")
    rig.unit("a", 100.0)
    rig.add(make_job("b", second, gpus=1))
    rig.loop.run_once()
    rig.start("b")


# --- trials ------------------------------------------------------------------------------------------------


def test_a_lone_job_gets_its_gpu(rig: Rig) -> None:
    """A job on free GPUs holds an exclusive lease, granted to the executor that holds its workload."""
    rig.add(make_job("a", "A", gpus=1))
    report = rig.loop.run_once()
    assert report.planned
    assert [lease.job_id for lease in report.granted] == ["a"]
    assert (rig.held("a").state, rig.held("a").owner) == (LeaseState.EXCLUSIVE, OWNER)
    assert rig.story("a") == ["granted"]


def test_a_trial_that_holds_its_limits_is_confirmed(rig: Rig) -> None:
    """With one unit of every member and all limits held, the set is confirmed and remembered."""
    share_one_gpu(rig)
    assert rig.held("a").state is rig.held("b").state is LeaseState.TRIAL
    rig.unit("a", 104.0)
    assert rig.loop.run_once().confirmed == ()
    rig.unit("b", 106.0)
    report = rig.loop.run_once()
    assert report.confirmed == (rig.held("a").placement,)
    assert rig.held("a").state is rig.held("b").state is LeaseState.CONFIRMED
    assert rig.story("b") == ["trial", "confirmed"]
    learned = rig.profiles.book().coallocation[next(iter(rig.book.coallocation))]
    assert learned.slowdowns["B"] > 1.05
    assert rig.loop.run_once().confirmed == (), "a confirmed set is not confirmed again"


def test_c59_a_slow_trial_is_undone_and_not_tried_again() -> None:
    """The newest member is asked once to leave, waits with its progress, and is placed elsewhere."""
    rig = Rig(nodes=("n1",))
    share_one_gpu(rig)
    rig.unit("a", 160.0)
    rig.unit("b", 160.0)
    report = rig.loop.run_once()
    assert report.yielding == ("b",)
    assert rig.held("b").state is LeaseState.YIELDING
    assert rig.loop.run_once().yielding == (), "a member is asked once"

    (told,) = rig.unit("b", 160.0)
    assert told.yield_asked
    rig.end("b", JobPhase.YIELDED)
    rig.add(make_job("b", "B", gpus=1))
    assert rig.held("a").state is LeaseState.EXCLUSIVE
    for _ in range(5):
        rig.clock.advance(60)
        assert rig.loop.run_once().granted == ()
    assert rig.phase("b") is JobPhase.WAITING
    record = rig.ledger.record_of("b")
    assert record is not None
    assert record.job.progress.units_done == 2
    assert rig.story("b") == ["trial", "undone"]

    rig.ledger.save_nodes([replace(rig.ledger.view().nodes[0], name="n2", gpus=_other_gpus(rig))])
    (lease,) = rig.loop.run_once().granted
    assert (lease.job_id, lease.placement.node, lease.state) == ("b", "n2", LeaseState.EXCLUSIVE)


def _other_gpus(rig: Rig) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, uuid=f"other-{gpu.uuid}", node="n2") for gpu in rig.ledger.view().nodes[0].gpus)


def test_the_pair_is_remembered_as_bad(rig: Rig) -> None:
    """After an undo the set is believed to be as slow as it was seen, however often it did well before."""
    share_one_gpu(rig)
    rig.unit("a", 160.0)
    rig.unit("b", 180.0)
    rig.loop.run_once()
    (learned,) = rig.profiles.book().coallocation.values()
    assert learned.undone == 1
    assert learned.slowdowns == pytest.approx({"A": 1.6, "B": 1.8})


def test_a_trial_without_reports_ends_unconfirmed(rig: Rig) -> None:
    """After the pool's trial limit the set stays, takes nobody more and teaches nothing."""
    share_one_gpu(rig)
    before = rig.profiles.book().revision
    rig.clock.advance(5 * 3600)
    report = rig.loop.run_once()
    assert report.unconfirmed == (rig.held("a").placement,)
    assert rig.held("a").state is LeaseState.UNCONFIRMED
    assert rig.profiles.book().revision == before


def test_two_jobs_of_one_plan_may_share_a_gpu() -> None:
    """A job may be planned on top of an earlier one of the same cycle; both are granted."""
    rig = Rig()
    rig.add(make_job("a", "A", gpus=1, run_after_s=1), make_job("b", "B", gpus=1, run_after_s=2))
    report = rig.loop.run_once()
    assert [lease.job_id for lease in report.granted] == ["a", "b"]
    assert report.conflicts == ()
    assert rig.held("a").state is rig.held("b").state is LeaseState.TRIAL
    assert rig.held("a").set_version == rig.held("b").set_version


# --- conflicts and locks -----------------------------------------------------------------------------------


class RacingLedger(MemoryLedger):
    """A ledger in which another planner takes the GPU of the first grant at the last moment."""

    raced = False

    def grant(self, launch: Launch, state: LeaseState, gpu_versions: Mapping[str, int], owner: str) -> Lease:
        if not self.raced:
            self.raced = True
            other = make_job("intruder", "A", gpus=1)
            self.add_waiting(other, "executor-2")
            super().grant(Launch(other, launch.placement, ()), state, self.view().gpu_versions, "executor-2")
        return super().grant(launch, state, gpu_versions, owner)


def test_a_conflict_leaves_the_job_waiting(rig: Rig) -> None:
    """A job whose GPU was taken meanwhile waits, is recorded as nothing, and is decided anew next time."""
    racing = RacingLedger(rig.clock)
    racing.save_nodes(rig.ledger.view().nodes)
    rig.ledger = racing
    rig.loop = rig.make_loop("planner-1")
    rig.add(make_job("b", "C", gpus=1))
    report = rig.loop.run_once()
    assert (report.conflicts, report.granted, report.changed) == (("b",), (), ())
    assert rig.phase("b") is JobPhase.WAITING
    report = rig.loop.run_once()
    assert [item.decision.verdict for item in report.changed] == [Verdict.HOLD]


def test_without_the_lock_nothing_is_planned(rig: Rig) -> None:
    """While another planner holds the lock a cycle does nothing; when that one has died, it goes on."""
    rig.add(make_job("a", "A", gpus=1))
    assert rig.planner.acquire("planner-2", 30)
    report = rig.loop.run_once()
    assert (report.planned, report.problem, report.granted) == (False, None, ())
    rig.clock.advance(31)
    assert rig.loop.run_once().granted != ()


def test_the_lock_is_given_up_after_each_cycle(rig: Rig) -> None:
    """The next scheduler need not wait for the lock to expire."""
    rig.loop.run_once()
    assert rig.make_loop("planner-2").run_once().planned


# --- failures ----------------------------------------------------------------------------------------------


class BrokenPolicy:
    """A policy of a user that raises."""

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        raise ZeroDivisionError("no luck today")

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        return None


def test_c67_an_exception_in_a_policy_holds_its_pool_only() -> None:
    """The pool's jobs wait and show the exception; its running jobs and the other pools go on."""
    rig = Rig(nodes=("n1", "n2"))
    rig.pools = unlimited(PoolSettings("good", nodes=("n1",)), PoolSettings("bad", nodes=("n2",)))
    rig.add(make_job("running", "A", gpus=1, pool="bad"))
    rig.loop.run_once()
    rig.start("running")
    broken = True

    def policy_of(settings: PoolSettings) -> AdmissionPolicy:
        return BrokenPolicy() if broken and settings.name == "bad" else make_policy(settings)

    rig.loop = rig.make_loop("planner-1", policy_of=policy_of)
    rig.add(make_job("x", "B", gpus=1, pool="bad"), make_job("y", "C", gpus=1, pool="good"))
    report = rig.loop.run_once()
    assert [lease.job_id for lease in report.granted] == ["y"]
    assert report.failures == {"bad": "ZeroDivisionError: no luck today"}
    (held,) = [item for item in report.changed if item.job_ids == ("x",)]
    assert held.decision.verdict is Verdict.HOLD
    assert held.decision.reason is Reason.MISCONFIGURED
    assert held.decision.findings[0].text == (
        "GPU pool bad cannot be planned with policy eaco and ordering fifo: ZeroDivisionError: no luck "
        "today; its tasks wait until that is corrected or [eaco] pools names others"
    )
    assert rig.phase("running") is JobPhase.RUNNING
    broken = False
    assert rig.loop.run_once().failures == {}


@pytest.mark.parametrize(
    "settings", [PoolSettings(policy="nonsense"), PoolSettings(ordering="nonsense")], ids=["policy", "order"]
)
def test_an_unknown_name_holds_the_pool(settings: PoolSettings) -> None:
    """A policy or ordering that does not exist is shown on every waiting job of the pool."""
    rig = Rig(pools=unlimited(settings))
    rig.add(make_job("a", "A", gpus=1))
    (item,) = rig.loop.run_once().changed
    assert "nonsense" in item.decision.findings[0].text
    assert rig.phase("a") is JobPhase.WAITING


class LostLedger(MemoryLedger):
    """A ledger whose database goes away for a while."""

    lost_at = ""

    def view(self) -> LedgerView:
        if self.lost_at == "view":
            raise StoreUnavailableError("connection refused")
        return super().view()

    def grant(self, launch: Launch, state: LeaseState, gpu_versions: Mapping[str, int], owner: str) -> Lease:
        if self.lost_at == launch.job.job_id:
            raise StoreUnavailableError("connection refused")
        return super().grant(launch, state, gpu_versions, owner)


def test_c67_a_lost_ledger_is_reported_and_recovers() -> None:
    """A cycle without the database says so and raises nothing; the next one plans as if nothing had been."""
    rig = Rig(gpus=2)
    lost = LostLedger(rig.clock)
    lost.save_nodes(rig.ledger.view().nodes)
    rig.ledger = lost
    rig.loop = rig.make_loop("planner-1")
    rig.add(make_job("a", "C", gpus=1, run_after_s=1), make_job("b", "C", gpus=1, run_after_s=2))
    lost.lost_at = "view"
    report = rig.loop.run_once()
    assert (report.planned, report.problem, report.granted) == (False, "connection refused", ())
    lost.lost_at = "b"
    report = rig.loop.run_once()
    assert report.problem == "connection refused"
    assert [lease.job_id for lease in report.granted] == ["a"], "what was done before is not lost"
    lost.lost_at = ""
    assert [lease.job_id for lease in rig.loop.run_once().granted] == ["b"]


# --- modes and pools ---------------------------------------------------------------------------------------


def test_observe_records_and_grants_nothing() -> None:
    """What would have been decided is recorded once; nobody is granted, rejected or asked."""
    rig = Rig(pools=unlimited(PoolSettings(mode=PoolMode.OBSERVE, reject_after_s=0.0)))
    rig.add(make_job("a", "A", gpus=1), make_job("wide", "A", gpus=16))
    report = rig.loop.run_once()
    assert {item.job_ids: item.decision.verdict for item in report.changed} == {
        ("a",): Verdict.ADMIT,
        ("wide",): Verdict.REJECT,
    }
    assert (report.granted, report.rejected) == ((), ())
    assert {rig.phase("a"), rig.phase("wide")} == {JobPhase.WAITING}
    assert rig.loop.run_once().changed == ()


def test_off_is_not_planned() -> None:
    """A pool that is off is left alone: nothing granted, nothing recorded."""
    rig = Rig(pools=unlimited(PoolSettings(mode=PoolMode.OFF)))
    rig.add(make_job("a", "A", gpus=1))
    report = rig.loop.run_once()
    assert (report.planned, report.granted, report.changed) == (True, (), ())
    assert rig.log.decisions == []


def test_exclusive_shares_nothing() -> None:
    """In mode exclusive a second job waits although the pair is known to share well."""
    rig = Rig(pools=unlimited(PoolSettings(mode=PoolMode.EXCLUSIVE)))
    rig.add(make_job("a", "A", gpus=1, run_after_s=1), make_job("b", "B", gpus=1, run_after_s=2))
    assert [lease.job_id for lease in rig.loop.run_once().granted] == ["a"]


def test_jobs_of_other_airflow_pools_go_to_the_first_pool() -> None:
    """A job reaches the GPU pool of its Airflow pool's name, and the first declared one from any other."""
    rig = Rig(nodes=("n1", "n2"))
    settings = (PoolSettings("first", nodes=("n1",)), PoolSettings("second", nodes=("n2",)))
    airflow_pools = {name: AirflowPool(None) for name in ("first", "second", "default_pool")}
    rig.pools = [PoolState(each, airflow_pools) for each in settings]
    rig.add(
        make_job("plain", "A", gpus=1, pool="default_pool"), make_job("routed", "A", gpus=1, pool="second")
    )
    rig.loop.run_once()
    assert (rig.held("plain").placement.node, rig.held("routed").placement.node) == ("n1", "n2")


def test_pools_that_share_a_node_do_not_collide() -> None:
    """The second pool is planned with what the first has just been granted."""
    rig = Rig(nodes=("n1",), pools=unlimited(PoolSettings("first"), PoolSettings("second")))
    rig.add(make_job("x", "C", gpus=1, pool="first"), make_job("y", "C", gpus=1, pool="second"))
    report = rig.loop.run_once()
    assert [lease.job_id for lease in report.granted] == ["x"]
    assert report.conflicts == ()


def test_c11_used_slots_count_leases_of_the_airflow_pool() -> None:
    """A pool shrunk below what runs starts nothing more, and goes on when there is room again."""
    rig = Rig(gpus=4)
    rig.pools = [PoolState(PoolSettings(), {"eaco": AirflowPool(1)})]
    rig.add(*(make_job(f"job-{index}", "C", gpus=1, run_after_s=index) for index in range(3)))
    assert len(rig.loop.run_once().granted) == 1
    report = rig.loop.run_once()
    assert report.granted == ()
    rig.pools = [PoolState(PoolSettings(), {"eaco": AirflowPool(3)})]
    assert len(rig.loop.run_once().granted) == 2


def test_a_job_that_can_never_run_is_rejected(rig: Rig) -> None:
    """A rejected job leaves the queue, and the report says why."""
    rig.pools = [PoolState(PoolSettings(), {"eaco": AirflowPool(1)})]
    rig.add(make_job("wide", "A", gpus=1, pool_slots=2))
    (rejection,) = rig.loop.run_once().rejected
    assert (rejection.job_id, rejection.decision.reason) == ("wide", Reason.EXCEEDS_POOL)
    assert rig.phase("wide") is JobPhase.REJECTED
    assert rig.story("wide") == ["rejected"]
    assert rig.loop.run_once().rejected == ()


# --- records -----------------------------------------------------------------------------------------------


def test_an_idle_queue_of_a_thousand_jobs_adds_no_rows(rig: Rig) -> None:
    """Repeated cycles over an unchanged queue store nothing and report no change."""
    rig.add(*(make_job(f"job-{index:04d}", "C", gpus=1, run_after_s=index) for index in range(1000)))
    rig.loop.run_once()
    rig.loop.run_once()
    rows, events = len(rig.log.decisions), len(rig.log.events)
    for _ in range(5):
        rig.clock.advance(5)
        assert rig.loop.run_once().changed == ()
    assert (len(rig.log.decisions), len(rig.log.events)) == (rows, events)
    assert rows <= 3


def test_c62_a_first_run_makes_sharing_possible_and_a_failed_one_does_not() -> None:
    """A family without a profile runs alone; only a complete run lets the next one share."""
    rig = Rig(book=make_book(make_solo("A")))
    for phase, known in ((JobPhase.FAILED, False), (JobPhase.FINISHED, True)):
        job_id = f"new-{phase}"
        rig.add(make_job(job_id, "new", gpus=1))
        rig.loop.run_once()
        rig.start(job_id)
        rig.unit(job_id, 50.0, total=1)
        record = rig.ledger.record_of(job_id)
        assert record is not None
        rig.end(job_id, phase)
        learn_run(rig.profiles, EndedRun(record.job, phase, "T4", 1), rig.clock.now_s())
        assert (rig.profiles.book().solo_of("new", "T4", 1) is not None) is known
