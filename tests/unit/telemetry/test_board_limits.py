"""Power limits on a board: set, refused, taken by others, and put back after a crash at any point.

The real adapter and the real pynvml over a library that answers from a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitInForce, LimitRequest
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.telemetry.board_limits import carry_out
from airflow_provider_eaco.telemetry.limit_book import LimitBook, LimitBookError, in_force
from airflow_provider_eaco.telemetry.nvml_limits import NvmlBoards, answer_from, request_from, request_text
from tests.nvml.machine import FakeMachine, load_library
from tests.nvml.rig import uuid_of


class CrashError(Exception):
    """Stands for the end of the process."""


class CrashingBook(LimitBook):
    """A book whose process ends at its n-th saving: before it, or right after it."""

    def __init__(self, path: Path, at: int, *, after: bool) -> None:
        super().__init__(path)
        self._left, self._after = at, after

    def save(self, limits: Any) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise CrashError
        super().save(limits)
        if self._left == 0:
            raise CrashError


class Bench:
    """Two boards of 300 W that take 150 to 300 W, and the book of their limits."""

    def __init__(self, machine: FakeMachine, folder: Path) -> None:
        load_library()
        self.machine = machine
        self.path = folder / "eaco" / "power_limits.json"
        self.book = LimitBook(self.path)
        self.both = Placement("n1", (uuid_of(machine, 0), uuid_of(machine, 1)))
        self.one = Placement("n1", (uuid_of(machine, 0),))
        self.other = Placement("n1", (uuid_of(machine, 1),))

    def ask(self, request: LimitRequest, book: LimitBook | None = None) -> LimitAnswer:
        boards = NvmlBoards()
        try:
            return carry_out(request, boards, book or self.book)
        finally:
            boards.close()

    def hold(self, placement: Placement, limit_w: float | None, book: LimitBook | None = None) -> LimitAnswer:
        """Ask for a limit while both boards are held, as a set or one by one."""
        held = (self.both,) if placement == self.both else (self.one, self.other)
        return self.ask(LimitRequest(held, (SetPowerLimit(placement, limit_w),)), book)

    def limits_w(self) -> tuple[float, float]:
        return self.machine.limit_w(0), self.machine.limit_w(1)

    def in_force(self) -> dict[Placement, LimitInForce]:
        return in_force(self.book.load())


@pytest.fixture
def bench(machine: FakeMachine, tmp_path: Path) -> Iterator[Bench]:
    return Bench(machine, tmp_path)


def test_a_limit_is_set_on_every_board_of_a_set_and_lifted_with_it(bench: Bench) -> None:
    """Both boards get it; it stands while the placement is held, whoever asks for what, and falls with it."""
    bench.machine.put_limit(1, 280)
    assert bench.hold(bench.both, 200) == LimitAnswer()
    assert bench.limits_w() == (200, 200)
    assert bench.in_force() == {bench.both: LimitInForce(200, (300, 280))}
    assert bench.ask(LimitRequest((bench.both,))) == LimitAnswer()
    assert bench.limits_w() == (200, 200)
    assert bench.hold(bench.both, 175) == LimitAnswer()
    assert bench.in_force() == {bench.both: LimitInForce(175, (300, 280))}
    answer = bench.ask(LimitRequest((bench.one,)))
    assert answer.restored == {uuid_of(bench.machine, 0): 300, uuid_of(bench.machine, 1): 280}
    assert (bench.limits_w(), bench.in_force()) == ((300, 280), {})


def test_a_limit_is_lifted_when_that_is_asked(bench: Bench) -> None:
    """``None`` brings back what was there, though the placement is held on."""
    bench.hold(bench.one, 200)
    bench.hold(bench.other, 220)
    answer = bench.ask(LimitRequest((bench.one, bench.other), (SetPowerLimit(bench.one, None),)))
    assert list(answer.restored) == [uuid_of(bench.machine, 0)]
    assert bench.limits_w() == (300, 220)


@pytest.mark.parametrize("limit_w", [149.0, 301.0])
def test_what_the_board_does_not_take_is_refused(bench: Bench, limit_w: float) -> None:
    """NVML's own bounds decide, before anything is changed or written down."""
    answer = bench.hold(bench.one, limit_w)
    assert answer.refused == {bench.one: f"{limit_w:g} W is outside the 150 to 300 W that the board takes"}
    assert (bench.machine.limits_set(), bench.book.load()) == ([], {})


