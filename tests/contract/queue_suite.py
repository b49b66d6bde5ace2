"""The contract of the ledger port: waiting jobs and their progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import Ledger
from tests.contract.ledger_fixtures import OWNER, LedgerFixtures
from tests.contract.parts import START_S, grant, lease_of, make_job, place, record_of


class QueueContract(LedgerFixtures):
    """What holds for waiting jobs and progress in every :class:`Ledger`."""

    def test_adding_a_job_twice_keeps_one(self, ledger: Ledger) -> None:
        """Adding is idempotent: one job, its first queue time."""
        ledger.add_waiting(make_job(queued_s=START_S), OWNER)
        ledger.add_waiting(make_job(queued_s=START_S + 60), OWNER)
        (record,) = ledger.view().jobs
        assert record.job.queued_s == START_S

    def test_adding_again_takes_the_new_request_and_owner(self, ledger: Ledger) -> None:
        """What Airflow says anew counts: priority, pool, bundle, request, and who holds the workload."""
        ledger.add_waiting(make_job(), "executor-1")
        anew = replace(make_job(family="other"), priority=9, pool="team", bundle="reds")
        ledger.add_waiting(anew, "executor-2")
        record = record_of(ledger, "j1")
        assert record is not None
        assert record.job == anew
        assert record.owner == "executor-2"

    def test_a_yielded_job_waits_again_with_its_progress(self, filled: Ledger) -> None:
        """A job that comes back keeps progress and first queue time."""
        lease = grant(filled, "j1", place(0))
        filled.set_running(lease.token, "process")
        progress = Progress(3, 10, 30.0, can_yield=True, solo_unit_s=9.5, solo_units=2, solo_spread_s=0.5)
        filled.save_progress("j1", progress, None)
        filled.release(lease.token, JobPhase.YIELDED)
        record = record_of(filled, "j1")
        assert record is not None
        assert record.phase is JobPhase.YIELDED
        filled.add_waiting(make_job("j1", family="family-j1", queued_s=START_S + 99), "executor-2")
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.owner, record.process) == (JobPhase.WAITING, "executor-2", None)
        assert (record.job.progress, record.job.queued_s) == (progress, START_S)

    def test_an_ended_job_may_wait_again(self, filled: Ledger) -> None:
        """A final phase is left when Airflow queues the very same try again."""
        lease = grant(filled, "j1", place(0))
        filled.set_running(lease.token, "process")
        filled.release(lease.token, JobPhase.FINISHED)
        filled.add_waiting(make_job("j1"), OWNER)
        record = record_of(filled, "j1")
        assert record is not None
        assert record.phase is JobPhase.WAITING
        assert grant(filled, "j1", place(0)).token > lease.token

    def test_adding_a_leased_job_leaves_its_lease(self, filled: Ledger) -> None:
        """A job that holds GPUs cannot be made to wait by handing it over again."""
        lease = grant(filled, "j1", place(0))
        filled.add_waiting(make_job("j1"), OWNER)
        record = record_of(filled, "j1")
        assert record is not None
        assert record.phase is JobPhase.LEASED
        assert lease_of(filled, "j1") == lease

    @pytest.mark.parametrize("phase", [JobPhase.YIELDED, JobPhase.FINISHED, JobPhase.REMOVED])
    def test_a_job_handed_over_while_it_runs_waits_after_the_release(
        self, filled: Ledger, phase: JobPhase
    ) -> None:
        """The new workload is not lost with the old process, and belongs to the executor that holds it."""
        lease = grant(filled, "j1", place(0))
        filled.set_running(lease.token, "process")
        filled.add_waiting(replace(make_job("j1"), priority=9), "executor-2")
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.owner, record.job.priority) == (JobPhase.RUNNING, OWNER, 0)
        filled.release(lease.token, phase)
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.owner) == (JobPhase.WAITING, "executor-2")
        again = grant(filled, "j1", place(0))
        filled.set_running(again.token, "process")
        filled.release(again.token, JobPhase.FINISHED)
        assert record_of(filled, "j1") is None

    def test_hold_and_release_of_a_waiting_job(self, filled: Ledger) -> None:
        """A waiting job can be held and let go; handing it over again does not lift the hold."""
        assert filled.set_hold("j1", True)
        filled.add_waiting(make_job("j1"), OWNER)
        record = record_of(filled, "j1")
        assert record is not None
        assert record.job.on_hold
        assert filled.set_hold("j1", False)
        record = record_of(filled, "j1")
        assert record is not None
        assert not record.job.on_hold

    def test_only_a_waiting_job_can_be_held(self, filled: Ledger) -> None:
        """A job that runs, and one that does not exist, cannot be held."""
        grant(filled, "j1", place(0))
        assert not filled.set_hold("j1", True)
        assert not filled.set_hold("nobody", True)

    @pytest.mark.parametrize("phase", [JobPhase.REJECTED, JobPhase.REMOVED])
    def test_finishing_a_waiting_job_is_idempotent(self, filled: Ledger, phase: JobPhase) -> None:
        """A job that waits can be ended once; then it is no longer shown."""
        assert filled.finish_waiting("j1", phase)
        assert not filled.finish_waiting("j1", phase)
        assert record_of(filled, "j1") is None

    @pytest.mark.parametrize("phase", [JobPhase.REMOVED, JobPhase.FAILED])
    def test_finishing_a_yielded_job(self, filled: Ledger, phase: JobPhase) -> None:
        """A job that yielded holds no lease and can be ended."""
        lease = grant(filled, "j1", place(0))
        filled.set_running(lease.token, "process")
        filled.release(lease.token, JobPhase.YIELDED)
        assert filled.finish_waiting("j1", phase)
        assert record_of(filled, "j1") is None

    def test_finishing_needs_a_job_without_lease(self, filled: Ledger) -> None:
        """A leased job and an unknown one are not ended this way."""
        lease = grant(filled, "j1", place(0))
        assert not filled.finish_waiting("j1", JobPhase.REMOVED)
        assert not filled.finish_waiting("nobody", JobPhase.REMOVED)
        assert lease_of(filled, "j1") == lease

    def test_progress_and_observation_come_back(self, filled: Ledger) -> None:
        """Every field of what was reported survives the store; none means nothing was seen."""
        lease = grant(filled, "j1", place(0))
        progress = Progress(
            4,
            90,
            1234.5,
            can_yield=True,
            solo_unit_s=300.25,
            solo_units=3,
            solo_spread_s=1.5,
            reported_s=1_000_123.25,
            lost_s=30.5,
        )
        seen = Observation(
            lease.set_version, units=3, unit_s=301.5, elapsed_s=1000.0, spread_s=2.25, limited=True
        )
        filled.save_progress("j1", progress, seen)
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.job.progress, record.observation) == (progress, seen)
        filled.save_progress("j1", progress, None)
        record = record_of(filled, "j1")
        assert record is not None
        assert record.observation is None

    def test_unknown_values_stay_unknown(self, filled: Ledger) -> None:
        """Nothing that is unknown comes back as zero."""
        filled.save_progress("j1", Progress(), Observation(1))
        record = record_of(filled, "j1")
        assert record is not None
        assert record.job.progress == Progress()
        assert record.observation == Observation(1)

    def test_progress_of_an_unknown_job_is_ignored(self, filled: Ledger) -> None:
        """A report that comes after the job's row was cleaned away changes nothing."""
        before = filled.view().jobs
        filled.save_progress("nobody", Progress(1), None)
        assert filled.view().jobs == before

    def test_a_new_lease_starts_without_an_observation(self, filled: Ledger) -> None:
        """What was seen under an earlier lease is not taken for the present set."""
        first = grant(filled, "j1", place(0))
        filled.save_progress("j1", Progress(1), Observation(first.set_version, 1, 5.0, 5.0))
        filled.release(first.token, JobPhase.WAITING)
        grant(filled, "j1", place(0))
        record = record_of(filled, "j1")
        assert record is not None
        assert record.observation is None
        assert record.job.progress.units_done == 1
