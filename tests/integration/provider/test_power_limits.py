"""Power limits from the policy's plan to the boards and back: heartbeat, engine, SQL store and the real
pynvml over a library that answers from a file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits, Prices
from airflow_provider_eaco.core.model.profile import PowerLevel, ProfileBook, SoloProfile
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.provider.power_limits import AppliedLimits
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog, events_of
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.telemetry.limit_process import LimitProcess
from tests.builders import make_job
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import ListedProcesses, direct_meter, uuid_of
from tests.unit.provider.executor.lane_rig import START_S, LaneRig, Parts

DEADLINE_S = 60.0
FAMILY = "net"
# Held to 200 W a board it draws half and takes 4 % longer.
LEVEL = PowerLevel(200.0, 1.04, 0.5)
SET_TO = "held to 200 W a board, of 300 W"


def profiles(level: PowerLevel = LEVEL) -> ProfileBook:
    solo = SoloProfile(
        FAMILY, "V100", 1, unit_s=100.0, samples=5, power_w=280.0, utilisation_pct=80.0, units_total=40,
        levels=(level,),
    )  # fmt: skip
    return ProfileBook({solo.key: solo})


class LimitingRig(LaneRig):
    """A lane whose pool applies power limits; one heartbeat more does what is to be done about them."""

    def __init__(
        self, book: Path, clock: ManualClock, pool: dict[str, Any], *rest: Any, **named: Any
    ) -> None:
        self._book, self._clock, self._pool = book, clock, pool
        super().__init__(*rest, **named)

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        chosen = replace(pool, prices=Prices.GREEDY, mean_stretch=1.2, **self._pool)
        self.limits = AppliedLimits(
            LimitProcess(self._book), (chosen,), lambda _: chosen, self.decisions, self._clock.now_s
        )
        self.chosen = chosen
        loop = AdmissionLoop(
            self.ledger,
            parts.profiles,
            self.decisions,
            parts.planner,
            pools=lambda: [self.seen()],
            owner="1@here",
        )
        services = super()._services(parts, chosen)
        return replace(services, admission=self.limits.heard(loop, self.ledger.view), limits=self.limits)

    def seen(self) -> PoolState:
        """Return the pool as a plan sees it now."""
        (state,) = self.limits.told([PoolState(self.chosen, {"eaco": AirflowPool(None)})])
        return state

    def beat(self) -> None:
        super().beat()
        own = {group.token for group in self.lane.groups}
        self.limits.step(self.ledger.view(), own)


class PowerBox:
    """A machine with two V100 of 300 W and a scheduler on it; :meth:`restart` is the next scheduler."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.clock = ManualClock(START_S)
        self.machine: FakeMachine = fake_machine(folder, monkeypatch)
        self.engine = sqlite_store(folder / "store.db")
        self.database = database_on(self.engine, self.clock)
        self.uuids = [uuid_of(self.machine, 0), uuid_of(self.machine, 1)]
        self.level = LEVEL
        self.rig = self.start()

    def start(self, **pool: Any) -> LimitingRig:
        meter = direct_meter(self.clock, ListedProcesses())
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, profiles(self.level)),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=NodeMeter(meter, meter, meter, live=meter),
        )
        book = self.folder / "eaco" / "power_limits.json"
        pool = {"power_limits": PowerLimits.APPLY, **pool}
        rig = LimitingRig(book, self.clock, pool, self._monkeypatch, policy="frontier", parts=parts)
        rig.lane._monotonic = self.clock.now_s
        return rig

    def queue(self, job_id: str) -> None:
        request = GpuRequest(1, FAMILY, gpu_memory_mib=4096, max_stretch=1.5, share=Share.NEVER)
        self.rig.queue(job_id, f"task-{job_id}", request=request)

    def until(self, holds: Any) -> None:
        """Run heartbeats until it holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline_s, (self.machine.limits_set(), self.rig.seen())
            self.beat()
            time.sleep(0.02)

    def beat(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.rig.beat()

    def settle(self) -> None:
        """Run heartbeats until nothing is under way, and one more to see what follows."""
        self.until(lambda: not self.rig.limits._limiter.is_busy)
        self.beat()
        self.until(lambda: not self.rig.limits._limiter.is_busy)

    def end(self, job_id: str) -> None:
        self.rig.become(job_id, "success")
        self.rig.dispatcher.end(job_id)

    def index_of(self, job_id: str) -> int:
        leases = self.rig.ledger.view().leases
        (lease,) = [lease for lease in leases if lease.job_id == job_id]
        return self.uuids.index(lease.placement.gpu_uuids[0])

    def stories(self, job_id: str) -> list[str]:
        with self.database.reading() as connection:
            found = events_of(connection, schema.event.c.job_id == job_id)
        return [event.text for event in found if event.event == "power_limit"]

    def setting(self) -> PowerLimits:
        return self.rig.seen().settings.power_limits


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerBox]:
    box = PowerBox(tmp_path, monkeypatch)
    yield box
    box.rig.limits.close(DEADLINE_S)
    box.engine.dispose()


def limited(box: PowerBox, job_id: str = "j1") -> int:
    """Let a task run until its GPU is held to the level; return the GPU's index."""
    box.queue(job_id)
    box.until(lambda: any(watts == 200 for _, watts in box.machine.limits_set()))
    box.settle()
    index = box.index_of(job_id)
    assert box.machine.limit_w(index) == 200
    return index


