"""What a node's boards are brought to, step by step, and what its starts wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.board_limits import (
    LimitAnswer,
    LimitInForce,
    LimitRequest,
    NodeLimits,
)
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import RunClaim
from airflow_provider_eaco.provider.limit_permits import ADVISE_S
from airflow_provider_eaco.provider.worker_limits import WorkerLimits

HERE, THERE = Placement("gpu-1", ("GPU-1",)), Placement("gpu-1", ("GPU-2",))
UUIDS = ("GPU-1", "GPU-2")
CLAIM = RunClaim("job", 7, "family", HERE)


class Boards:
    """A limiter that answers when the test says so; ``requests`` are all that it was asked for."""

    def __init__(self) -> None:
        self.requests: list[LimitRequest] = []
        self.set: dict[Placement, float] = {}
        self.is_busy = False
        self.answered: LimitAnswer | None = None

    def begin(self, request: LimitRequest) -> None:
        assert not self.is_busy
        self.requests.append(request)
        self.is_busy = True

    def poll(self) -> LimitAnswer | None:
        answer, self.answered = self.answered, None
        if answer is not None:
            self.is_busy = False
        return answer

    def finish(self, request: LimitRequest, timeout_s: float) -> LimitAnswer | None:
        self.requests.append(request)
        self.set.clear()
        return LimitAnswer()

    def in_force(self) -> Mapping[Placement, LimitInForce]:
        return {placement: LimitInForce(watts, (300.0,)) for placement, watts in self.set.items()}

    def noted(self) -> frozenset[Placement]:
        return frozenset(self.set)

    def answer(self, **answer: Any) -> None:
        """Carry the last request out, but for what is refused."""
        request, told = self.requests[-1], LimitAnswer(**answer)
        self.set = {placement: watts for placement, watts in self.set.items() if placement in request.held}
        for change in request.changes:
            if change.placement not in told.refused and change.limit_w is not None:
                self.set[change.placement] = change.limit_w
        self.answered = told


class Node:
    """The limits of one node over such boards."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.boards = Boards()
        self.limits = WorkerLimits(self.boards, lambda: self.now_s)

    def step(self, *held: Placement, after_s: float = 1.0) -> list[LimitRequest]:
        """Go on with runs on these boards; return what was asked for."""
        self.now_s += after_s
        before = len(self.boards.requests)
        self.limits.step(lambda: UUIDS, held)
        return self.boards.requests[before:]

    def ready(self) -> Node:
        """Let it be known that both boards take limits."""
        self.limits.want({})
        self.step()
        self.boards.answer()
        self.step()
        return self


@pytest.fixture
def node() -> Node:
    return Node()


def test_boards_are_asked_about_once_somebody_applies_limits(node: Node) -> None:
    """Not before, and each once; a node of which nobody wants limits tells nothing of its boards."""
    assert node.step() == []
    assert node.limits.told() == NodeLimits()
    node.limits.want({})
    assert node.step() == [LimitRequest(asked=UUIDS)]
    node.boards.answer(unable={"GPU-2": "MIG"})
    assert node.step() == []
    assert node.limits.told().permits == {"GPU-1": None, "GPU-2": "MIG"}
    assert node.step() == []
    node.limits.want(None)
    assert node.limits.told().permits == {}


def test_what_takes_none_is_asked_about_again_after_a_while(node: Node) -> None:
    """And nothing else."""
    node.limits.want({})
    node.step()
    node.boards.answer(unable={"GPU-2": "no permission"})
    node.step()
    assert node.step(after_s=ADVISE_S - 1) == []
    assert node.step(after_s=2.0) == [LimitRequest(asked=("GPU-2",))]


def test_a_limit_is_set_only_where_a_run_is(node: Node) -> None:
    """What the API lists of other boards waits until a run is about to begin there."""
    node.ready().limits.want({HERE: 200.0, THERE: 180.0})
    assert node.step(HERE) == [LimitRequest((HERE,), (SetPowerLimit(HERE, 200.0),))]
    node.boards.answer()
    assert node.step(HERE) == []
    assert node.step() == [LimitRequest()]


def test_a_run_waits_until_its_limit_is_there(node: Node) -> None:
    """Or is refused; one without a limit waits for nothing."""
    node.ready()
    assert node.limits.is_settled(HERE)
    node.limits.want_for(replace(CLAIM, power_limit_w=200.0))
    assert not node.limits.is_settled(HERE)
    node.step(HERE)
    assert not node.limits.is_settled(HERE)
    node.boards.answer()
    node.step(HERE)
    assert node.limits.is_settled(HERE)
    node.limits.want_for(replace(CLAIM, power_limit_w=180.0))
    assert not node.limits.is_settled(HERE)


def test_a_refused_limit_is_told_and_not_tried_again_while_it_is_wanted(node: Node) -> None:
    """Nobody waits for it, and another one may be tried."""
    node.ready().limits.want({HERE: 200.0})
    node.step(HERE)
    node.boards.answer(refused={HERE: "out of range"})
    assert node.step(HERE) == []
    assert node.limits.told().refused == {HERE: "out of range"}
    assert node.limits.is_settled(HERE)
    node.limits.want({HERE: 200.0})
    assert node.step(HERE) == []
    node.limits.want({HERE: 220.0})
    assert node.limits.told().refused == {}
    assert node.step(HERE) == [LimitRequest((HERE,), (SetPowerLimit(HERE, 220.0),))]


def test_a_refusal_that_comes_when_nothing_is_wanted_any_more_is_not_told(node: Node) -> None:
    """It says nothing about the next one who wants that limit."""
    node.ready().limits.want({HERE: 200.0})
    node.step(HERE)
    node.limits.want({})
    node.boards.answer(refused={HERE: "out of range"})
    node.step(HERE)
    assert node.limits.told().refused == {}


def test_a_start_without_a_limit_gets_none_of_those_before_it(node: Node) -> None:
    """What the API told last may be older than the start."""
    node.ready().limits.want({HERE: 200.0})
    node.step(HERE)
    node.boards.answer()
    node.step(HERE)
    node.limits.want_for(CLAIM)
    assert node.limits.is_settled(HERE)
    assert node.step(HERE) == [LimitRequest()]


def test_nothing_is_lifted_while_it_is_not_known_who_runs_where(node: Node) -> None:
    """A worker that was just started may find runs and not know their boards."""
    node.boards.set[HERE] = 200.0
    node.limits.step(lambda: UUIDS, None)
    assert node.boards.requests == []
    node.limits.step(lambda: UUIDS, ())
    assert node.boards.requests == [LimitRequest()]


def test_boards_that_nobody_limits_are_lifted_and_not_asked(node: Node) -> None:
    """A pool that leaves ``apply`` gets its boards back, and no question is put to them any more."""
    node.ready().limits.want({HERE: 200.0})
    node.step(HERE)
    node.boards.answer()
    node.step(HERE)
    node.limits.want(None)
    assert node.step(HERE) == [LimitRequest()]
    node.boards.answer()
    assert node.step(HERE) == []


def test_who_leaves_lifts_all(node: Node) -> None:
    """Whatever is wanted."""
    node.ready().limits.want({HERE: 200.0})
    node.step(HERE)
    node.boards.answer()
    node.step(HERE)
    node.limits.close(1.0)
    assert node.boards.requests[-1] == LimitRequest()
    assert node.limits.told().in_force == {}
