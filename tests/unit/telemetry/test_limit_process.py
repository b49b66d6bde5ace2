"""Limits by a process of its own: it never keeps anybody waiting, and what it began outlives everybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitInForce, LimitRequest
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.limit_process import LimitProcess
from airflow_provider_eaco.telemetry.nvml_limits import request_text
from tests.nvml.machine import FakeMachine
from tests.nvml.rig import uuid_of

DEADLINE_S = 30.0


class Limits:
    """The process over one board, and requests about it."""

    def __init__(self, machine: FakeMachine, folder: Path) -> None:
        self.machine = machine
        self.book = folder / "eaco" / "power_limits.json"
        self.held = Placement("n1", (uuid_of(machine, 0),))
        self.process = LimitProcess(self.book)

    def hold(self, limit_w: float) -> LimitRequest:
        return LimitRequest((self.held,), (SetPowerLimit(self.held, limit_w),))

    def answer(self, process: LimitProcess | None = None) -> LimitAnswer:
        deadline_s = time.monotonic() + DEADLINE_S
        while (answer := (process or self.process).poll()) is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return answer

    def until_written(self, text: str) -> None:
        """Wait until the book has this in it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (self.book.exists() and text in self.book.read_text()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        process = self.process._process
        assert process is not None
        return process.pid


@pytest.fixture
def limits(machine: FakeMachine, tmp_path: Path) -> Iterator[Limits]:
    limits = Limits(machine, tmp_path)
    yield limits
    if limits.process.is_busy:
        os.kill(limits.pid, signal.SIGKILL)


def test_a_request_is_carried_out_and_shows_in_the_book(limits: Limits) -> None:
    """Every process of the machine sees what is in force; a second request waits for the first."""
    assert (limits.process.poll(), dict(limits.process.in_force())) == (None, {})
    limits.process.begin(limits.hold(200))
    limits.process.begin(limits.hold(180))
    assert limits.process.is_busy
    assert limits.answer() == LimitAnswer()
    other = LimitProcess(limits.book)
    for process in (limits.process, other):
        assert process.in_force() == {limits.held: LimitInForce(200, (300,))}
        assert process.noted() == {limits.held}
    assert other.finish(LimitRequest(), DEADLINE_S) == LimitAnswer(restored={limits.held.gpu_uuids[0]: 300})
    assert (dict(limits.process.in_force()), limits.process.noted()) == ({}, frozenset())
    assert limits.machine.limits_set() == [(0, 200), (0, 300)]


def test_killed_with_the_limit_half_set_the_next_one_puts_it_back(limits: Limits) -> None:
    """-9 while the driver has the call: nobody knows whether the board has taken it."""
    limits.machine.hangs = {"nvmlDeviceSetPowerManagementLimit"}
    limits.machine.write()
    limits.process.begin(limits.hold(200))
    limits.until_written('"is_set": false')
    limits.machine.put_limit(0, 200)
    os.kill(limits.pid, signal.SIGKILL)
    assert limits.answer().problem == "the process that sets power limits has ended with code -9"
    assert (dict(limits.process.in_force()), limits.process.noted()) == ({}, {limits.held})
    limits.machine.hangs = set()
    limits.machine.write()
    assert limits.process.finish(LimitRequest((limits.held,)), DEADLINE_S) == LimitAnswer(
        restored={limits.held.gpu_uuids[0]: 300}
    )
    assert limits.machine.limit_w(0) == 300


def test_a_driver_that_hangs_is_given_up(limits: Limits) -> None:
    """Nobody waits for it; the cause is told, and the next request begins anew."""
    limits.machine.hangs = {"nvmlDeviceGetPowerManagementLimit"}
    limits.machine.write()
    process = LimitProcess(limits.book, timeout_s=0.5)
    process.begin(limits.hold(200))
    assert limits.answer(process) == LimitAnswer(problem="NVML has not answered for 0 s")
    limits.machine.hangs = set()
    limits.machine.write()
    assert limits.process.finish(limits.hold(200), DEADLINE_S) == LimitAnswer()


def test_a_process_that_hangs_lets_go_of_the_book_though_nobody_waits_for_it(limits: Limits) -> None:
    """Whoever asked may have died; the next one is not kept from the boards."""
    limits.machine.hangs = {"nvmlDeviceSetPowerManagementLimit"}
    limits.machine.write()
    code = (
        "import sys\nfrom airflow_provider_eaco.telemetry import nvml_process\n"
        "nvml_process.LIMIT_S = 1\nsys.exit(nvml_process.main(['limit', sys.argv[1]]))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code, str(limits.book)],
        input=request_text(limits.hold(200)).encode(),
        timeout=DEADLINE_S,
        check=False,
    )
    assert asked.returncode == -signal.SIGALRM
    limits.machine.hangs = set()
    limits.machine.write()
    assert limits.process.finish(limits.hold(200), DEADLINE_S) == LimitAnswer()


def test_what_was_begun_goes_on_when_whoever_asked_is_gone(limits: Limits) -> None:
    """A scheduler that leaves puts its limits back, however little time it has."""
    limits.process.begin(limits.hold(200))
    limits.answer()
    code = (
        "import sys; from pathlib import Path\n"
        "from airflow_provider_eaco.core.model.board_limits import LimitRequest\n"
        "from airflow_provider_eaco.telemetry.limit_process import LimitProcess\n"
        "print(LimitProcess(Path(sys.argv[1])).finish(LimitRequest(), 0.0))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code, str(limits.book)], capture_output=True, text=True, check=True
    )
    assert asked.stdout == "None\n"
    limits.until_written('"limits": []')
    assert limits.machine.limit_w(0) == 300


def test_a_problem_of_nvml_or_book_is_an_answer(limits: Limits) -> None:
    """No driver, or a book that cannot be read: told in words, nothing changed."""
    limits.machine.init_code = 9
    limits.machine.write()
    answer = limits.process.finish(limits.hold(200), DEADLINE_S)
    assert answer is not None
    assert (answer.problem or "").startswith("NVML cannot be started")
    limits.machine.init_code = 0
    limits.machine.write()
    limits.book.parent.mkdir(exist_ok=True)
    limits.book.write_text("{")
    answer = limits.process.finish(limits.hold(200), DEADLINE_S)
    assert answer is not None
    assert "is damaged" in (answer.problem or "")
    assert (dict(limits.process.in_force()), limits.machine.limits_set()) == ({}, [])
