"""The contract of the ledger port: grants."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import Ledger
from tests.contract.ledger_fixtures import OWNER, LedgerFixtures
from tests.contract.parts import START_S, ManualClock, grant, lease_of, make_job, place, record_of


class GrantContract(LedgerFixtures):
    """What holds for grants in every :class:`Ledger`."""

    def test_a_grant_stores_a_lease(self, filled: Ledger, clock: ManualClock) -> None:
        """A grant gives the job its placement, from now on, to the owner that asked."""
        clock.advance(7)
        lease = grant(filled, "j1", place(0, 1), owner="executor-9")
        assert filled.view().leases == (lease,)
        assert (lease.job_id, lease.placement, lease.state) == ("j1", place(0, 1), LeaseState.EXCLUSIVE)
        assert (lease.granted_s, lease.owner) == (START_S + 7, "executor-9")
        record = record_of(filled, "j1")
        assert record is not None
        assert (record.phase, record.owner) == (JobPhase.LEASED, "executor-9")

    def test_a_grant_counts_its_gpus_by_one(self, filled: Ledger) -> None:
        """The counter of each granted GPU grows by one and no other."""
        before = filled.view().gpu_versions
        grant(filled, "j1", place(0, 2))
        after = filled.view().gpu_versions
        grown = {uuid for uuid in before if after[uuid] != before[uuid]}
        assert grown == {"GPU-n1-0", "GPU-n1-2"}
        assert all(after[uuid] == before[uuid] + 1 for uuid in grown)

    def test_two_grants_of_one_plan_on_the_same_gpus(self, filled: Ledger) -> None:
        """Who counts its own grants can place a second job beside the first without reading again."""
        view = filled.view()
        jobs = {record.job.job_id: record.job for record in view.jobs}
        filled.grant(Launch(jobs["j1"], place(0), ()), LeaseState.EXCLUSIVE, view.gpu_versions, OWNER)
        own = {**view.gpu_versions, "GPU-n1-0": view.gpu_versions["GPU-n1-0"] + 1}
        filled.grant(Launch(jobs["j2"], place(0), ("j1",)), LeaseState.TRIAL, own, OWNER)
        assert len(filled.view().leases) == 2

    def test_a_joined_set_is_in_trial_under_a_new_version(self, filled: Ledger, clock: ManualClock) -> None:
        """A newcomer moves all members to trial, to one higher version, and starts the trial's time."""
        first = grant(filled, "j1", place(0))
        clock.advance(5)
        second = grant(filled, "j2", place(0), LeaseState.TRIAL)
        joined = lease_of(filled, "j1")
        assert joined is not None
        assert joined.state is second.state is LeaseState.TRIAL
        assert joined.set_version == second.set_version > first.set_version
        assert joined.trial_since_s == second.trial_since_s == START_S + 5
        assert (joined.token, joined.granted_s) == (first.token, START_S)

    def test_joining_a_confirmed_set_starts_a_new_trial(self, filled: Ledger) -> None:
        """A confirmed set is in trial again when somebody joins."""
        grant(filled, "j1", place(0))
        second = grant(filled, "j2", place(0), LeaseState.TRIAL)
        filled.set_lease_state(place(0), second.set_version, LeaseState.CONFIRMED)
        grant(filled, "j3", place(0), LeaseState.TRIAL)
        assert {lease.state for lease in filled.view().leases} == {LeaseState.TRIAL}
        assert len({lease.set_version for lease in filled.view().leases}) == 1

    def test_sets_on_other_gpus_are_untouched(self, filled: Ledger) -> None:
        """A grant changes nothing on GPUs that it does not name."""
        other = grant(filled, "j1", place(1))
        grant(filled, "j2", place(0))
        assert lease_of(filled, "j1") == other

    def test_c40_a_stale_view_conflicts(self, filled: Ledger) -> None:
        """Of two grants made from the same view of one GPU, the second conflicts and changes nothing."""
        view = filled.view()
        jobs = {record.job.job_id: record.job for record in view.jobs}
        filled.grant(Launch(jobs["j1"], place(0), ()), LeaseState.EXCLUSIVE, view.gpu_versions, OWNER)
        before = filled.view()
        with pytest.raises(LeaseConflictError):
            filled.grant(Launch(jobs["j2"], place(0, 1), ()), LeaseState.EXCLUSIVE, view.gpu_versions, OWNER)
        after = filled.view()
        assert (after.leases, dict(after.gpu_versions)) == (before.leases, dict(before.gpu_versions))
        record = record_of(filled, "j2")
        assert record is not None
        assert record.phase is JobPhase.WAITING

    def test_a_release_makes_older_views_conflict(self, filled: Ledger) -> None:
        """Who saw a resident that has left since cannot join it."""
        lease = grant(filled, "j1", place(0))
        view = filled.view()
        filled.release(lease.token, JobPhase.WAITING)
        with pytest.raises(LeaseConflictError):
            filled.grant(
                Launch(make_job("j2"), place(0), ("j1",)), LeaseState.TRIAL, view.gpu_versions, OWNER
            )

    @pytest.mark.parametrize("seen", [{}, {"GPU-n1-0": 0}])
    def test_a_gpu_that_was_not_seen_conflicts(self, filled: Ledger, seen: dict[str, int]) -> None:
        """Every GPU of a placement needs a counter that was read."""
        with pytest.raises(LeaseConflictError):
            filled.grant(Launch(make_job("j1"), place(0, 1), ()), LeaseState.EXCLUSIVE, seen, OWNER)

    def test_an_unknown_gpu_conflicts(self, filled: Ledger) -> None:
        """A GPU that is gone cannot be granted."""
        with pytest.raises(LeaseConflictError):
            filled.grant(Launch(make_job("j1"), place(9), ()), LeaseState.EXCLUSIVE, {"GPU-n1-9": 0}, OWNER)

    def test_only_a_waiting_job_can_be_granted(self, filled: Ledger) -> None:
        """A job that holds a lease, one that ended, one that is on hold and an unknown one conflict."""
        grant(filled, "j1", place(0))
        filled.finish_waiting("j2", JobPhase.REMOVED)
        filled.set_hold("j3", True)
        for name in ("j1", "j2", "j3", "nobody"):
            versions = filled.view().gpu_versions
            with pytest.raises(LeaseConflictError):
                filled.grant(Launch(make_job(name), place(1), ()), LeaseState.EXCLUSIVE, versions, OWNER)
        assert len(filled.view().leases) == 1

    def test_a_set_version_never_comes_back(self, filled: Ledger) -> None:
        """Also after all have left, and after other sets on the same GPUs: a late report cannot match."""
        versions = []
        for name, gpus in (("j1", (0,)), ("j2", (0, 1)), ("j3", (1,)), ("j4", (0, 1))):
            lease = grant(filled, name, place(*gpus))
            versions.append(lease.set_version)
            filled.release(lease.token, JobPhase.WAITING)
        assert versions == sorted(set(versions))

    def test_tokens_only_grow(self, filled: Ledger) -> None:
        """A token is never used again, also after its lease has ended."""
        tokens = []
        for _ in range(3):
            lease = grant(filled, "j1", place(0))
            tokens.append(lease.token)
            filled.release(lease.token, JobPhase.WAITING)
        assert tokens == sorted(set(tokens))

    def test_c40_racing_grants_have_one_winner(self, filled: Ledger) -> None:
        """Many threads that want the same GPU from the same view: one is granted, all others conflict."""
        racers = [make_job(f"racer-{index}") for index in range(20)]
        for job in racers:
            filled.add_waiting(job, OWNER)
        view = filled.view()
        barrier = threading.Barrier(len(racers))
        granted: list[str] = []
        conflicts: list[str] = []

        def race(job: Job) -> None:
            barrier.wait(30)
            try:
                filled.grant(Launch(job, place(3), ()), LeaseState.EXCLUSIVE, view.gpu_versions, OWNER)
                granted.append(job.job_id)
            except LeaseConflictError:
                conflicts.append(job.job_id)

        threads = [threading.Thread(target=race, args=(job,)) for job in racers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(granted) == 1
        assert len(conflicts) == len(racers) - 1
        assert [lease.job_id for lease in filled.view().leases] == granted
