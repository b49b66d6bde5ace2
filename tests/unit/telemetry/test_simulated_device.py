"""The task's side of a simulated node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_eaco.telemetry.simulated import SimulatedDevice
from airflow_provider_eaco.telemetry.state_file import StateFile
from tests.contract.parts import ManualClock
from tests.unit.telemetry.rig import SideBySide, device, make_cluster, occupant

SLOW = occupant("a", 1, "slow")
FAST = occupant("b", 2, "fast")


def test_a_unit_takes_its_solo_time_alone(state: Path, clock: ManualClock) -> None:
    """Alone, a unit takes the solo unit time of the truth, and several units as many times that."""
    make_cluster(state, clock).occupy([SLOW])
    one = device(state, clock, SLOW, clock.advance)
    one.begin_unit()
    assert one.wait_unit() == pytest.approx(600)
    one.begin_unit(units=2.5)
    assert one.wait_unit() == pytest.approx(1500)


def test_computing_between_reports_costs_no_simulated_time(state: Path, clock: ManualClock) -> None:
    """The wall time of starting and of computing, within the hold limit, is no device time."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])
    clock.advance(20)
    one = device(state, clock, SLOW, clock.advance)
    for _ in range(3):
        one.begin_unit()
        clock.advance(7)
        assert one.wait_unit() == pytest.approx(600)
        clock.advance(3)
    account = cluster.account("a", 1)
    assert account is not None
    assert account.run_s == pytest.approx(1800)


def test_a_pair_goes_at_the_pace_of_the_set_and_the_survivor_alone(state: Path, clock: ManualClock) -> None:
    """Two residents are slowed down as the truth says; when one ends the other goes on at full speed."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW, FAST])
    times: dict[str, list[float | None]] = {"a": [], "b": []}

    def slow(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, SLOW, sleep)
        for _ in range(3):
            one.begin_unit()
            times["a"].append(one.wait_unit())

    def fast(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, FAST, sleep)
        one.begin_unit()
        times["b"].append(one.wait_unit())
        cluster.occupy([SLOW])

    SideBySide(clock).run(slow, fast)
    # The partner ended after 600 s: the first unit had then done 480 of its 600 s.
    assert times["b"] == [pytest.approx(600)]
    assert times["a"] == [pytest.approx(720), pytest.approx(600), pytest.approx(600)]


def test_a_task_that_never_reports_cannot_freeze_its_co_residents(state: Path, clock: ManualClock) -> None:
    """A resident holds the clock for at most the hold limit; then the others go on."""
    make_cluster(state, clock).occupy([SLOW, FAST])
    begun_s = clock.now_s()
    one = device(state, clock, SLOW, clock.advance)
    one.begin_unit()
    assert one.wait_unit() == pytest.approx(750)
    assert 30 <= clock.now_s() - begun_s <= 30 + 750 / 600 + 1.1


def test_a_job_declared_late_is_waited_for(state: Path, clock: ManualClock) -> None:
    """A task that is faster than the executor's declaration waits for it; the time is not its device time."""
    cluster = make_cluster(state, clock)
    cluster.occupy([])

    def task(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, SLOW, sleep)
        one.begin_unit()
        assert one.wait_unit() == pytest.approx(600)

    def executor(sleep: Callable[[float], None]) -> None:
        sleep(12)
        cluster.occupy([SLOW])

    SideBySide(clock).run(task, executor)


@pytest.mark.parametrize("loss", ["missing", "damaged", "unknown to the state"])
def test_a_task_goes_on_unmetered_where_nobody_knows_it(state: Path, clock: ManualClock, loss: str) -> None:
    """A job that stays unknown to the device model is not stopped: its unit has no device time."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])
    one = device(state, clock, SLOW, clock.advance)
    one.begin_unit()
    if loss == "missing":
        state.unlink()
    elif loss == "damaged":
        state.write_text("{")
    else:
        cluster.occupy([FAST])
    begun_s = clock.now_s()
    assert one.wait_unit() is None
    assert 60 <= clock.now_s() - begun_s <= 61


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]\n\n\n\n"])
def test_a_unit_survives_the_loss_of_the_state(
    state: Path, clock: ManualClock, content: bytes | None
) -> None:
    """What a unit had done before the state file was lost stays done when the executor declares it again."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])

    def task(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, SLOW, sleep)
        one.begin_unit(units=100)
        # What the task had not looked at when the file went, at most one poll, is done again.
        assert one.wait_unit() == pytest.approx(60_000, abs=601)
        assert clock.now_s() - begun_s <= 100 + 10 + 3

    def executor(sleep: Callable[[float], None]) -> None:
        sleep(50)
        if content is None:
            state.unlink()
        else:
            state.write_bytes(content)
        sleep(10)
        cluster.occupy([SLOW])

    begun_s = clock.now_s()
    SideBySide(clock).run(task, executor)


