"""What a policy tells nodes and GPUs: through the cycle and the loop, and that limits teach nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.instruction import Launch, SetPowerLimit, SleepNode, WakeNode
from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import PowerLevel
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.base import Lever, Steering, levers_of
from airflow_provider_eaco.core.policy.eaco import EacoPolicy
from airflow_provider_eaco.core.policy.registry import POLICIES, make_ordering, make_policy
from airflow_provider_eaco.engine.profiling import EndedRun, learn_run
from airflow_provider_eaco.engine.progress import Report, UnitTime, ingest
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from tests.builders import NOW_S, make_book, make_job, make_node, make_snapshot, make_solo
from tests.unit.engine.rig import Rig, unlimited


class Steers(EacoPolicy):
    """Limits every set, puts the empty nodes to sleep, and looks again after a minute."""

    levers = frozenset({Lever.NODE_SLEEP, Lever.POWER_LIMITS})
    seen: ClusterSnapshot | None = None

    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        type(self).seen = snapshot
        held = [held for state in snapshot.nodes.values() for held in state.sets]
        free = [name for name, state in snapshot.nodes.items() if not state.sets]
        limits = tuple(SetPowerLimit(one.placement, 150.0) for one in held)
        return Steering((*limits, *map(SleepNode, free), WakeNode("n9")), snapshot.now_s + 60.0)


def test_steering_comes_after_the_launches_and_knows_them() -> None:
    """The policy is asked at the end of its cycle: it sees the launches, and who still waits."""
    jobs = [make_job("runs", "A", gpus=8), make_job("waits", "A", gpus=9)]
    snapshot = make_snapshot(make_node("a"), make_node("b"), waiting=jobs)
    plan = run_cycle(Steers(PoolSettings()), make_ordering("fifo"), snapshot)
    launch, limit, sleep, wake = plan.instructions
    assert isinstance(launch, Launch)
    assert limit == SetPowerLimit(launch.placement, 150.0)
    assert isinstance(sleep, SleepNode)
    assert {launch.placement.node, sleep.node} == {"a", "b"}
    assert wake == WakeNode("n9")
    assert plan.look_again_s == NOW_S + 60.0
    assert Steers.seen is not None
    assert [job.job_id for job in Steers.seen.waiting] == ["waits"]
    assert Steers.seen.nodes[launch.placement.node].sets[0].residents[0].job.job_id == "runs"


def test_the_loop_hands_steering_on() -> None:
    """What nodes and GPUs are to be told is in the report, since they belong to somebody else."""
    rig = Rig(nodes=("n1", "n2"))
    rig.loop = rig.make_loop("planner-1", policy_of=Steers)
    rig.add(make_job("a", "A", gpus=1))
    report = rig.loop.run_once()
    placement = report.granted[0].placement
    assert report.steers == (SetPowerLimit(placement, 150.0), SleepNode("n2"), WakeNode("n9"))
    assert report.look_again_s == rig.clock.now_s() + 60.0
    assert rig.make_loop("planner-1").run_once().steers == ()


def test_an_observed_pool_is_not_steered() -> None:
    """In mode observe nothing is told to anybody."""
    rig = Rig(pools=unlimited(PoolSettings(mode=PoolMode.OBSERVE)))
    rig.loop = rig.make_loop("planner-1", policy_of=Steers)
    rig.add(make_job("a", "A", gpus=1))
    assert rig.loop.run_once().steers == ()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_with_levers_steers(name: str) -> None:
    """Who says that it moves jobs, nodes or power limits has a method for it, and the other way round."""
    policy = make_policy(PoolSettings(policy=name))
    moves = levers_of(policy) & {Lever.NODE_SLEEP, Lever.POWER_LIMITS, Lever.MOVES}
    assert bool(moves) == hasattr(policy, "steer")


def report_of(rig: Rig, job_id: str, *units: UnitTime) -> Report:
    return Report(job_id, rig.held(job_id).token, units[-1].index + 1, 10, can_yield=True, recent=units)


def test_a_limited_unit_is_no_time_alone_at_full_power() -> None:
    """Units under a power limit count for the run's time, but not as the family's time alone."""
    rig = Rig()
    rig.add(make_job("a", "A", gpus=1))
    rig.loop.run_once()
    rig.start("a")
    version = rig.held("a").set_version
    full = UnitTime(0, 100.0, version, version)
    limited = UnitTime(1, 130.0, version, version, limited=True)
    ingest(rig.ledger, rig.profiles, [report_of(rig, "a", full, limited)])
    record = rig.ledger.record_of("a")
    assert record is not None
    progress = record.job.progress
    assert (progress.run_s, progress.solo_unit_s, progress.solo_units) == (230.0, 100.0, 1)


@pytest.mark.parametrize("limited", [False, True])
def test_a_limited_trial_is_judged_and_teaches_nothing(limited: bool) -> None:
    """A trial under a power limit is confirmed by what it really took, and changes no profile."""
    rig = Rig()
    for job_id, family in (("a", "A"), ("b", "B")):
        rig.add(make_job(job_id, family, gpus=1))
        rig.loop.run_once()
        rig.start(job_id)
        if job_id == "a":
            rig.unit("a", 100.0)
    before = rig.profiles.book().coallocation
    for job_id in ("a", "b"):
        version = rig.held(job_id).set_version
        done = 1 if job_id == "a" else 0
        unit = UnitTime(done, 108.0, version, version, limited=limited)
        ingest(rig.ledger, rig.profiles, [report_of(rig, job_id, unit)])
    rig.loop.run_once()
    assert rig.held("a").state is rig.held("b").state is LeaseState.CONFIRMED
    after = rig.profiles.book().coallocation
    assert (after == before) == limited


def test_levels_survive_what_is_learnt() -> None:
    """Ratios under power limits stay with a profile whose own figures are measured anew."""
    levels = (PowerLevel(150.0, 1.2, 0.8),)
    store = MemoryProfileStore(make_book(replace(make_solo("A"), levels=levels)))
    progress = Progress(10, 10, 1000.0, can_yield=True, solo_unit_s=90.0, solo_units=10, solo_spread_s=2.0)
    run = EndedRun(make_job("j", "A", gpus=1, progress=progress), JobPhase.FINISHED, "T4", 1)
    learned = learn_run(store, run, NOW_S)
    assert learned is not None
    assert learned.unit_s == pytest.approx(1200 / 13)  # three units of 100 s were known
    assert learned.levels == levels