def test_a_planned_limit_is_set_seen_by_the_next_plan_told_and_lifted(box: PowerBox) -> None:
    """The board of the task alone is limited, once; it has its own limit again when the task has ended."""
    index = limited(box)
    set_before = box.machine.limits_set()
    assert box.machine.limit_w(1 - index) == 300
    assert box.setting() is PowerLimits.APPLY
    assert list(box.rig.seen().power_limits_w.values()) == [200]
    assert box.stories("j1") == [SET_TO]
    box.settle()
    assert box.machine.limits_set() == set_before
    box.end("j1")
    box.until(lambda: box.machine.limit_w(index) == 300)
    box.settle()
    assert box.machine.limits_set() == [*set_before, (index, 300)]
    assert not box.rig.seen().power_limits_w
    assert box.stories("j1") == [SET_TO]


def test_without_permission_the_pool_advises_and_says_so_once(
    box: PowerBox, caplog: pytest.LogCaptureFixture
) -> None:
    """No plan counts a level, the cause is in log and story, and tasks run as ever."""
    box.machine.errors = {"nvmlDeviceSetPowerManagementLimit": 4}
    box.machine.write()
    with caplog.at_level(logging.WARNING):
        box.queue("j1")
        box.until(lambda: box.stories("j1"))
        box.settle()
    assert box.rig.phase("j1") == "running"
    assert box.setting() is PowerLimits.ADVISE
    assert box.machine.limits_set() == []
    (text,) = box.stories("j1")
    assert text.startswith("no limit is set, it is only advised: GPU-")
    assert "no permission to set power limits" in text
    said = [each.getMessage() for each in caplog.records if "only advised" in each.getMessage()]
    assert len(said) == 1
    box.rig = box.start()
    (lease,) = box.rig.ledger.view().leases

    def told_again() -> bool:
        """Run the new scheduler's step as if it had adopted the task."""
        box.rig.limits.step(box.rig.ledger.view(), {lease.token})
        return box.rig.limits._permits.why_not("eaco") is not None

    box.until(told_again)
    told_again()
    assert (box.setting(), len(box.stories("j1"))) == (PowerLimits.ADVISE, 1)
    box.machine.errors = {}
    box.machine.write()
    box.clock.advance(700)
    box.queue("j2")
    box.until(lambda: box.setting() is PowerLimits.APPLY)
    box.until(lambda: 200 in {watts for _, watts in box.machine.limits_set()})


def test_no_plan_counts_a_level_before_it_is_known_that_it_can_be_set(box: PowerBox) -> None:
    """The first plans advise; whether a board takes a limit is asked first."""
    box.queue("j1")
    box.beat()
    assert box.setting() is PowerLimits.ADVISE
    assert 200 not in {watts for _, watts in box.machine.limits_set()}


