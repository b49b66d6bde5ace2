"""A family's first run, alone, is what lets its next runs share: heartbeat, SQL store and simulated node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.core.model.job import GpuRequest
from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook, SoloProfile
from airflow_provider_eaco.provider.progress_record import ProgressRecord, UnitReport
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, SimulatedDevice, simulated_node
from airflow_provider_eaco.telemetry.truth import TruthTable, parse_truth
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.unit.provider.executor.lane_rig import START_S, LaneRig, Parts

# A light family: 600 s a unit at 20 % of the two GPUs.
ROW = {"families": ["light"], "gpu_model": "V100", "gpu_count": 2, "unit_s": 600, "utilisation_pct": 20}
UNITS = 3


class Trainings:
    """Tasks that train on the simulated node; the test is their processes and Airflow's task state store."""

    def __init__(self, rig: LaneRig, state: Path, clock: ManualClock) -> None:
        self.rig = rig
        self._state = state
        self._clock = clock
        self._records: dict[str, ProgressRecord] = {}

    def queue(self, job_id: str, gpu_memory_mib: int | None) -> None:
        request = GpuRequest(gpus=2, family="light", gpu_memory_mib=gpu_memory_mib)
        self.rig.queue(job_id, f"task-{job_id}", request=request)

    def train(self, job_id: str) -> None:
        """Do one unit, save a checkpoint, report."""
        lease = self.lease(job_id)
        record = self._records.setdefault(job_id, ProgressRecord(1, lease.token, "epoch", UNITS))
        device = SimulatedDevice(
            self._state, job_id, lease.token, clock=self._clock.now_s, sleep=self._clock.advance
        )
        device.begin_unit()
        elapsed_s = device.wait_unit()
        assert elapsed_s is not None
        record.recent.append(UnitReport(record.units_done, elapsed_s, lease.set_version, lease.set_version))
        record.units_done += 1
        record.checkpoint, record.checkpoint_units, record.can_yield = "/ckpt", record.units_done, True
        self.rig.progress[self.rig.facts[job_id].key] = record.as_json()

    def end(self, job_id: str) -> None:
        self.rig.become(job_id, "success")
        self.rig.dispatcher.end(job_id)

    def lease(self, job_id: str) -> Any:
        return next(lease for lease in self.rig.ledger.view().leases if lease.job_id == job_id)

    def waits(self, job_id: str) -> bool:
        return self.rig.phase(job_id) == "waiting"


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainings]:
    clock, state = ManualClock(START_S), tmp_path / "state.json"
    engine = sqlite_store(tmp_path / "store.db")
    database = database_on(engine, clock)
    cluster = SimulatedCluster(
        state,
        [simulated_node("n1", 2)],
        TruthTable(ProfileBook(), parse_truth([ROW])),
        time_scale=600.0,
        clock=clock.now_s,
    )
    parts = Parts(
        ledger=SqlLedger(database),
        profiles=SqlProfileStore(database, ProfileBook()),
        decisions=SqlDecisionLog(database),
        planner=SqlPlannerLock(database),
        energy=SqlEnergyLog(database),
        meter=NodeMeter(cluster, cluster, cluster, str(state)),
    )
    yield Trainings(LaneRig(monkeypatch, policy="eaco", parts=parts), state, clock)
    engine.dispose()


def first_run(trainings: Trainings) -> SoloProfile | None:
    """Let the first task of the family run alone from start to end, while a second one waits."""
    trainings.queue("first", 4000)
    trainings.rig.beat()
    trainings.queue("second", 4000)
    for _ in range(UNITS):
        trainings.rig.beat()
        assert trainings.waits("second")
        trainings.train("first")
    trainings.end("first")
    trainings.rig.beat()
    book: ProfileBook = trainings.rig.services.profiles.book()
    return book.solo_of("light", "V100", 2)


def test_a_first_run_gives_a_whole_profile(trainings: Trainings) -> None:
    """What a run alone showed is known afterwards: pace, draw, use, memory, length, checkpoints."""
    learned = first_run(trainings)
    assert learned is not None
    assert learned.unit_s == pytest.approx(600)
    assert learned.utilisation_pct == pytest.approx(20)
    # Two of eight V100 at 20 %: (392 + 158.5 * sqrt(20)) / 4.
    assert learned.power_w == pytest.approx((392 + 158.5 * 20**0.5) / 4)
    assert (learned.memory_peak_mib, learned.units_total, learned.samples) == (4000, UNITS, UNITS)
    assert (learned.checkpoints, learned.scope) == (True, PowerScope.NODE)


def test_a_family_that_ran_once_shares(trainings: Trainings) -> None:
    """The second task gets the GPUs of the first; a third joins it there, in trial, and is confirmed."""
    first_run(trainings)
    assert trainings.lease("second").state is LeaseState.EXCLUSIVE
    trainings.rig.beat()
    trainings.train("second")
    trainings.queue("third", 4000)
    trainings.rig.beat()
    leases = {job_id: trainings.lease(job_id) for job_id in ("second", "third")}
    assert leases["second"].placement == leases["third"].placement
    assert {lease.state for lease in leases.values()} == {LeaseState.TRIAL}


def test_a_task_without_declared_memory_shares_by_what_was_seen(trainings: Trainings) -> None:
    """The peak of the first run counts for a later task of the family that names no memory."""
    first_run(trainings)
    trainings.queue("third", None)
    trainings.rig.beat()
    assert trainings.lease("third").placement == trainings.lease("second").placement


def test_a_second_family_without_a_run_waits(trainings: Trainings) -> None:
    """What one family taught says nothing about another: it waits for GPUs of its own."""
    first_run(trainings)
    trainings.rig.queue("other", "task-other", request=GpuRequest(2, "unknown", gpu_memory_mib=1000))
    trainings.rig.beat()
    assert trainings.waits("other")
