"""Heartbeat, engine, SQL store and the NVML meter together, on a machine whose NVML answers from a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.core.model.decision import Finding
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.profile import PowerScope, ProfileBook
from airflow_provider_eaco.core.ports import EnergyMethod, LaunchOrder
from airflow_provider_eaco.provider.memory_return import BACK_WAIT_S
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.decisions import SqlDecisionLog, decisions_of, events_of
from airflow_provider_eaco.store.energy import SqlEnergyLog, energy_of
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from tests.contract.parts import ManualClock
from tests.databases import database_on, sqlite_store
from tests.nvml.machine import GIB, MIB, FakeMachine, fake_machine
from tests.nvml.rig import ListedProcesses, direct_meter, uuid_of
from tests.unit.provider.executor.lane_rig import START_S, LaneRig, Parts, make_workload


class GpuBox:
    """A machine with two V100, and the executor's GPU lane on it, on one clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(START_S)
        self.machine: FakeMachine = fake_machine(folder, monkeypatch)
        self.processes = ListedProcesses()
        self.engine = sqlite_store(folder / "store.db")
        self.database = database_on(self.engine, self.clock)
        self.meter: NvmlTelemetry = direct_meter(self.clock, self.processes)
        parts = Parts(
            ledger=SqlLedger(self.database),
            profiles=SqlProfileStore(self.database, ProfileBook()),
            decisions=SqlDecisionLog(self.database),
            planner=SqlPlannerLock(self.database),
            energy=SqlEnergyLog(self.database),
            meter=NodeMeter(self.meter, self.meter, self.meter, live=self.meter),
        )
        self.rig = LaneRig(monkeypatch, policy="eaco", parts=parts)
        self.rig.lane._monotonic = self.clock.now_s
        self.uuids = [uuid_of(self.machine, 0), uuid_of(self.machine, 1)]

    def queue(self, job_id: str, gpus: int = 2) -> None:
        request = GpuRequest(gpus, f"family-{job_id}", gpu_memory_mib=4096, share=Share.NEVER)
        self.rig.queue(job_id, f"task-{job_id}", request=request)

    def beat(self, seconds: int = 6, watts: float = 42.0) -> None:
        """Let time pass while each GPU draws so much, then run one heartbeat."""
        for _ in range(seconds):
            self.clock.advance(1)
            for values in self.machine.gpus.values():
                values["power_mw"] = round(watts * 1000)
                values["energy_mj"] += round(watts * 1000)
            self.machine.write()
            self.meter.read()
        self.rig.beat()

    def order(self, job_id: str) -> LaunchOrder | None:
        return next((order for order in self.rig.dispatcher.orders if order.job_id == job_id), None)

    def gpu_of(self, job_id: str) -> str:
        """Return the GPUs that the job was started with."""
        order = self.order(job_id)
        assert order is not None, f"{job_id} was not started"
        return order.environment["CUDA_VISIBLE_DEVICES"]

    def fail(self, job_id: str) -> None:
        """Let the task fail by itself and be retried."""
        self.rig.become(job_id, "up_for_retry")
        self.rig.dispatcher.end(job_id, 1)

    def findings(self) -> list[Finding]:
        """Return the most severe finding of each hold that stands."""
        with self.database.reading() as connection:
            standing = decisions_of(connection, schema.decision.c.ended_at.is_(None))
        return [each.decision.findings[0] for each in standing if each.decision.findings]

    def reasons(self) -> set[str]:
        """Return the reasons that stand."""
        return {finding.reason.code for finding in self.findings()}

    def texts(self) -> list[str]:
        """Return their sentences."""
        return [finding.text for finding in self.findings()]

    def events(self, job_id: str) -> dict[str, str]:
        with self.database.reading() as connection:
            found = events_of(connection, schema.event.c.job_id == job_id)
        return {event.event: event.text for event in found}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuBox]:
    box = GpuBox(tmp_path, monkeypatch)
    yield box
    box.engine.dispose()