def test_only_one_long_absence_ends_the_patience(state: Path, clock: ManualClock) -> None:
    """Being unknown now and then, each time for less than the patience, is waited for every time."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])

    def task(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, SLOW, sleep)
        one.begin_unit(units=10)
        assert one.wait_unit() == pytest.approx(6000)

    def executor(sleep: Callable[[float], None]) -> None:
        for _ in range(3):
            sleep(3)
            cluster.occupy([])
            sleep(50)
            cluster.occupy([SLOW])

    SideBySide(clock).run(task, executor)


def test_a_state_that_cannot_be_written_is_said_once(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that may not write the state goes on unmetered; its log says why, once per unit."""
    make_cluster(state, clock).occupy([SLOW])
    one = device(state, clock, SLOW, clock.advance)
    monkeypatch.setattr(StateFile, "_store", _refuse)
    one.begin_unit()
    assert one.wait_unit() is None
    assert caplog.text.count("cannot be changed now: error=read-only") == 1
    monkeypatch.undo()
    one.begin_unit()
    assert one.wait_unit() == pytest.approx(600)


def _refuse(*_args: object) -> None:
    raise PermissionError("read-only")


def test_a_list_that_was_stale_for_a_moment_does_no_harm(state: Path, clock: ManualClock) -> None:
    """A resident that is left out of one declaration and back in the next goes on with its unit."""
    cluster = make_cluster(state, clock)
    cluster.occupy([SLOW])

    def task(sleep: Callable[[float], None]) -> None:
        one = device(state, clock, SLOW, sleep)
        one.begin_unit(units=10)
        assert one.wait_unit() == pytest.approx(6000)

    def executor(sleep: Callable[[float], None]) -> None:
        sleep(5)
        cluster.occupy([])
        sleep(2)
        cluster.occupy([SLOW])

    SideBySide(clock).run(task, executor)
    account = cluster.account("a", 1)
    assert account is not None
    assert account.units_done == 1
    assert account.run_s == pytest.approx(6000)


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"EACO_SIMULATED_STATE": "/s"}, "EACO_JOB_ID"),
        ({"EACO_SIMULATED_STATE": "/s", "EACO_JOB_ID": "a"}, "EACO_LEASE_TOKEN"),
        ({"EACO_SIMULATED_STATE": "/s", "EACO_JOB_ID": "a", "EACO_LEASE_TOKEN": "x"}, "EACO_LEASE_TOKEN"),
    ],
)
def test_an_incomplete_environment_is_named(environment: dict[str, str], problem: str) -> None:
    """A state file without the job or its token is an error that names the variable."""
    with pytest.raises(ValueError, match=problem):
        SimulatedDevice.from_environment(environment)


def test_the_environment_names_the_device(state: Path, clock: ManualClock) -> None:
    """Where no state file is named the GPU is no simulated one; else the job is found by id and token."""
    assert SimulatedDevice.from_environment({"EACO_JOB_ID": "a"}) is None
    make_cluster(state, clock).occupy([SLOW])
    named = {"EACO_SIMULATED_STATE": str(state), "EACO_JOB_ID": "a", "EACO_LEASE_TOKEN": "1"}
    assert isinstance(SimulatedDevice.from_environment(named), SimulatedDevice)


def test_misuse_is_named(state: Path, clock: ManualClock) -> None:
    """Waiting without a unit, and a unit of no work, are errors of the caller."""
    make_cluster(state, clock).occupy([SLOW])
    one = device(state, clock, SLOW, clock.advance)
    with pytest.raises(RuntimeError, match="begin_unit"):
        one.wait_unit()
    for units in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="units"):
            one.begin_unit(units)
