"""For whom free GPUs are left alone: who waits for a better partner, for how long, and who does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.instruction import Plan
from airflow_provider_eaco.core.model.job import Job, Share
from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.frontier import PARTNER_WITHIN_S, FrontierPolicy
from tests.builders import NOW_S, make_job, make_node, make_progress, make_snapshot
from tests.unit.core.conftest import run_checked
from tests.unit.core.plans import codes_of, launched, texts_of
from tests.unit.core.test_frontier import FRONTIER, LIMIT, LONG, PAIRS, running


def waiting(name: str, family: str, waited_s: float = 0.0, **changes: Any) -> Job:
    """A job that was queued so long ago."""
    progress = make_progress(0, LONG, unit_s=1404.0)
    fields = {"max_stretch": LIMIT, "progress": progress, "queued_s": NOW_S - waited_s, **changes}
    return make_job(name, family, **fields)


def pool(*jobs: Job, nodes: tuple[NodeState, ...] = ()) -> ClusterSnapshot:
    """A node on which a job that bears nobody beside it runs, free ones, and jobs that wait."""
    busy = running("one", "J1", limit=1.01)
    free = nodes or (make_node("node-free"), make_node("node-more"))
    return replace(make_snapshot(busy, *free, waiting=jobs, settings=FRONTIER), prices=PAIRS)


def test_a_job_leaves_free_gpus_alone_until_it_has_waited_long_enough_for_a_partner() -> None:
    """Alone J4 loses 269 W; it is told until when it waits, and the cycle of that instant is asked for."""
    plan = run_checked(pool(waiting("new", "J4", 100.0)))
    assert codes_of(plan, "new") == ["waiting_for_partner"]
    until_s = NOW_S - 100.0 + PARTNER_WITHIN_S
    assert plan.look_again_s == until_s
    assert f"{until_s:.0f} s" in texts_of(plan, "new")
    patient = run_checked(pool(waiting("new", "J4", PARTNER_WITHIN_S)))
    assert launched(patient)["new"].placement.node == "node-free"
    assert patient.look_again_s is None


def test_partners_that_both_wait_start_together_at_once() -> None:
    """A second J4 completes the first, so there is nothing to wait for."""
    plan = run_checked(pool(waiting("a", "J4"), waiting("b", "J4")))
    started = launched(plan)
    assert started["a"].placement == started["b"].placement


def _unshared(*jobs: Job) -> ClusterSnapshot:
    """The same where nobody may share, so that nobody who waits completes a set."""
    seen = pool(*jobs)
    return replace(seen, pool=replace(seen.pool, settings=replace(FRONTIER, max_residents=1)))


def test_once_one_of_a_class_has_waited_long_enough_the_first_of_it_in_line_starts() -> None:
    """All of a class get one answer in a cycle, so nobody of it is held back by those who came later."""
    for oldest_s, starts in ((PARTNER_WITHIN_S - 1, False), (PARTNER_WITHIN_S, True)):
        seen = _unshared(waiting("first", "J4"), waiting("second", "J4", oldest_s, run_after_s=1.0))
        assert ("first" in launched(run_checked(seen))) == starts


def test_who_has_started_is_no_reason_for_those_of_its_class_to_start() -> None:
    """In the same cycle as the patient one the next in line is asked, and waits."""
    plan = run_checked(_unshared(waiting("a", "J4", PARTNER_WITHIN_S), waiting("b", "J4", run_after_s=1.0)))
    assert set(launched(plan)) == {"a"}


def test_a_used_policy_knows_who_waits_now() -> None:
    """What it has seen of another queue says nothing of this one."""
    used, new = FrontierPolicy(FRONTIER), waiting("new", "J4")
    before, after = _unshared(new), _unshared(new, waiting("old", "J4", PARTNER_WITHIN_S))
    assert used.decide(new, before).placement is None
    assert used.decide(new, after).placement is not None


def _nobody_else(seen: ClusterSnapshot) -> ClusterSnapshot:
    return replace(seen, nodes={name: state for name, state in seen.nodes.items() if state.free})


def _interrupted(seen: ClusterSnapshot) -> ClusterSnapshot:
    progress = make_progress(5, LONG, unit_s=1404.0, can_yield=True, reported_s=NOW_S)
    return replace(seen, waiting=(replace(seen.waiting[0], progress=progress),))


def _with_deadline(seen: ClusterSnapshot) -> ClusterSnapshot:
    return replace(seen, waiting=(waiting("new", "J4", deadline_s=1e6),))


def _unknown(seen: ClusterSnapshot) -> ClusterSnapshot:
    return replace(seen, waiting=(waiting("new", "stranger"),))


def _crowded(seen: ClusterSnapshot) -> ClusterSnapshot:
    """More wait than four on each of the two free nodes; of their families none makes a good set."""
    others = [waiting(f"other-{n}", "J1", max_stretch=1.0) for n in range(8)]
    return replace(seen, waiting=(*seen.waiting, *others))


@pytest.mark.parametrize("why", [_nobody_else, _interrupted, _with_deadline, _unknown, _crowded])
def test_who_has_nothing_to_wait_for_or_no_time_to_takes_free_gpus_at_once(
    why: Callable[[ClusterSnapshot], ClusterSnapshot],
) -> None:
    """Otherwise the same job would wait."""
    seen = pool(waiting("new", "J4"))
    assert not launched(run_checked(seen))
    assert "new" in launched(run_checked(why(seen)))


def test_gpus_that_somebody_leaves_alone_are_there_for_those_behind() -> None:
    """Nothing is kept for who waits for a partner and for nothing else."""
    plan = run_checked(pool(waiting("new", "J4"), waiting("then", "J2", run_after_s=1.0, share=Share.NEVER)))
    assert set(launched(plan)) == {"then"}
    assert codes_of(plan, "new") == ["waiting_for_partner"]


def test_on_simulated_nodes_it_waits_as_long_as_it_would_there() -> None:
    """On nodes a hundred times as fast as the clock a quarter of an hour is nine seconds."""

    def asked(waited_s: float) -> Plan:
        fast = tuple(make_node(name, time_scale=100.0) for name in ("node-free", "node-more"))
        return run_checked(pool(waiting("new", "J4", waited_s), nodes=fast))

    assert not launched(asked(PARTNER_WITHIN_S / 100 - 1))
    assert launched(asked(PARTNER_WITHIN_S / 100))


@pytest.mark.parametrize("limits", [PowerLimits.OFF, PowerLimits.APPLY])
def test_the_next_who_will_have_waited_long_enough_is_looked_at_then(limits: PowerLimits) -> None:
    """Those who have are looked at in every cycle; while no GPU is free nobody is for that."""
    policy = FrontierPolicy(replace(FRONTIER, power_limits=limits))
    seen = pool(waiting("old", "J4", 2 * PARTNER_WITHIN_S), waiting("new", "J4", 100.0))
    assert policy.steer(seen).look_again_s == NOW_S - 100.0 + PARTNER_WITHIN_S
    full = replace(seen, nodes={name: state for name, state in seen.nodes.items() if not state.free})
    assert policy.steer(full).look_again_s is None