def test_c42_a_task_gets_real_gpus_by_uuid_and_ends_with_a_record(box: GpuBox) -> None:
    """Admitted on the node that NVML shows, started with its UUIDs in PCI order, metered while it runs, and
    stored at its end: joules from the counters, and a profile of what it drew and needed.
    """
    box.queue("j1")
    box.beat()
    order = box.order("j1")
    assert order is not None
    assert order.environment["CUDA_VISIBLE_DEVICES"] == ",".join(box.uuids)
    assert order.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "EACO_SIMULATED_STATE" not in order.environment
    box.processes.owners.update({10: ("j1", order.token), 11: ("j1", order.token)})
    box.machine.processes = [(0, "c", 10, 3 * GIB, 50), (1, "c", 11, 2 * GIB, 50)]
    for index in (0, 1):
        box.machine.set(index, gpu_pct=50, memory_pct=30, used=3 * GIB)
    for _ in range(10):
        box.beat(10, watts=200)
    with box.database.reading() as connection:
        interim = energy_of(connection)["j1"]
    box.rig.become("j1", "success")
    box.rig.dispatcher.end("j1")
    box.machine.processes = []
    box.beat(1, watts=200)
    # It is told after the next look, which belongs to it, too.
    box.beat(1, watts=200)
    with box.database.reading() as connection:
        stored = energy_of(connection)["j1"]
    # The second in which it was granted its GPUs is nobody's, the one in which its lease fell is its own.
    assert stored.energy_j == pytest.approx(2 * 200 * 101)
    assert set(stored.per_gpu_j) == set(box.uuids)
    assert (stored.methods, stored.partial) == ({EnergyMethod.COUNTER}, False)
    assert interim.energy_j is not None
    assert 0 < interim.energy_j < 2 * 200 * 100
    assert box.events("j1")["energy"].startswith("40400 J in 1 min 41 s; 400 W on average, 400 W at most")
    learned = box.rig.services.profiles.book().solo_of("family-j1", "V100", 2)
    assert learned is not None
    assert (learned.power_w, learned.scope) == (pytest.approx(400), PowerScope.BOARD)
    assert (learned.utilisation_pct, learned.memory_peak_mib) == (50, 3 * 1024)
    assert box.rig.ledger.view().leases == ()


@pytest.mark.parametrize("what", ["process", "memory"])
def test_c34_strangers_keep_a_gpu_until_they_leave(what: str, box: GpuBox) -> None:
    """A job that needs the GPU waits with ``foreign_use``, one that fits beside it runs, and who waited
    starts once the stranger is gone. The reason says how much, where, and by whom as far as it is known.
    """
    if what == "process":
        box.machine.processes = [(0, "c", 77, 300 * MIB, 10)]
        box.processes.users[77] = "alice"
    box.machine.set(0, used=300 * MIB if what == "process" else 9 * GIB)
    box.queue("wide")
    box.queue("narrow", gpus=1)
    box.beat()
    assert "foreign_use" in box.reasons()
    who = "300 MiB on node n1, processes: PID 77 (alice)"
    assert any((who if what == "process" else "processes: unknown") in text for text in box.texts())
    assert box.order("wide") is None
    narrow = box.order("narrow")
    assert narrow is not None
    assert narrow.environment["CUDA_VISIBLE_DEVICES"] == box.uuids[1]
    box.rig.become("narrow", "success")
    box.rig.dispatcher.end("narrow")
    box.machine.processes = []
    box.machine.set(0, used=3 * MIB)
    box.beat()
    assert box.order("wide") is not None


