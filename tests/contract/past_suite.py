"""The contract of the ledger port: leases that have ended, and what is charged for them."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.ports import Ledger, PastLease
from tests.contract.ledger_fixtures import OWNER, LedgerFixtures
from tests.contract.parts import START_S, ManualClock, grant, lease_of, make_job, place


def past_of(ledger: Ledger, after_s: float = 0.0, until_s: float = START_S + 1e6) -> dict[int, PastLease]:
    return {lease.token: lease for lease in ledger.past_leases(after_s, until_s)}


class PastContract(LedgerFixtures):
    """What holds for ended leases in every :class:`Ledger`."""

    def test_an_ended_lease_tells_whose_it_was(self, filled: Ledger, clock: ManualClock) -> None:
        """Where, how long, how many GPUs, and its job's Airflow pool, bundle, DAG and first queue time."""
        job = make_job("mine", gpus=2, queued_s=START_S - 9)
        filled.add_waiting(replace(job, pool="team", bundle="reds"), OWNER)
        lease = grant(filled, "mine", place(0, 1))
        assert past_of(filled) == {}
        clock.advance(30)
        filled.release(lease.token, JobPhase.FAILED)
        assert past_of(filled) == {
            lease.token: PastLease(
                lease.token, "n1", 2, START_S, START_S + 30, 30.0, "team", "reds", "dag", START_S - 9
            )
        }

    def test_seconds_are_divided_among_those_who_held_the_gpus(
        self, filled: Ledger, clock: ManualClock
    ) -> None:
        """Alone a second counts whole, among three a third; what all are charged is the time that passed."""
        first = grant(filled, "j1", place(0, 1))
        clock.advance(10)
        second = grant(filled, "j2", place(0, 1), LeaseState.TRIAL)
        clock.advance(20)
        third = grant(filled, "j3", place(0, 1), LeaseState.TRIAL)
        clock.advance(30)
        filled.release(second.token, JobPhase.FAILED)
        staying = lease_of(filled, "j1")
        assert staying is not None
        assert (staying.charged_s, staying.charged_until_s) == (10.0 + 10.0 + 10.0, START_S + 60)
        clock.advance(40)
        filled.release(third.token, JobPhase.FAILED)
        clock.advance(50)
        filled.release(first.token, JobPhase.FAILED)
        charged = {token: lease.charged_s for token, lease in past_of(filled).items()}
        assert charged == {first.token: 100.0, second.token: 20.0, third.token: 30.0}
        assert sum(charged.values()) == 150.0

    def test_only_the_asked_time_is_told(self, filled: Ledger, clock: ManualClock) -> None:
        """The first instant is left out and the last one counts, so that windows join without a gap."""
        tokens = []
        for name in ("j1", "j2", "j3"):
            lease = grant(filled, name, place(0))
            clock.advance(10)
            filled.release(lease.token, JobPhase.FAILED)
            tokens.append(lease.token)
        assert list(past_of(filled, START_S, START_S + 10)) == tokens[:1]
        assert list(past_of(filled, START_S + 10, START_S + 20)) == tokens[1:2]
        assert list(past_of(filled, START_S + 30)) == []

    def test_every_lease_of_a_job_is_told(self, filled: Ledger, clock: ManualClock) -> None:
        """A job that gave its GPUs up and came back has had both."""
        for _ in range(2):
            lease = grant(filled, "j1", place(0))
            filled.set_running(lease.token, "process")
            clock.advance(5)
            filled.release(lease.token, JobPhase.YIELDED)
            filled.add_waiting(make_job("j1"), OWNER)
        assert [lease.charged_s for lease in past_of(filled).values()] == [5.0, 5.0]
