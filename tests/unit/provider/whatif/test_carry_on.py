"""The present carried on: starts, ends and energy as the profiles have them, and nothing guessed."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.provider.whatif.carry_on import CarryOn
from airflow_provider_eaco.provider.whatif.present import Changes, changed
from tests.builders import NOW_S, make_pair, make_progress, make_solo
from tests.unit.provider.whatif.rig import Scene, by_id

TEN = make_solo("A", units_total=10)


def test_who_waits_starts_when_who_holds_the_gpu_is_through() -> None:
    """A resident with 3 of 10 units of 100 s done leaves after 700 s; then the next runs its 1000 s."""
    scene = Scene(profiles=[TEN])
    scene.run("resident", progress=make_progress(3, 10))
    scene.wait("next")
    outcome = scene.outcome()
    jobs = by_id(outcome)
    assert jobs["resident"].end_s == NOW_S + 700
    assert (jobs["next"].start_s, jobs["next"].end_s) == (NOW_S + 700, NOW_S + 1700)
    assert (outcome.waiting, outcome.started, outcome.mean_wait_s) == (1, 1, 700)
    assert outcome.end_s == NOW_S + 1700
    assert (outcome.energy_j, outcome.is_energy_partial) == (1700 * 40.0, False)


def test_what_is_unknown_is_said_and_never_guessed() -> None:
    """Nobody knows when a family without a profile is through, nor when those start that wait for its GPU."""
    scene = Scene(gpus=2, profiles=[TEN])
    scene.run("stranger", "never seen", gpu=0)
    scene.run("known", gpu=1)
    for name in ("first", "second"):
        scene.wait(name, "never seen" if name == "first" else "A", queued_s=NOW_S)
    outcome = scene.outcome()
    jobs = by_id(outcome)
    assert jobs["stranger"].end_s is None
    # The first of those that wait takes the GPU of the known one and never leaves.
    assert (jobs["first"].start_s, jobs["first"].end_s) == (NOW_S + 1000, None)
    assert jobs["second"].start_s is None
    assert "free" in jobs["second"].why or "GPU" in jobs["second"].why
    assert outcome.end_s is None
    assert outcome.is_energy_partial
    assert any("2 tasks will run is unknown" in sentence for sentence in outcome.assumptions)


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        (Changes(gpus=2), {"long": 0, "short": 200}),
        (Changes(order="sjf"), {"long": 1100, "short": 1000}),
        (Changes(gpus=3), {"long": 0, "short": 0}),
    ],
)
def test_another_number_of_gpus_and_another_order(changes: Changes, starts: dict[str, float]) -> None:
    """More GPUs start the queue at once; the shortest first turns two starts round."""
    scene = Scene(profiles=[TEN, make_solo("long", units_total=2), make_solo("short", units_total=1)])
    scene.run("resident", progress=make_progress(0, 10))
    scene.wait("long", "long", run_after_s=1.0)
    scene.wait("short", "short", run_after_s=2.0)
    outcome = CarryOn(changed(scene.present(), "eaco", changes)).run()
    assert {name: by_id(outcome)[name].start_s for name in starts} == {
        name: NOW_S + wait_s for name, wait_s in starts.items()
    }


def test_fewer_gpus_leave_who_runs_alone() -> None:
    """GPUs that go are free ones first; one that is held goes when its task is through."""
    scene = Scene(gpus=3, profiles=[TEN])
    scene.run("one", gpu=0)
    scene.run("two", gpu=1)
    scene.wait("next")
    jobs = by_id(CarryOn(changed(scene.present(), "eaco", Changes(gpus=1))).run())
    assert jobs["one"].end_s == jobs["two"].end_s == NOW_S + 1000
    assert jobs["next"].start_s == NOW_S + 1000
    assert jobs["next"].placement is not None
    assert jobs["next"].placement.gpu_uuids == ("n-gpu00",)


def test_a_sharing_policy_pairs_and_slows_them_down() -> None:
    """Under eaco a measured pair starts together and each takes its slowdown longer."""
    pair = make_pair({"A": 1.05, "B": 1.1})
    scene = Scene(profiles=[TEN, make_solo("B", units_total=10), pair])
    scene.wait("a", run_after_s=1.0, max_stretch=1.5)
    scene.wait("b", "B", run_after_s=2.0, max_stretch=1.5)
    alone = by_id(scene.outcome())
    assert (alone["a"].start_s, alone["b"].start_s) == (NOW_S, NOW_S + 1000)
    outcome = CarryOn(changed(scene.present(), "eaco", Changes(policy="eaco"))).run()
    jobs = by_id(outcome)
    assert (jobs["a"].start_s, jobs["b"].start_s) == (NOW_S, NOW_S)
    assert jobs["a"].end_s == pytest.approx(NOW_S + 1050)
    # Until then it has done 1050 / 1.1 s of its work; the rest runs alone.
    assert jobs["b"].end_s == pytest.approx(NOW_S + 1050 + 1000 - 1050 / 1.1)
    assert outcome.energy_j == pytest.approx(1050 * 50.0 + (1000 - 1050 / 1.1) * 40.0)


def test_a_trial_that_breaks_a_limit_is_undone() -> None:
    """A set that is seen to be too slow is undone: its newest leaves at a boundary and waits again."""
    pair = make_pair({"A": 1.3, "B": 1.3})
    profiles = [make_solo("A", units_total=10, checkpoints=True), make_solo("B", units_total=10), pair]
    scene = Scene(profiles=profiles, settings=PoolSettings(policy="eaco"))
    scene.run("old", "B", progress=make_progress(0, 10))
    scene.run("new", "A", progress=make_progress(1, 10, can_yield=True))
    jobs = by_id(scene.outcome())
    assert jobs["old"].end_s is not None
    assert jobs["new"].end_s is not None
    # Beside each other to the end the newer one would be through before the older one.
    assert jobs["new"].end_s > jobs["old"].end_s


def test_limits_of_every_job_can_be_otherwise() -> None:
    """With a stretch limit of 1 nobody bears anybody, whatever each of them asked for."""
    pair = make_pair({"A": 1.05, "B": 1.05})
    scene = Scene(profiles=[TEN, make_solo("B", units_total=10), pair], settings=PoolSettings(policy="eaco"))
    scene.wait("a", run_after_s=1.0, max_stretch=1.5)
    scene.wait("b", "B", run_after_s=2.0, max_stretch=1.5)
    starts = [
        by_id(CarryOn(changed(scene.present(), "eaco", Changes(max_stretch=limit))).run())["b"].start_s
        for limit in (1.5, 1.0)
    ]
    assert starts == [NOW_S, NOW_S + 1000]


def test_a_policy_that_fails_is_said() -> None:
    """Whoever cannot be planned waits, and the outcome says why."""
    scene = Scene(profiles=[TEN], settings=PoolSettings(policy="exclusive", rules=("nothing",)))
    scene.wait("next")
    outcome = scene.outcome()
    assert by_id(outcome)["next"].start_s is None
    assert any("cannot be planned" in sentence for sentence in outcome.assumptions)
