"""Energy records of running and ended tasks: what the task is told, what its log and its story say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.provider import energy_book, task_log
from airflow_provider_eaco.provider.energy_book import LAST_LOOK_WAIT_S, TELL_INTERVAL_S
from airflow_provider_eaco.provider.energy_record import record_of_job
from airflow_provider_eaco.provider.energy_text import energy_text
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog, events_of
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.nvml.machine import fake_machine
from tests.nvml.rig import Day, direct_meter
from tests.unit.provider.executor.lane_rig import START_S, LaneRig, Parts
from tests.unit.telemetry.rig import make_cluster


class Box:
    """A lane over a simulated node, or another meter, and the SQL store, on one clock; one task that can have
    a log.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        make_meter: Callable[[ManualClock], NodeMeter] | None = None,
    ) -> None:
        self.clock = ManualClock(START_S)
        self.engine = sqlite_store(folder / "store.db")
        self.database = database_on(self.engine, self.clock)
        cluster = make_cluster(folder / "state.json", self.clock)
        meter = NodeMeter(cluster, cluster, cluster, live=cluster)
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, ProfileBook()),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=meter if make_meter is None else make_meter(self.clock),
        )
        self.rig = LaneRig(monkeypatch, parts=parts)
        self.lane = self.rig.lane
        self.lane._monotonic = self.lane.energy._monotonic = self.clock.now_s
        self.told: list[tuple[str, int, Any]] = []
        monkeypatch.setattr(
            energy_book,
            "write_energy_note",
            lambda session, key, token, value: self.told.append((key.task_id, token, value)),
        )
        self.log = folder / "task.log"
        monkeypatch.setattr(task_log, "prepare", lambda path: folder / path)

    def begin(self) -> None:
        """Queue a task of all GPUs and let it start."""
        workload = self.rig.queue("j1", "train")
        workload.log_path = self.log.name
        self.rig.beat()
        assert self.rig.phase("j1") == "running"

    def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.rig.beat()
        self.lane.show(self.lane.energy.tell)

    def end(self) -> None:
        self.rig.become("j1", "success")
        self.rig.dispatcher.end("j1")
        self.pass_s(1)

    def stories(self) -> list[str]:
        with self.database.reading() as connection:
            found = events_of(connection, schema.event.c.job_id == "j1")
        return [event.text for event in found if event.event == "energy"]

    def log_lines(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line)["event"] for line in lines]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    made = Box(tmp_path, monkeypatch)
    yield made
    made.engine.dispose()


def test_a_running_task_is_told_what_it_has_used(box: Box) -> None:
    """Now and then, under its own lease, and more each time; the value says how it was found."""
    box.begin()
    box.pass_s(60)
    box.pass_s(60)
    (first, second) = box.told[-2:]
    token = box.rig.ledger.view().leases[0].token
    assert first[:2] == second[:2] == ("train", token)
    assert 0 < first[2]["energy_j"] < second[2]["energy_j"]
    assert (second[2]["method"], second[2]["partial"]) == ("simulated", False)
    count = len(box.told)
    box.pass_s(TELL_INTERVAL_S / 2)
    assert len(box.told) == count


def test_a_task_ends_with_a_record_in_its_log_and_its_story(box: Box) -> None:
    """Both say the same: joules, watts, stretch, who was beside it, and how it was found; once."""
    box.begin()
    box.pass_s(60)
    box.end()
    box.pass_s(60)
    (text,) = box.stories()
    assert "on average" in text
    assert "stretch unknown; beside nobody; from the device model of a simulated node" in text
    assert box.log_lines() == [f"Energy: {text}"]
    record = box.rig.services.energy.job_energy("j1")
    assert record is not None
    assert record.energy_j is not None
    assert record.energy_j > 0