@pytest.mark.parametrize("xids", [(79,), ()], ids=["Xid 79", "no Xid"])
def test_c50_a_lost_gpu_is_drained_and_what_ran_there_goes_on_elsewhere(
    xids: tuple[int, ...], box: GpuBox
) -> None:
    """Who ran there is left alone until it fails by itself, and its story says that the GPU failed; its retry
    starts on the other one. Who needs both waits with ``gpu_unhealthy``, and starts without a restart once
    the lost one answers again.
    """
    box.queue("j1", gpus=1)
    box.beat()
    lost = box.gpu_of("j1")
    box.machine.xids = [(box.uuids.index(lost), xid) for xid in xids]
    box.machine.set(box.uuids.index(lost), lost=1)
    box.beat()
    assert (box.rig.phase("j1"), box.rig.dispatcher.killed) == ("running", [])
    box.fail("j1")
    box.queue("retry", gpus=1)
    box.beat()
    assert box.events("j1")["released"].startswith("failed after 0 of ")
    assert box.events("j1")["released"].endswith(
        f"; {lost} is out of order, which need not be the task's fault"
    )
    assert box.gpu_of("retry") == next(uuid for uuid in box.uuids if uuid != lost)
    box.queue("wide")
    box.beat()
    assert "gpu_unhealthy" in box.reasons()
    box.rig.become("retry", "success")
    box.rig.dispatcher.end("retry")
    box.beat()
    assert box.order("wide") is None
    box.machine.set(box.uuids.index(lost), lost=None)
    box.beat(40)
    assert box.order("wide") is not None


def test_c50_a_task_that_dies_with_its_gpu_is_told_from_one_that_fails(box: GpuBox) -> None:
    """Its story says so though nobody has stored yet that the GPU is lost."""
    box.queue("j1", gpus=1)
    box.beat()
    lost = box.gpu_of("j1")
    box.machine.set(box.uuids.index(lost), lost=1)
    box.fail("j1")
    box.beat(1)
    assert f"{lost} is out of order" in box.events("j1")["released"]


def test_c50_an_xid_of_the_program_is_its_task_s_alone(box: GpuBox, caplog: pytest.LogCaptureFixture) -> None:
    """The log blames the task that was there; its neighbour runs on, and the GPU takes the next task."""
    box.queue("j1", gpus=1)
    box.queue("j2", gpus=1)
    box.beat()
    box.machine.xids = [(box.uuids.index(box.gpu_of("j1")), 94)]
    box.beat(1)
    told = [record.getMessage() for record in caplog.records if "Xid" in record.getMessage()]
    assert [text.partition("held_by=")[2] for text in told] == ["j1"]
    box.fail("j1")
    box.queue("j3", gpus=1)
    box.beat()
    assert "out of order" not in box.events("j1")["released"]
    assert box.gpu_of("j3") == box.gpu_of("j1")
    assert (box.rig.phase("j2"), box.rig.dispatcher.killed) == ("running", [])


def test_c49_nvml_that_is_gone_holds_tasks_and_touches_none(box: GpuBox) -> None:
    """What runs goes on, only tasks without a GPU start, and all is as before once NVML answers."""
    box.queue("j1", gpus=1)
    box.beat()
    box.machine.errors = {"nvmlDeviceGetPowerUsage": 18, "nvmlInitWithFlags": 18}
    box.queue("j2", gpus=1)
    box.beat()
    assert box.rig.phase("j1") == "running"
    assert box.rig.dispatcher.killed == []
    assert (box.reasons(), box.order("j2")) == ({"gpu_unhealthy"}, None)
    assert box.rig.plain.start(make_workload("j3", "task-j3"))
    assert box.order("j3") is not None
    box.machine.errors = {}
    box.beat(12)
    assert box.order("j2") is not None


def test_c51_a_gpu_that_is_gone_before_the_start_is_given_back(box: GpuBox) -> None:
    """A granted task whose GPU was lost in between is not started; it waits again and starts later."""
    box.queue("j1")
    box.rig.dispatcher.is_ready = False
    box.beat()
    assert box.rig.phase("j1") == "leased"
    box.machine.set(1, lost=1)
    box.rig.dispatcher.is_ready = True
    box.beat()
    assert box.order("j1") is None
    assert box.rig.phase("j1") == "waiting"
    box.machine.set(1, lost=None)
    box.beat(40)
    assert box.rig.phase("j1") == "running"