def test_a_limit_of_the_operator_is_never_raised(bench: Bench) -> None:
    """A board that somebody holds to less stays there."""
    bench.machine.put_limit(0, 180)
    answer = bench.hold(bench.one, 200)
    assert answer.refused == {bench.one: "the board is held to 180 W already, not by a task's limit"}
    assert bench.machine.limit_w(0) == 180


def test_a_change_on_a_placement_that_nobody_holds_is_left_out(bench: Bench) -> None:
    """It was released since the plan was made."""
    answer = bench.ask(LimitRequest((bench.other,), (SetPowerLimit(bench.one, 200),)))
    assert (answer, bench.machine.limits_set()) == (LimitAnswer(), [])


def test_a_set_is_limited_as_a_whole_or_not_at_all(bench: Bench) -> None:
    """One board that refuses brings the other back."""
    bench.machine.errors = {"nvmlDeviceSetPowerManagementLimit": {1: 999}}
    bench.machine.write()
    answer = bench.hold(bench.both, 200)
    assert set(answer.refused) == {bench.both}
    assert bench.machine.limits_set() == [(0, 200), (0, 300)]
    assert bench.in_force() == {}


def test_without_permission_nothing_is_set_and_the_cause_is_told(bench: Bench) -> None:
    """So does the question beforehand, which sets what is there anyway."""
    uuid = uuid_of(bench.machine, 0)
    assert bench.ask(LimitRequest(asked=(uuid,))) == LimitAnswer()
    assert bench.machine.limits_set() == [(0, 300)]
    bench.machine.errors = {"nvmlDeviceSetPowerManagementLimit": 4}
    bench.machine.write()
    (cause,) = bench.ask(LimitRequest(asked=(uuid,))).unable.values()
    assert cause.startswith("there is no permission to set power limits, which NVML grants to root alone")
    assert bench.hold(bench.one, 200).refused == {bench.one: cause}
    assert (bench.machine.limits_set(), bench.in_force()) == ([(0, 300)], {})


def test_mig_and_boards_that_are_not_here_cannot_be_limited(bench: Bench) -> None:
    """A divided board's limit is everybody's on it; a partition has none; other machines are not ours."""
    bench.machine.set(0, mig=1)
    answer = bench.ask(LimitRequest(asked=(uuid_of(bench.machine, 0), "MIG-1", "GPU-elsewhere")))
    nobody = "this machine's NVML lists no whole GPU of that UUID"
    divided = "the board is divided by MIG"
    assert list(answer.unable.values()) == [divided, nobody, nobody]
    assert bench.hold(bench.one, 200).refused == {bench.one: divided}
    assert bench.machine.limits_set() == []


def test_what_somebody_else_has_set_since_is_left_alone(bench: Bench) -> None:
    """Held or released, the limit is theirs from then on."""
    bench.hold(bench.other, 200)
    bench.machine.put_limit(1, 250)
    answer = bench.ask(LimitRequest((bench.other,)))
    assert answer == LimitAnswer(taken={uuid_of(bench.machine, 1): 250})
    bench.hold(bench.other, 200)
    bench.machine.put_limit(1, 260)
    assert bench.ask(LimitRequest()).taken == {uuid_of(bench.machine, 1): 260}
    assert (bench.limits_w(), bench.book.load()) == ((300, 260), {})


