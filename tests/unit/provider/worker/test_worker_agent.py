"""A node's agent between an API and a machine: what it begins, ends, finds again, and tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading
from airflow_provider_eaco.core.node_runs import RunState, ValidRun
from tests.unit.provider.worker.worker_rig import CLAIM, MESSAGE, PLACEMENT, REFERENCE, VALID, Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_may_begin_begins_and_is_told_at_once(rig: Rig) -> None:
    """A message is asked about, begun with what the API answered, registered, and reported as running."""
    rig.step(1.0, MESSAGE)
    assert [(each.token, each.payload, each.placement) for each in rig.machine.started] == [
        (7, "payload", PLACEMENT)
    ]
    assert rig.api.news == [(7, RunState.RUNNING, None)]
    assert rig.api.reports[-1].living == (("job", 7),)
    assert rig.register.runs == {("job", 7)}
    assert [each.token for each in rig.machine.occupants] == [7]


def test_what_may_not_begin_does_not(rig: Rig) -> None:
    """A token that the API does not allow (any more) starts nothing and is not asked about again."""
    rig.api.claims.clear()
    rig.api.valid = ()
    rig.step(1.0, MESSAGE)
    rig.step()
    assert (rig.machine.started, rig.api.asked) == ([], 1)


@pytest.mark.parametrize(
    "message",
    [{}, {"v": 2, **{k: MESSAGE[k] for k in ("job_id", "token", "payload")}}, {**MESSAGE, "token": "7"}],
    ids=["empty", "another version", "a token as text"],
)
def test_a_message_of_another_kind_starts_nothing(message: dict[str, Any], rig: Rig) -> None:
    """Whatever else is in the queue is left out."""
    rig.step(1.0, message)
    assert (rig.machine.started, rig.api.asked) == ([], 0)


def test_without_an_answer_nothing_begins_until_there_is_one(rig: Rig) -> None:
    """While the API is away a message waits, for as long as it can still be wanted."""
    rig.api.is_away = True
    rig.step(1.0, MESSAGE)
    rig.step()
    assert rig.machine.started == []
    rig.api.is_away = False
    rig.step()
    assert len(rig.machine.started) == 1


def test_a_message_that_nobody_can_want_any_more_is_dropped(rig: Rig) -> None:
    """A message that could not be asked about for long is not asked about any more."""
    rig.api.is_away = True
    rig.step(1.0, MESSAGE)
    rig.step(1000.0)
    rig.api.is_away = False
    rig.step()
    assert rig.machine.started == []


def test_a_message_twice_starts_once(rig: Rig) -> None:
    """A doubled message starts nothing a second time, also when the first one runs already."""
    rig.step(1.0, MESSAGE, MESSAGE)
    rig.step(1.0, MESSAGE)
    assert len(rig.machine.started) == 1


def test_a_forkserver_that_is_not_ready_is_waited_for(rig: Rig) -> None:
    """A run that was allowed is begun as soon as the machine can, without asking again."""
    rig.machine.refuse = NotReadyError("imports")
    rig.step(1.0, MESSAGE)
    rig.machine.refuse = None
    rig.step()
    assert (len(rig.machine.started), rig.api.asked) == (1, 1)


@pytest.mark.parametrize("gpus", [(), (Gpu("GPU-1", "gpu-1", 0, "V100", 1, health=GpuHealth.UNHEALTHY),)])
def test_c51_a_gpu_that_is_not_here_is_refused(gpus: tuple[Gpu, ...], rig: Rig) -> None:
    """A granted GPU that the machine does not have, or has lost, is told before anything starts (C51)."""
    rig.machine.gpus = gpus
    rig.api.valid = ()
    rig.step(1.0, MESSAGE)
    assert rig.machine.started == []
    assert rig.api.news == [(7, RunState.REFUSED, None)]
    assert rig.api.reports[-1].node.gpus == gpus


@pytest.mark.parametrize(
    ("seen", "alone", "margin_mib", "begins"),
    [
        ({"foreign_processes": 1}, False, 512, False),
        ({"foreign_memory_mib": 600}, False, 512, False),
        ({"foreign_memory_mib": 500}, False, 512, True),
        ({"memory_used_mib": 30_000}, True, 512, False),
        ({"memory_used_mib": 30_000}, False, 512, True),
        ({}, True, 512, True),
        ({"foreign_memory_mib": 600}, True, None, True),
        ({"foreign_processes": 1}, True, None, False),
    ],
    ids=[
        "a process",
        "memory",
        "within the margin",
        "unlisted, and nobody of ours is there",
        "unlisted, beside one of ours",
        "unknown",
        "memory, and an API that tells no margin",
        "a process, and an API that tells no margin",
    ],
)
def test_c34_an_outsider_that_came_since_the_grant_is_refused(
    seen: dict[str, int], alone: bool, margin_mib: int | None, begins: bool, rig: Rig
) -> None:
    """The node looks again right before the start, gives the run back, and its task waits anew (C34)."""
    rig.machine.gpus = (Gpu("GPU-1", "gpu-1", 0, "V100", 32768, memory_reserved_mib=400),)
    rig.machine.readings = (GpuReading("GPU-1", 0.0, **seen), GpuReading("GPU-2", 0.0, foreign_processes=1))
    rig.api.claims[7] = replace(CLAIM, alone=alone, memory_margin_mib=margin_mib)
    rig.api.valid = (VALID,) if begins else ()
    rig.step(1.0, MESSAGE)
    assert len(rig.machine.started) == begins
    state = RunState.RUNNING if begins else RunState.REFUSED
    assert rig.api.news == [(7, state, None)]


def test_c36_the_memory_of_living_runs_is_told(rig: Rig) -> None:
    """As far as it is known, with every report."""
    rig.step(1.0, MESSAGE)
    assert rig.api.reports[-1].peaks_mib == ()
    rig.machine.peak_mib = 5000
    rig.step(10.0)
    assert rig.api.reports[-1].peaks_mib == ((7, 5000),)


def test_what_cannot_be_started_has_ended(rig: Rig) -> None:
    """A machine that cannot start a process says so, with the cause, and forgets the run."""
    rig.machine.refuse = LaunchError("disk full")
    rig.api.valid = ()
    rig.step(1.0, MESSAGE)
    [news] = rig.api.reports[-1].news
    assert (news.state, news.exit_code, news.cause, news.process) == (RunState.ENDED, 1, "disk full", None)
    assert rig.register.runs == frozenset()


def test_an_end_is_told_until_it_was_heard(rig: Rig) -> None:
    """An end while the API is away is told afterwards, and the run stays registered till then."""
    rig.step(1.0, MESSAGE)
    rig.machine.alive[REFERENCE] = 3
    rig.api.is_away = True
    rig.step()
    assert rig.register.runs == {("job", 7)}
    rig.api.is_away, rig.api.valid = False, ()
    rig.step(10.0)
    assert rig.api.news[-1] == (7, RunState.ENDED, 3)
    assert rig.register.runs == frozenset()
    rig.step(10.0)
    assert rig.api.reports[-1].news == ()


def test_c27_an_end_is_told_when_the_memory_is_back(rig: Rig) -> None:
    """Until the GPU's memory is back the run is told as living, and its lease stands; then it has ended."""
    rig.step(1.0, MESSAGE)
    rig.machine.alive[REFERENCE], rig.machine.is_back = 0, False
    rig.step(10.0)
    assert rig.api.news[-1] == (7, RunState.RUNNING, None)
    assert rig.api.reports[-1].living == (("job", 7),)
    rig.machine.is_back = True
    rig.step()
    assert rig.api.news[-1] == (7, RunState.ENDED, 0)


