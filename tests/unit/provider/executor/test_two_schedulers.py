"""Two schedulers that are killed and started anew at random, on virtual time."""

from __future__ import annotations

import pytest

from tests.unit.provider.executor.schedulers_rig import GPUS, LIVING, Site

TASKS = 30
MOST_BEATS = 900


def _check_at_any_time(site: Site) -> None:
    """I1, I2: no GPU has two leases, no job two leases or two processes."""
    leases = site.parts.ledger.view().leases
    uuids = [uuid for lease in leases for uuid in lease.placement.gpu_uuids]
    assert len(uuids) == len(set(uuids)) <= GPUS
    assert len({lease.job_id for lease in leases}) == len(leases)
    assert site.processes.twice == []


def _settle(site: Site) -> None:
    """Let schedulers live, and tasks neither come nor end, until all have looked."""
    for _ in range(8):
        site.beat()
        site.tasks_go_on(ends=0.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_c22_executors_count_what_the_database_counts_after_random_deaths(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedulers die before any step of their heartbeat, also between the start of a process and the note of
    it. Whenever it is quiet for a moment, and at the end, the executors together count the tasks as running
    that Airflow's database has as running, each once, and so do ledger, leases and processes (I1 to I3).
    """
    site, quiet = Site(monkeypatch, seed), 0
    for number in range(TASKS):
        site.hand_over(f"job-{number}")
        for _ in range(3):
            site.beat(dies=0.02)
            site.tasks_go_on(ends=0.15)
            _check_at_any_time(site)
        if number % 6 == 5:
            _settle(site)
            counted = site.counts()
            assert len({frozenset(each) for each in counted.values()}) == 1, counted
            assert sum(len(scheduler.running) for scheduler in site.schedulers) == len(counted["Airflow"])
            quiet += bool(counted["Airflow"])
    for _ in range(MOST_BEATS):
        if not any(each.ti.state in LIVING for each in site.workloads.values()):
            break
        site.beat(dies=0.01)
        site.tasks_go_on(ends=0.3)
        _check_at_any_time(site)
    _settle(site)
    assert not any(site.counts().values()), site.counts()
    assert {each.ti.state for each in site.workloads.values()} == {"success", "failed"}
    assert (site.deaths >= 10, quiet >= 3, len(site.processes.orders) == TASKS) == (True, True, True)


def test_c21_a_task_that_died_with_its_scheduler_before_airflow_heard_of_it_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process was noted, Airflow has it as queued still: its lease falls, and it runs once more, also
    where no second scheduler tidies up behind the one that takes it over.
    """
    site = Site(monkeypatch, seed=1)
    site.schedulers.pop()
    site.hand_over("a")
    site.beat()
    [first] = site.parts.ledger.view().leases
    assert site.processes.living("a")
    site.processes.end("a", 1)
    site.replace_schedulers()
    _settle(site)
    [lease] = site.parts.ledger.view().leases
    assert lease.token > first.token
    assert site.counts() == {name: {"a"} for name in site.counts()}
    assert len(site.processes.orders) == 2