@pytest.mark.parametrize("what", ["process", "memory"])
def test_c34_an_outsider_between_admission_and_start_is_seen(what: str, box: GpuBox) -> None:
    """The granted task gives its GPUs back before its start: no crash, no retry used; it starts when the
    outsider has left.
    """
    box.queue("j1")
    box.rig.dispatcher.is_ready = False
    box.beat()
    assert box.rig.phase("j1") == "leased"
    box.rig.dispatcher.is_ready = True
    if what == "process":
        box.machine.processes = [(0, "c", 77, 300 * MIB, 10)]
    box.machine.set(0, used=300 * MIB if what == "process" else 9 * GIB)
    box.beat()
    assert (box.order("j1"), box.rig.phase("j1")) == (None, "waiting")
    assert box.rig.host.failed == []
    box.machine.processes = []
    box.machine.set(0, used=3 * MIB)
    box.beat()
    assert box.rig.phase("j1") == "running"


def test_c28_an_orphan_of_a_killed_task_is_shown_by_pid_and_keeps_its_gpu(box: GpuBox) -> None:
    """The task is killed -9 and a process that nobody can end holds 9 GiB on: the lease falls within its
    time, the GPU is looked at before it is granted or started on again, and who waits is told node, PID and
    user of the orphan; its GPU is free once the orphan is gone.
    """
    box.rig.lane.memory._returns._monotonic = box.clock.now_s
    box.queue("j1")
    box.beat()
    order = box.order("j1")
    assert order is not None
    box.processes.owners[4711], box.processes.users[4711] = ("j1", order.token), "airflow"
    box.machine.processes = [(0, "c", 4711, 9 * GIB, 0)]
    box.machine.set(0, used=9 * GIB)
    box.beat()
    box.rig.become("j1", "failed")
    box.rig.dispatcher.end("j1", exit_code=-9)
    box.queue("j2")
    killed_s = box.clock.now_s()
    while box.rig.phase("j1") == "running":
        box.beat()
        assert box.order("j2") is None
    assert box.clock.now_s() - killed_s <= BACK_WAIT_S + 12, "within its time, and two heartbeats"
    for _ in range(10):
        box.beat()
        assert box.order("j2") is None, "its GPU was looked at, and is not free"
    assert box.reasons() == {"foreign_use"}
    (told,) = box.texts()
    assert f"{9 * 1024} MiB on node n1, processes: PID 4711 (airflow)" in told
    box.machine.processes = []
    box.machine.set(0, used=3 * MIB)
    box.beat()
    assert box.order("j2") is not None


def test_a_mig_partition_takes_one_job(box: GpuBox) -> None:
    """Partitions are granted like GPUs and never shared; a job of two GPUs is told that there are none."""
    part = {"name": "NVIDIA A100 MIG 3g.20gb", "total": 20 * GIB, "used": MIB, "reserved": 0, "slices": 3}
    for index in (0, 1):
        box.machine.gpus[index].update(mig=1)
        box.machine.partitions[index, 0] = {"uuid": f"MIG-{index}", **part}
    box.machine.write()
    for number in (1, 2, 3):
        request = GpuRequest(1, "light", gpu_memory_mib=1024, share=Share.ALWAYS)
        box.rig.queue(f"j{number}", f"task-{number}", request=request)
    box.queue("wide")
    box.beat()
    visible = {order.job_id: order.environment["CUDA_VISIBLE_DEVICES"] for order in box.rig.dispatcher.orders}
    assert visible == {"j1": "MIG-0", "j2": "MIG-1"}
    assert box.rig.phase("j3") == "waiting"
    assert [task for task, _ in box.rig.host.failed] == ["task-wide"]