def test_a_board_that_cannot_be_put_back_is_tried_again(bench: Bench) -> None:
    """The book keeps what it had, and nobody gets a limit there meanwhile."""
    bench.hold(bench.both, 200)
    bench.machine.set(1, lost=1)
    answer = bench.ask(LimitRequest((bench.other,), (SetPowerLimit(bench.other, 180),)))
    assert list(answer.restored) == [uuid_of(bench.machine, 0)]
    assert set(answer.stuck) == {uuid_of(bench.machine, 1)}
    assert bench.book.load()[uuid_of(bench.machine, 1)].before_w == 300
    assert set(answer.refused) == {bench.other}
    bench.machine.set(1, lost=None)
    answer = bench.hold(bench.other, 180)
    assert (answer.restored, answer.refused) == ({uuid_of(bench.machine, 1): 300}, {})
    assert bench.limits_w() == (300, 180)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_after_a_crash_the_next_one_puts_back_what_nobody_holds(bench: Bench, at: int, after: bool) -> None:
    """Two boards take four savings. Whichever was the last thing done, no limit is lost from sight."""
    with pytest.raises(CrashError):
        bench.hold(bench.both, 200, CrashingBook(bench.path, at, after=after))
    bench.ask(LimitRequest())
    assert (bench.limits_w(), bench.book.load()) == ((300, 300), {})


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_half_a_limit_does_not_outlive_a_crash(bench: Bench, at: int, after: bool) -> None:
    """Held or not: a set of which a part is limited runs no cheaper, and counts as limited nowhere."""
    with pytest.raises(CrashError):
        bench.hold(bench.both, 200, CrashingBook(bench.path, at, after=after))
    assert bench.in_force() == {}
    bench.ask(LimitRequest((bench.both,)))
    assert (bench.limits_w(), bench.book.load()) == ((300, 300), {})


def test_a_crash_between_two_levels_leaves_neither(bench: Bench) -> None:
    """One board at 175 W and one at 200 W are no level."""
    bench.hold(bench.both, 200)
    with pytest.raises(CrashError):
        bench.hold(bench.both, 175, CrashingBook(bench.path, 2, after=True))
    assert (bench.limits_w(), bench.in_force()) == ((175, 200), {})
    bench.ask(LimitRequest((bench.both,)))
    assert bench.limits_w() == (300, 300)


def test_a_crash_while_lifting_is_no_choice_of_somebody_else(bench: Bench) -> None:
    """The board has its own limit again, and the book has not heard of it."""
    bench.hold(bench.one, 200)
    with pytest.raises(CrashError):
        bench.ask(LimitRequest(), CrashingBook(bench.path, 1, after=False))
    assert bench.machine.limit_w(0) == 300
    assert bench.ask(LimitRequest()) == LimitAnswer()
    assert bench.book.load() == {}


def test_a_book_that_cannot_be_read_is_never_taken_for_empty(bench: Bench) -> None:
    """Nothing is set over it, since what the boards had stands nowhere else."""
    bench.path.parent.mkdir()
    for content in ("{", '{"version": 2, "limits": []}', '{"version": 1, "limits": [{"uuid": 1}]}'):
        bench.path.write_text(content)
        with pytest.raises(LimitBookError, match="set the limits of the boards by hand"):
            bench.hold(bench.one, 200)
    assert bench.machine.limits_set() == []


def test_one_changes_boards_at_a_time(bench: Bench) -> None:
    """Whoever comes second waits, and gives up with a cause."""
    second = LimitBook(bench.path).locked(0.05)
    with bench.book.locked(), pytest.raises(LimitBookError, match="is held by another process"):
        second.__enter__()
    with LimitBook(bench.path).locked(0.05):
        assert bench.book.load() == {}


class DeafBoards(NvmlBoards):
    """Boards that take what they are told and do nothing."""

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        """Do nothing, without an error."""


def test_a_board_that_only_says_that_it_took_a_limit_is_refused(bench: Bench) -> None:
    """What is in force is what the board tells afterwards."""
    request = LimitRequest((bench.one,), (SetPowerLimit(bench.one, 200),))
    boards = DeafBoards()
    answer = carry_out(request, boards, bench.book)
    boards.close()
    assert answer.refused == {bench.one: "it says that it took 200 W and has not"}
    assert bench.book.load() == {}


def test_nvml_that_cannot_be_started_is_told(bench: Bench) -> None:
    """The boards then are as they were."""
    bench.machine.init_code = 9
    bench.machine.write()
    with pytest.raises(Exception, match="NVML cannot be started"):
        bench.hold(bench.one, 200)


def test_requests_and_answers_survive_the_way(bench: Bench) -> None:
    """What goes to the process is what it reads; what is no answer is refused."""
    request = LimitRequest(
        (bench.both, bench.one), (SetPowerLimit(bench.both, 175.5), SetPowerLimit(bench.one, None)), ("u",)
    )
    assert request_from(json.loads(request_text(request))) == request
    for text in ("", "[]", "{}", '{"refused": 1}'):
        with pytest.raises(ValueError, match="not an answer"):
            answer_from(text)