def test_an_api_that_is_away_is_not_asked_in_every_step(rig: Rig) -> None:
    """News that were not heard wait for the next report."""
    rig.step(1.0, MESSAGE)
    rig.api.is_away = True
    rig.machine.alive[REFERENCE] = 0
    rig.step(0.2)
    reports, rig.api.is_away = len(rig.api.reports), False
    rig.step(0.2)
    assert len(rig.api.reports) == reports


def test_c26_a_run_that_is_not_listed_is_ended(rig: Rig) -> None:
    """A run that the API does not list any more is ended, and told as living till it is gone (C26)."""
    rig.step(1.0, MESSAGE)
    rig.api.valid = ()
    rig.step(10.0)
    assert [reference for reference, _ in rig.machine.killed] == [REFERENCE]
    rig.step(10.0)
    assert rig.api.reports[-1].living == (("job", 7),)


def test_a_run_whose_token_another_job_has_is_ended(rig: Rig) -> None:
    """Tables that were made anew may give a token out again: job and token have to fit together."""
    rig.step(1.0, MESSAGE)
    rig.api.valid = (ValidRun("other", 7, "family", PLACEMENT, None, 0.0, RunState.RUNNING),)
    rig.step(10.0)
    assert rig.machine.killed


def test_a_stop_is_carried_out_with_its_grace(rig: Rig) -> None:
    """A run that the answer marks is ended with the grace that it names."""
    rig.step(1.0, MESSAGE)
    rig.api.valid = (
        ValidRun("job", 7, "family", PLACEMENT, None, 0.0, RunState.RUNNING, stop=True, grace_s=4.0),
    )
    rig.step(10.0)
    assert rig.machine.killed[-1] == (REFERENCE, 4.0)


def test_c29_a_worker_that_starts_again_leaves_its_runs_alone(rig: Rig) -> None:
    """A new worker finds what the last one had begun, tells that it lives, and starts nothing (C29)."""
    rig.step(1.0, MESSAGE)
    rig.agent = rig.make_agent()
    rig.agent.recover()
    rig.step()
    assert (len(rig.machine.started), rig.machine.killed) == (1, [])
    assert rig.api.news[-1] == (7, RunState.RUNNING, None)
    assert rig.api.reports[-1].living == (("job", 7),)


def test_c28_a_run_that_died_with_its_worker_is_told_as_ended() -> None:
    """A run that is listed and has no process has ended, and nobody knows how (C28)."""
    rig = Rig(("job", 7))
    rig.agent.recover()
    rig.step()
    rig.step()
    assert rig.api.news == [(7, RunState.ENDED, None)]


def test_a_run_that_was_allowed_and_not_begun_is_given_back() -> None:
    """A worker that was killed between question and start has begun nothing: the run is refused."""
    rig = Rig(("job", 7))
    rig.api.valid = (ValidRun("job", 7, "family", PLACEMENT, None, 0.0, RunState.CLAIMED),)
    rig.agent.recover()
    rig.step()
    rig.step()
    assert rig.api.news == [(7, RunState.REFUSED, None)]


def test_an_orphan_without_a_lease_is_ended_by_the_next_worker() -> None:
    """A run whose lease fell while no worker was there is found by the register, told, and ended (C28)."""
    rig = Rig(("job", 7))
    rig.machine.alive[REFERENCE] = None
    rig.api.valid = ()
    rig.agent.recover()
    rig.step()
    assert rig.api.reports[0].living == (("job", 7),)
    assert [reference for reference, _ in rig.machine.killed] == [REFERENCE]


def test_a_worker_that_stops_says_so(rig: Rig) -> None:
    """The last report tells that the node takes nothing new, and touches nothing that runs."""
    rig.step(1.0, MESSAGE)
    rig.agent.stop()
    rig.agent.run()
    assert not rig.api.reports[-1].node.available
    assert rig.machine.killed == []
