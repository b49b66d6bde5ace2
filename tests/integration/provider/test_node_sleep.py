"""Nodes that sleep, from the idle node over a task that needs it to the node that is up: lane, engine and SQL
store; the node and the operator's commands are the test's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.instruction import SleepNode, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.provider import node_sleep
from airflow_provider_eaco.provider.node_sleep import NodeSleeper
from airflow_provider_eaco.provider.outside_commands import Finished
from tests.integration.provider.sleep_rig import RETRY_S, SETTINGS, SleepBox


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SleepBox]:
    monkeypatch.setattr(node_sleep, "RETRY_S", RETRY_S)
    box = SleepBox(tmp_path, monkeypatch, SETTINGS)
    yield box
    box.engine.dispose()


def test_an_idle_node_sleeps_and_wakes_for_the_task_that_needs_it(box: SleepBox) -> None:
    """Its silence keeps nobody away; the task holds its lease while the node wakes, and starts when it is."""
    box.fall_asleep()
    box.rig.queue("j1", "first")
    box.pass_s(5)
    assert (box.rig.phase("j1"), box.state()) == ("leased", NodePower.ASLEEP)
    box.pass_s(5)
    assert (box.state(), box.operator.begun[1:]) == (NodePower.WAKING, [("wake", "n2")])
    assert box.stories("j1") == ["waits for node n2, which is woken"]
    box.pass_s(30)
    assert box.rig.dispatcher.orders == []
    box.operator.end()
    box.on = True
    box.pass_s(10)
    assert box.state() is None
    assert [order.job_id for order in box.rig.dispatcher.orders] == ["j1"]
    box.pass_s(60)
    assert (box.state(), box.operator.begun[2:]) == (None, [])
    # Its time begins anew with the end of the task.
    box.rig.become("j1", "success")
    box.rig.dispatcher.end("j1")
    box.pass_s(25)
    assert (box.state(), box.rig.ledger.view().leases) == (None, ())
    box.pass_s(15)
    assert box.state() is NodePower.ASLEEP


@pytest.mark.parametrize("who", ["lease", "stranger", "unknown", "draining"])
def test_who_is_there_keeps_the_node_up(box: SleepBox, who: str) -> None:
    """A lease, foreign use (C34), use that nobody can tell, and a user who drains it have a veto."""
    if who == "lease":
        box.rig.queue("j1", "first")
    elif who == "draining":
        box.pass_s(5)
        box.rig.ledger.set_draining("n2", True)
    else:
        seen = {"foreign_processes": 1} if who == "stranger" else {"foreign_memory_mib": None}
        box.readings[1] = replace(box.readings[1], **seen)
    box.pass_s(60)
    box.ask(SleepNode("n2"))
    box.pass_s(20)
    assert (box.operator.begun, box.state()) == ([], None)


def test_a_grant_between_decision_and_command_is_first(box: SleepBox) -> None:
    """Plans of before the decision may still grant; the command waits for them, and is not given then."""
    box.pass_s(35)
    assert (box.state(), box.operator.begun) == (NodePower.ASLEEP, [])
    box.rig.queue("j1", "first")
    box.pass_s(15)
    assert (box.state(), box.operator.begun) == (None, [])
    assert [order.job_id for order in box.rig.dispatcher.orders] == ["j1"]


def test_a_node_that_does_not_wake_is_drained_and_its_task_waits_again(
    box: SleepBox, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is repeated meanwhile; the task loses nothing but time, and reads why."""
    box.fall_asleep()
    box.rig.queue("j1", "first")
    box.pass_s(10)
    (lease,) = box.rig.ledger.view().leases
    box.operator.end(Finished(False, "it ended with code 1: no route"))
    box.pass_s(95)
    assert (box.state(), box.draining()) == (NodePower.WAKING, False)
    box.operator.end()
    box.pass_s(5)
    assert (box.state(), box.draining()) == (None, True)
    assert box.operator.begun.count(("wake", "n2")) > 1
    assert box.workers.withdrawn == [lease.token]
    assert (box.rig.phase("j1"), box.rig.ledger.view().leases) == ("waiting", ())
    why = "waits again: node n2 did not wake within 100 s and is drained"
    assert box.stories("j1")[-1] == why
    assert "no route" in caplog.text
    assert "n2 did not wake within 100 s and is drained" in caplog.text


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_a_node_whose_command_fails_is_up(box: SleepBox, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It takes tasks, and the command is not given again for a while."""
    box.operator.refuse = "No such file" if how == "refused" else None
    box.pass_s(45)
    if how == "failed":
        box.operator.end(Finished(False, "it ended with code 1"))
        box.pass_s(5)
    assert box.state() is None
    box.operator.refuse = None
    box.pass_s(RETRY_S - 10)
    assert (len(box.operator.begun), box.state()) == (how == "failed", None)
    assert "A command of [eaco] node_sleep failed: node=n2" in caplog.text
    box.pass_s(30)
    assert (len(box.operator.begun), box.state()) == (1 + (how == "failed"), NodePower.ASLEEP)


def test_a_node_that_goes_on_reporting_is_up_again(box: SleepBox) -> None:
    """The command came to nothing, or somebody has woken it: plans take it for what it is, for a while."""
    box.pass_s(50)
    box.operator.end()
    box.pass_s(65)
    assert box.state() is None
    box.pass_s(RETRY_S - 30)
    assert (box.operator.begun, box.state()) == ([("sleep", "n2")], None)


def test_the_next_scheduler_knows_who_sleeps(box: SleepBox) -> None:
    """It grants its GPUs and wakes it, though it has not heard of it itself."""
    box.fall_asleep()
    box.rig = box.start()
    box.rig.queue("j1", "first")
    box.pass_s(10)
    assert (box.rig.phase("j1"), box.state()) == ("leased", NodePower.WAKING)


def test_of_two_schedulers_one_gives_the_command(box: SleepBox) -> None:
    """The step is one row of the store."""
    second = box.start()
    for _ in range(12):
        box.pass_s(5)
        second.sleeper.step(second.ledger.view())
    assert box.operator.begun == [("sleep", "n2")]


def test_policies_see_the_states_and_may_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a time sleeps when it is told to, and wakes so, too."""
    box = SleepBox(tmp_path, monkeypatch, replace(SETTINGS, idle_s=None))

    def seen() -> NodePower:
        (pool,) = box.rig.sleeper.told([box.rig.pool])
        return pool.node_power["n2"].power

    box.pass_s(60)
    assert (seen(), box.operator.begun) == (NodePower.IDLE, [])
    box.ask(SleepNode("n2"))
    box.pass_s(20)
    assert (seen(), box.operator.begun) == (NodePower.ASLEEP, [("sleep", "n2")])
    box.operator.end()
    box.ask(WakeNode("n2"))
    box.pass_s(10)
    assert (seen(), box.operator.begun[1:]) == (NodePower.WAKING, [("wake", "n2")])
    box.engine.dispose()


def test_a_node_that_was_woken_for_nobody_has_its_idle_time_again(box: SleepBox) -> None:
    """It is not put to sleep right away because it has been idle since before it slept."""
    box.fall_asleep()
    box.ask(WakeNode("n2"))
    box.pass_s(10)
    box.operator.end()
    box.on = True
    box.pass_s(30)
    assert (box.state(), box.operator.begun[1:]) == (None, [("wake", "n2")])


def test_without_commands_a_policy_only_advises(box: SleepBox, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once in the log; nothing is put to sleep."""
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            box.ask(SleepNode("elsewhere"))
            box.pass_s(5)
    said = [each for each in caplog.records if "there are no commands: elsewhere" in each.getMessage()]
    assert len(said) == 1
    assert box.operator.begun == []
    unset = NodeSleeper((), box.rig.sleeper._around)
    assert (unset.is_needed, unset.told([box.rig.pool])[0].node_power) == (False, {})
    assert unset.starting(box.rig.dispatcher) is box.rig.dispatcher


@pytest.mark.parametrize("what", ["worker", "commands"])
def test_a_node_that_nobody_could_wake_is_not_granted_in_its_sleep(box: SleepBox, what: str) -> None:
    """It has lost its worker, or is no longer in the option: nothing could be started there."""
    box.fall_asleep()
    if what == "worker":
        box.workers.nodes.clear()
    else:
        box.settings = replace(SETTINGS, node="other")
        box.rig = box.start()
    box.rig.queue("j1", "first")
    box.pass_s(20)
    assert box.rig.phase("j1") == "waiting"
