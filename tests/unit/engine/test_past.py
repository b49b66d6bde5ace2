"""What has ended counts: in the order of teams, in quotas, and for who was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.pool import FairShare, PoolSettings, TeamSource
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import PastLease
from airflow_provider_eaco.engine.past import SETTLE_S, PastUse
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from tests.builders import NOW_S, make_job
from tests.contract.parts import ManualClock
from tests.unit.engine.rig import Rig

HOUR_S = 3600.0


def pool(*rules: str, **fair: object) -> PoolState:
    """A pool of single jobs under these rules, with an Airflow pool for each team."""
    settings = PoolSettings(policy="exclusive", rules=rules, fair_share=FairShare(**fair))  # type: ignore[arg-type]  # by name
    return PoolState(settings, {name: AirflowPool(None) for name in ("eaco", "red", "blue")})


def job_of(team: str, job_id: str, **changes: object) -> Job:
    """A job whose Airflow pool, bundle and DAG all carry the team's name."""
    job = make_job(job_id, "A", gpus=1, dag_id=team, **changes)
    return replace(job, pool=team, bundle=team)


class Day:
    """One GPU; jobs run on it one after another."""

    def __init__(self, *pools: PoolState) -> None:
        self.rig = Rig(pools=list(pools))

    def runs(self, job: Job, seconds: float) -> None:
        """Let the job run alone and end."""
        self.rig.add(job)
        self.rig.loop.run_once()
        self.rig.start(job.job_id)
        self.rig.clock.advance(seconds)
        self.rig.end(job.job_id)

    def reason_of(self, job_id: str) -> str | None:
        """What holds the job now, ``None`` once it holds GPUs."""
        self.rig.loop.run_once()
        if self.rig.lease(job_id) is not None:
            return None
        rows = [row for row in self.rig.log.decisions if job_id in row.decision.job_ids]
        reason = rows[-1].decision.decision.reason
        return None if reason is None else reason.code


@pytest.mark.parametrize("by", list(TeamSource))
def test_the_team_that_has_had_less_comes_first_although_nobody_runs(by: TeamSource) -> None:
    """Who has used the GPU for an hour is second to the team that has not, whoever came first."""
    for spent, first in (("red", "blue-1"), ("blue", "red-1")):
        day = Day(pool("fair_share", by=by))
        day.runs(job_of(spent, "before"), HOUR_S)
        day.rig.add(job_of("red", "red-1", run_after_s=NOW_S - 9), job_of("blue", "blue-1"))
        day.rig.loop.run_once()
        assert [lease.job_id for lease in day.rig.ledger.view().leases] == [first]


def test_a_team_beyond_its_quota_waits_for_what_has_ended_and_starts_when_that_has_faded() -> None:
    """Half an hour is left of a quota of one hour; after another one it waits, and half a life later runs."""
    day = Day(pool("fair_share", quotas_gpu_h=(("red", 1.0),), borrowing=False, half_life_s=10 * HOUR_S))
    day.runs(job_of("red", "red-0"), 0.5 * HOUR_S)
    day.runs(job_of("red", "red-1"), 0.75 * HOUR_S)
    day.rig.add(job_of("red", "red-2"))
    assert day.reason_of("red-2") == "over_quota"
    day.rig.clock.advance(5 * HOUR_S)
    assert day.reason_of("red-2") is None


def test_who_was_passed_over_by_a_job_that_has_ended_gets_a_reservation() -> None:
    """The younger job has come and gone between two cycles of a new planner; the older one is promised."""
    day = Day(pool("reserve"))
    day.runs(job_of("eaco", "younger", queued_s=NOW_S), 60.0)
    wide = replace(job_of("eaco", "wide", queued_s=NOW_S - 5).request, gpus=2)
    day.rig.add(replace(job_of("eaco", "wide", queued_s=NOW_S - 5), request=wide))
    states = PastUse(day.rig.ledger).told(day.rig.pools, day.rig.ledger.view())
    assert [state.newest_started_queued_s for state in states] == [NOW_S]


def test_a_lease_counts_in_every_pool_that_may_use_its_node() -> None:
    """Pools that share a node see the same use of it, a pool with other nodes none."""
    own = pool("fair_share")
    elsewhere = replace(own, settings=replace(own.settings, name="elsewhere", nodes=("m*",)))
    day = Day(own, replace(own, settings=replace(own.settings, name="beside")), elsewhere)
    day.runs(job_of("red", "red-0"), 60.0)
    states = PastUse(day.rig.ledger).told(day.rig.pools, day.rig.ledger.view())
    assert [set(state.past_gpu_s) for state in states] == [{"red"}, {"red"}, set()]


class CountingLedger(MemoryLedger):
    """Counts the rows that were read of the past."""

    rows = 0

    def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        found = super().past_leases(after_s, until_s)
        self.rows += len(found)
        return found


def test_the_past_is_read_once_and_sums_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two hundred leases the rows read are a few times theirs, and equal what a new process reads."""
    monkeypatch.setattr("tests.unit.engine.rig.MemoryLedger", CountingLedger)
    day = Day(pool("fair_share", half_life_s=HOUR_S))
    ledger = day.rig.ledger
    assert isinstance(ledger, CountingLedger)
    kept = PastUse(ledger)
    for number in range(200):
        day.runs(job_of(("red", "blue")[number % 2], f"job-{number}"), 20.0)
        (state,) = kept.told(day.rig.pools, ledger.view())
    # A lease is read in each cycle until it has settled, which takes two to three times the settling time.
    assert ledger.rows <= 2 * 200 * (3 * SETTLE_S / 20.0 + 1)
    (fresh,) = PastUse(ledger).told(day.rig.pools, ledger.view())
    assert fresh.past_gpu_s == pytest.approx(state.past_gpu_s, rel=1e-9)
    assert fresh.newest_started_queued_s == state.newest_started_queued_s


def test_rules_that_do_not_ask_read_nothing() -> None:
    """Without a rule that needs the past the ledger is not asked for it."""

    class Silent(MemoryLedger):
        def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
            raise AssertionError("nobody needs the past")

    ledger = Silent(ManualClock(NOW_S))
    for rules in ((), ("ageing",), ("no-such-rule",)):
        states = [pool(*rules)]
        assert PastUse(ledger).told(states, ledger.view()) == tuple(states)
