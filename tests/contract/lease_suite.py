"""The contract of the ledger port: running jobs, trials, yields and releases."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.lifecycle import FINAL_PHASES, JobPhase
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import Ledger
from tests.contract.ledger_fixtures import LedgerFixtures
from tests.contract.parts import START_S, ManualClock, grant, lease_of, place, record_of


class LeaseContract(LedgerFixtures):
    """What holds for a granted lease in every :class:`Ledger`."""

    def test_running_records_the_process(self, filled: Ledger, clock: ManualClock) -> None:
        """A leased job runs once its process is recorded; a later record of it keeps the start."""
        lease = grant(filled, "j1", place(0))
        clock.advance(2)
        assert filled.set_running(lease.token, "17:99:host")
        clock.advance(2)
        assert filled.set_running(lease.token, "17:99:host")
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.process) == (JobPhase.RUNNING, "17:99:host")
        assert record.started_s == START_S + 2

    def test_an_old_token_cannot_run(self, filled: Ledger) -> None:
        """The process of a lease that ended is refused, also when the job holds a newer one."""
        old = grant(filled, "j1", place(0))
        filled.release(old.token, JobPhase.WAITING)
        grant(filled, "j1", place(0))
        assert not filled.set_running(old.token, "late")
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.process) == (JobPhase.LEASED, None)

    @pytest.mark.parametrize("state", [LeaseState.CONFIRMED, LeaseState.UNCONFIRMED])
    def test_a_trial_ends_for_all_members(self, filled: Ledger, state: LeaseState) -> None:
        """The state of a set is the state of all its leases."""
        grant(filled, "j1", place(0))
        version = grant(filled, "j2", place(0), LeaseState.TRIAL).set_version
        assert filled.set_lease_state(place(0), version, state) == 2
        assert {lease.state for lease in filled.view().leases} == {state}

    def test_a_changed_set_is_not_confirmed(self, filled: Ledger) -> None:
        """What was decided about an older version of the set does not count."""
        grant(filled, "j1", place(0))
        version = grant(filled, "j2", place(0), LeaseState.TRIAL).set_version
        grant(filled, "j3", place(0), LeaseState.TRIAL)
        assert filled.set_lease_state(place(0), version, LeaseState.CONFIRMED) == 0
        assert filled.set_lease_state(place(1), version, LeaseState.CONFIRMED) == 0
        assert {lease.state for lease in filled.view().leases} == {LeaseState.TRIAL}

    def test_asking_to_yield_marks_one_lease(self, filled: Ledger) -> None:
        """Only the job that was asked is yielding, and a later state of the set passes it by."""
        grant(filled, "j1", place(0))
        version = grant(filled, "j2", place(0), LeaseState.TRIAL).set_version
        assert filled.ask_to_yield("j2", version)
        assert filled.set_lease_state(place(0), version, LeaseState.CONFIRMED) == 1
        states = {lease.job_id: lease.state for lease in filled.view().leases}
        assert states == {"j1": LeaseState.CONFIRMED, "j2": LeaseState.YIELDING}

    def test_asking_a_changed_set_or_nobody_does_nothing(self, filled: Ledger) -> None:
        """A yield decided about an older set, or about a job without lease, does not happen."""
        grant(filled, "j1", place(0))
        version = grant(filled, "j2", place(0), LeaseState.TRIAL).set_version
        grant(filled, "j3", place(0), LeaseState.TRIAL)
        assert not filled.ask_to_yield("j2", version)
        assert not filled.ask_to_yield("j4", version)
        assert {lease.state for lease in filled.view().leases} == {LeaseState.TRIAL}

    def test_a_yielding_member_stays_asked_when_somebody_joins(self, filled: Ledger) -> None:
        """A request to yield is not lost when the set changes and others remain."""
        grant(filled, "j1", place(0))
        version = grant(filled, "j2", place(0), LeaseState.TRIAL).set_version
        filled.ask_to_yield("j2", version)
        third = grant(filled, "j3", place(0), LeaseState.TRIAL)
        lease = lease_of(filled, "j2")
        assert lease is not None
        assert (lease.state, lease.set_version) == (LeaseState.YIELDING, third.set_version)

    @pytest.mark.parametrize(
        "phase", [JobPhase.FINISHED, JobPhase.FAILED, JobPhase.REMOVED, JobPhase.YIELDED]
    )
    def test_releasing_is_idempotent(self, filled: Ledger, phase: JobPhase) -> None:
        """The lease ends and the job is where it was sent; a second release changes nothing."""
        lease = grant(filled, "j1", place(0))
        filled.set_running(lease.token, "process")
        assert filled.release(lease.token, phase)
        after = filled.view()
        assert not filled.release(lease.token, phase)
        assert not filled.release(lease.token, JobPhase.WAITING)
        again = filled.view()
        assert (again.leases, again.jobs, dict(again.gpu_versions)) == (
            after.leases,
            after.jobs,
            dict(after.gpu_versions),
        )
        record = record_of(filled, "j1")
        assert record is None if phase in FINAL_PHASES else record is not None
        assert after.leases == ()

    def test_a_late_release_does_not_touch_a_newer_lease(self, filled: Ledger) -> None:
        """Release is by token: the end of an old lease leaves the job's next one alone."""
        old = grant(filled, "j1", place(0))
        filled.release(old.token, JobPhase.WAITING)
        new = grant(filled, "j1", place(0))
        assert not filled.release(old.token, JobPhase.FAILED)
        assert lease_of(filled, "j1") == new

    def test_an_illegal_end_changes_nothing(self, filled: Ledger) -> None:
        """A job whose process was never recorded cannot have yielded; the lease stays."""
        lease = grant(filled, "j1", place(0))
        with pytest.raises(ValueError, match="phase"):
            filled.release(lease.token, JobPhase.YIELDED)
        assert lease_of(filled, "j1") == lease

    def test_who_stays_alone_is_exclusive(self, filled: Ledger) -> None:
        """The last member of a set is alone under a new version, and no longer asked to yield."""
        grant(filled, "j1", place(0))
        second = grant(filled, "j2", place(0), LeaseState.TRIAL)
        filled.ask_to_yield("j1", second.set_version)
        filled.release(second.token, JobPhase.FAILED)
        (lease,) = filled.view().leases
        assert (lease.job_id, lease.state) == ("j1", LeaseState.EXCLUSIVE)
        assert lease.set_version > second.set_version

    def test_those_who_stay_together_are_in_trial(self, filled: Ledger, clock: ManualClock) -> None:
        """When one of three leaves, the others are in trial under one new version; a yield asked stays."""
        first = grant(filled, "j1", place(0))
        grant(filled, "j2", place(0), LeaseState.TRIAL)
        third = grant(filled, "j3", place(0), LeaseState.TRIAL)
        filled.set_lease_state(place(0), third.set_version, LeaseState.CONFIRMED)
        filled.ask_to_yield("j3", third.set_version)
        clock.advance(11)
        filled.release(first.token, JobPhase.FAILED)
        leases = {lease.job_id: lease for lease in filled.view().leases}
        assert (leases["j2"].state, leases["j3"].state) == (LeaseState.TRIAL, LeaseState.YIELDING)
        assert leases["j2"].set_version == leases["j3"].set_version > third.set_version
        assert leases["j2"].trial_since_s == START_S + 11
