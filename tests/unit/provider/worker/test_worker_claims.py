"""A run that was allowed and has to wait begins only while it is still allowed."""

from __future__ import annotations

import logging
from dataclasses import replace
from unittest.mock import Mock

import pytest

from airflow_provider_eaco.core.model.errors import NotReadyError
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import RunClaim, RunState, ValidRun
from airflow_provider_eaco.provider.worker_api import NodeApiError
from tests.unit.provider.worker.test_worker_limits import Boards
from tests.unit.provider.worker.worker_rig import CLAIM, MESSAGE, PLACEMENT, VALID, Rig

CLAIMED = replace(VALID, state=RunState.CLAIMED)
REFUSED = [(7, RunState.REFUSED, None)]


@pytest.fixture
def rig() -> Rig:
    """A node whose board takes a limit as slowly as the test wants, and an order that waits for it."""
    rig = Rig()
    rig.limiter = Boards()
    rig.agent = rig.make_agent()
    rig.api.claims[7] = replace(CLAIM, power_limit_w=200.0)
    rig.api.valid, rig.api.limits_w = (CLAIMED,), {PLACEMENT: 200.0}
    rig.step(1.0, MESSAGE)
    assert (rig.machine.started, rig.api.asked) == ([], 1)
    return rig


@pytest.mark.parametrize(
    "valid",
    [(), (replace(CLAIMED, stop=True),), (replace(CLAIMED, job_id="other"),)],
    ids=["not listed", "to be stopped", "another job's"],
)
def test_c26_a_run_that_waits_for_its_limit_and_is_taken_away_never_begins(
    valid: tuple[ValidRun, ...], rig: Rig
) -> None:
    """The answer to a report says so; the node gives the run back, and it starts nothing later (C26)."""
    rig.api.valid = valid
    rig.step(6.0)
    rig.api.valid = ()
    for _ in range(4):
        rig.step(5.0)
    assert (rig.machine.started, rig.api.asked) == ([], 1)
    assert rig.api.news == REFUSED


def test_c26_a_run_that_waits_for_the_forkserver_and_is_taken_away_never_begins() -> None:
    """Also one whose start was tried before; nothing of it stays registered (C26)."""
    rig = Rig()
    rig.machine.refuse = NotReadyError("imports")
    rig.api.valid = (CLAIMED,)
    rig.step(1.0, MESSAGE)
    assert rig.register.runs == {("job", 7)}
    rig.api.valid = ()
    rig.step(6.0)
    rig.step(6.0)
    rig.machine.refuse = None
    rig.step(60.0)
    assert rig.machine.started == []
    assert rig.api.news == REFUSED
    assert rig.register.runs == frozenset()


def test_c26_a_worker_that_was_stopped_past_its_lease_begins_nothing(rig: Rig) -> None:
    """A process that stood still has heard no report's answer: it asks again before it starts (C26)."""
    reports = len(rig.api.reports)
    rig.api.valid = ()
    rig.api.claims.clear()
    rig.step(60.0)
    assert (rig.machine.started, rig.api.asked) == ([], 2)
    assert len(rig.api.reports) == reports + 1
    assert rig.api.news == REFUSED


def test_c26_a_worker_that_was_stopped_while_it_asked_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of an answer counts from its question, and only a fresh one starts a run (C26)."""
    rig = Rig()
    delays_s = [60.0, 6.0, 0.1]
    answer = rig.api.claim

    def claim(job_id: str, token: int) -> RunClaim | None:
        rig.now_s += delays_s.pop(0)
        return answer(job_id, token)

    monkeypatch.setattr(rig.api, "claim", claim)
    rig.step(1.0, MESSAGE)
    assert (rig.machine.started, rig.api.asked) == ([], 2)
    rig.step(1.0)
    assert (len(rig.machine.started), rig.api.asked) == (1, 3)


def test_a_run_that_has_waited_begins_after_a_fresh_yes(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """An answer is asked for again once it is older than the interval of reports, and not before; the log
    says that the run has begun without its limit.
    """
    rig.step(4.0)
    assert rig.api.asked == 1
    rig.step(6.0)
    assert (len(rig.machine.started), rig.api.asked) == (1, 2)
    assert rig.api.news == [(7, RunState.RUNNING, None)]
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["Begun before its power limit was set: job_id=job token=7"]


def test_a_run_that_has_waited_begins_with_what_the_fresh_answer_says(rig: Rig) -> None:
    """The first answer is forgotten, also where it named other GPUs."""
    moved = Placement("gpu-1", ("GPU-2",))
    rig.machine.gpus = tuple(replace(rig.machine.gpus[0], uuid=uuid) for uuid in ("GPU-1", "GPU-2"))
    rig.api.claims[7] = replace(CLAIM, placement=moved)
    rig.step(11.0)
    assert [order.placement for order in rig.machine.started] == [moved]


def test_without_an_answer_a_run_that_has_waited_does_not_begin_until_there_is_one(rig: Rig) -> None:
    """An API that is away takes nothing back and allows nothing."""
    rig.api.is_away = True
    rig.step(11.0)
    assert (rig.machine.started, rig.api.news) == ([], [])
    rig.api.is_away = False
    rig.step(1.0)
    assert len(rig.machine.started) == 1


def test_an_order_that_was_not_asked_about_yet_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer to a report lists what nobody has allowed so far."""
    rig = Rig()
    with monkeypatch.context() as patched:
        patched.setattr(rig.api, "claim", Mock(side_effect=NodeApiError("away", is_refusal=False)))
        rig.api.valid = ()
        rig.step(1.0, MESSAGE)
    assert len(rig.api.reports) == 1
    rig.api.valid = (VALID,)
    rig.step(1.0)
    assert len(rig.machine.started) == 1