def test_a_record_that_cannot_be_stored_now_is_stored_later(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store is away nothing is written and nothing is lost."""
    box.begin()
    box.pass_s(60)
    energy = box.rig.services.energy

    def away(part: object) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(energy, "bring_to", away)
        with pytest.raises(StoreUnavailableError):
            box.end()
        assert box.stories() == []
    box.pass_s(60)
    assert len(box.stories()) == 1


def test_a_run_that_ended_while_nobody_looked_is_a_lower_bound(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scheduler was killed, it ended, and the next one's meter has never seen it: story, log and record
    say so.
    """
    box.begin()
    box.pass_s(60)
    monkeypatch.setattr(box.rig.meter, "write_energy", lambda job_id, token, energy_log: False)
    box.end()
    (text,) = box.stories()
    assert text.startswith("at least ")
    assert box.log_lines() == [f"Energy: {text}"]
    record = box.rig.services.energy.job_energy("j1")
    assert record is not None
    assert record.partial
    assert text == energy_text(record_of_job(record, None, None))


def test_of_a_run_on_a_node_with_a_worker_the_node_tells_what_it_missed(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no meter of the scheduler has seen it says nothing."""
    box.begin()
    box.pass_s(60)
    monkeypatch.setattr(box.rig.meter, "write_energy", lambda job_id, token, energy_log: False)
    monkeypatch.setattr(box.rig.services.workers, "has_worker", lambda node: True)
    box.end()
    record = box.rig.services.energy.job_energy("j1")
    assert record is not None
    assert not record.partial


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Box, Day]]:
    """A box over two real GPUs, as far as the test library makes them, and what they draw."""
    machine, days = fake_machine(tmp_path, monkeypatch), []

    def make_meter(clock: ManualClock) -> NodeMeter:
        nvml = direct_meter(clock)
        days.append(Day(machine, clock, nvml))
        return NodeMeter(nvml, nvml, nvml, live=nvml)

    made = Box(tmp_path, monkeypatch, make_meter)
    yield made, days[0]
    made.engine.dispose()


def test_the_story_has_what_is_stored_in_the_end(real: tuple[Box, Day]) -> None:
    """It is told after the last look that belongs to the run: nothing comes in later, and nothing is told
    twice.
    """
    box, day = real
    box.begin()
    for _ in range(4):
        day.pass_s(1, gpu0=200, gpu1=100)
        box.pass_s(0)
    box.end()
    assert box.stories() == box.log_lines() == []
    # The second in which it ended, and one that nobody holds.
    day.pass_s(2, gpu0=200, gpu1=100)
    box.pass_s(0)
    (text,) = box.stories()
    box.pass_s(60)
    record = box.rig.services.energy.job_energy("j1")
    assert record is not None
    assert box.stories() == [text] == [energy_text(record_of_job(record, None, None))]
    assert box.log_lines() == [f"Energy: {text}"]


@pytest.mark.parametrize("way", ["no look follows", "the scheduler leaves"])
def test_a_story_does_not_wait_for_ever(way: str, real: tuple[Box, Day]) -> None:
    """Without a last look it is told a moment later, with what is known; a scheduler that leaves tells it
    first.
    """
    box, day = real
    box.begin()
    day.pass_s(2, gpu0=200, gpu1=100)
    box.end()
    assert box.stories() == []
    if way == "no look follows":
        # The heartbeat does not look by itself now.
        box.lane._inventory_at_s = box.clock.now_s()
        box.pass_s(LAST_LOOK_WAIT_S)
    else:
        box.lane.energy.close(at_once=True)
    assert len(box.stories()) == 1


def test_a_scheduler_that_leaves_stores_what_runs_have_used(real: tuple[Box, Day]) -> None:
    """To the last look, and the run goes on."""
    box, day = real
    box.begin()
    day.pass_s(11, gpu0=200, gpu1=100)
    box.lane.energy.close(at_once=True)
    record = box.rig.services.energy.job_energy("j1")
    assert record is not None
    # The first second was before its meter knew of it.
    assert (record.energy_j, record.seconds) == (pytest.approx(3000), 10.0)
    assert box.stories() == []


def test_a_log_that_cannot_be_written_keeps_the_record(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The story has it all the same."""
    box.begin()
    box.pass_s(60)

    def full(*words: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(task_log, "append", full)
    box.end()
    assert len(box.stories()) == 1