def test_a_level_that_the_board_does_not_take_makes_the_pool_advise(box: PowerBox) -> None:
    """Nothing is set, and the pool says why."""
    box.machine.gpus[0]["limit_min_mw"] = box.machine.gpus[1]["limit_min_mw"] = 210_000
    box.machine.write()
    box.queue("j1")
    box.until(lambda: box.stories("j1"))
    box.settle()
    text = "no limit is set, it is only advised: 200 W is outside the 210 to 300 W that the board takes"
    assert box.stories("j1") == [text]
    assert box.setting() is PowerLimits.ADVISE
    assert {watts for _, watts in box.machine.limits_set()} == {300}


@pytest.mark.parametrize("held", [True, False], ids=["held", "ended meanwhile"])
def test_after_a_crash_the_next_scheduler_puts_back_what_nobody_holds(box: PowerBox, held: bool) -> None:
    """What is held stays limited, and is not told again; nothing of the old process is needed for it."""
    index = limited(box)
    if not held:
        (lease,) = box.rig.ledger.view().leases
        box.rig.ledger.release(lease.token, JobPhase.FINISHED)
    box.rig = box.start()
    box.beat()
    box.settle()
    assert box.machine.limit_w(index) == (200 if held else 300)
    assert box.stories("j1") == [SET_TO]
    assert list(box.rig.seen().power_limits_w.values()) == ([200] if held else [])


@pytest.mark.parametrize(
    "pool", [{"power_limits": PowerLimits.ADVISE}, {"power_limits": PowerLimits.OFF}], ids=["advise", "off"]
)
def test_a_pool_that_leaves_apply_has_its_limits_lifted(box: PowerBox, pool: dict[str, Any]) -> None:
    """The task runs on, at full power."""
    index = limited(box)
    box.rig = box.start(**pool)
    box.until(lambda: box.machine.limit_w(index) == 300)
    box.settle()
    assert box.rig.limits.is_idle


def test_a_scheduler_that_leaves_lifts_its_limits(box: PowerBox) -> None:
    """Tasks run on without it, and nobody would lift them."""
    index = limited(box)
    box.rig.limits.close(DEADLINE_S)
    assert box.machine.limit_w(index) == 300


def test_units_under_a_limit_teach_nothing_about_full_power(box: PowerBox) -> None:
    """A unit during which a limit was there is marked; it counts for the run and for no profile."""
    box.beat()
    limited(box)
    key = next(iter(box.rig.lane.groups)).key
    (lease,) = box.rig.ledger.view().leases
    version = lease.set_version

    def report(units: int) -> None:
        box.rig.progress[key] = {
            "v": 1, "token": lease.token, "units_done": units, "units_total": 40, "can_yield": True,
            "try_number": 1, "recent": [[index, 104.0, version, version] for index in range(units)],
        }  # fmt: skip
        box.beat(104)

    report(1)
    first = box.rig.ledger.record_of("j1")
    assert first.observation.limited
    assert first.job.progress.solo_units == 0
    assert first.observation.units == 1


def test_who_joins_a_set_under_a_limit_is_told_of_it(box: PowerBox) -> None:
    """The limit stays whoever comes; each of its holders has it in its story once."""
    index = limited(box)
    ledger = box.rig.ledger
    view = ledger.view()
    (first,) = view.leases
    ledger.add_waiting(make_job("j2", FAMILY), "1@here")
    job = next(record.job for record in ledger.view().jobs if record.job.job_id == "j2")
    launch = Launch(job, first.placement, ("j1",))
    second = ledger.grant(launch, LeaseState.TRIAL, view.gpu_versions, "1@here")
    for _ in range(2):
        box.rig.limits.step(ledger.view(), {first.token, second.token})
    assert (box.stories("j1"), box.stories("j2")) == ([SET_TO], [SET_TO])
    assert box.machine.limit_w(index) == 200


def test_a_limit_that_somebody_else_changes_is_theirs(box: PowerBox) -> None:
    """It is seen within a minute, told, and counted by no plan; the next limit keeps theirs in mind."""
    index = limited(box)
    box.machine.put_limit(index, 250)
    box.clock.advance(61)
    box.until(lambda: box.stories("j1")[-1] == "no longer held to 200 W a board")
    box.until(lambda: box.stories("j1")[-1] == "held to 200 W a board, of 250 W")
