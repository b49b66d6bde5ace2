"""Expected starts: from the timetable in planned order, with their error, unknown where nobody can tell."""

from __future__ import annotations

import pytest

from airflow_provider_eaco.core.model.decision import Reason
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart, Waiting, expected_starts
from tests.builders import NOW_S, make_progress, make_solo
from tests.unit.provider.whatif.rig import Scene

# Units of 100 s that vary by 10 s, as four samples say: a rest of four varies by sqrt(1/4 + 1/4) * 10 %.
A = make_solo("A", units_total=4, spread_s=10.0, samples=4)
B = make_solo("B", units_total=1)
SJF = PoolSettings(policy="exclusive", ordering="sjf")
HORIZON = PoolSettings(policy="exclusive", ordering="horizon")


def starts(scene: Scene, *order: str, reason: Reason = Reason.WAITING_FOR_GPU) -> dict[str, ExpectedStart]:
    present = scene.present()
    jobs = {record.job.job_id: record.job for record in present.view.jobs}
    queue = [Waiting(jobs[job_id], "eaco", {reason}) for job_id in order]
    return expected_starts(present.view, present.pools, present.profiles, {}, queue)


def test_starts_follow_each_other_in_planned_order() -> None:
    """The first starts when the resident is through, the second after the first, each with its error."""
    scene = Scene(profiles=[A])
    scene.run("resident", progress=make_progress(0, 4))
    scene.wait("one")
    scene.wait("two")
    found = starts(scene, "two", "one")
    assert found["two"].at_s == NOW_S + 400
    assert found["one"].at_s == NOW_S + 800
    deviation_s = 400 * 0.1 * 0.5**0.5
    assert found["two"].earliest_s == pytest.approx(NOW_S + 400 - deviation_s)
    assert found["two"].latest_s == pytest.approx(NOW_S + 400 + deviation_s)
    assert found["one"].latest_s == pytest.approx(NOW_S + 800 + 2 * deviation_s)


def test_an_unknown_spread_leaves_the_error_unknown() -> None:
    """Of a family whose spread nobody measured the duration counts and the error is unknown."""
    scene = Scene(profiles=[B])
    scene.run("resident", "B", progress=make_progress(0, 1))
    scene.wait("next", "B")
    assert starts(scene, "next") == {"next": ExpectedStart(NOW_S + 100, None, None)}


def test_an_unknown_duration_leaves_the_start_unknown() -> None:
    """Who waits for the GPUs of somebody of unknown duration has no expected start; others have theirs."""
    scene = Scene(gpus=2, profiles=[A])
    scene.run("stranger", "never seen", gpu=0)
    scene.run("known", gpu=1, progress=make_progress(0, 4))
    scene.wait("first", "never seen")
    scene.wait("second")
    assert {name: found.at_s for name, found in starts(scene, "first", "second").items()} == {
        "first": NOW_S + 400
    }


@pytest.mark.parametrize("reason", [Reason.ON_HOLD, Reason.OVER_QUOTA, Reason.WAITING_FOR_PARTNER])
def test_what_no_clock_ends_has_no_expected_start(reason: Reason) -> None:
    """A hold, a quota or a partner that is missing ends at an instant that nobody knows."""
    scene = Scene(profiles=[A])
    scene.run("resident", progress=make_progress(0, 4))
    scene.wait("next")
    assert starts(scene, "next", reason=reason) == {}


def test_who_could_start_now_waits_for_something_else() -> None:
    """A job that waits beside free GPUs has no expected start: nobody knows what it waits for."""
    scene = Scene(profiles=[A])
    scene.wait("next")
    assert starts(scene, "next") == {}


@pytest.mark.parametrize(("settings", "at_s"), [(SJF, 300), (HORIZON, 100)])
def test_the_head_of_the_line_is_not_overtaken_unless_the_order_plans(
    settings: PoolSettings, at_s: float
) -> None:
    """Behind a job of two GPUs a short one waits under a rank, and goes before it under a plan."""
    scene = Scene(gpus=2, settings=settings, profiles=[A, B, make_solo("B", gpu_count=2, units_total=1)])
    scene.run("long", gpu=0, progress=make_progress(2, 4))
    scene.run("short", "B", gpu=1, progress=make_progress(0, 1))
    scene.wait("wide", "B", gpus=2)
    scene.wait("narrow", "B")
    found = starts(scene, "wide", "narrow")
    assert found["wide"].at_s == NOW_S + 200
    assert found["narrow"].at_s == NOW_S + at_s
