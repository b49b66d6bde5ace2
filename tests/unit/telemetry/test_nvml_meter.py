"""Real GPUs as a meter, on virtual time: who is there, how they are, and who uses them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import pytest

from airflow_provider_eaco.core.energy.accounting import DeviceLook
from airflow_provider_eaco.core.model.gpu import ForeignProcess, GpuHealth, GpuReading
from airflow_provider_eaco.telemetry.nvml import STALE_S, NvmlTelemetry
from airflow_provider_eaco.telemetry.nvml_attribution import UNLEASED_S
from tests.contract.parts import ManualClock
from tests.nvml.machine import GIB, MIB, FakeMachine
from tests.nvml.rig import Day, ListedProcesses, Run, direct_meter, holder, uuid_of


def health_of(meter: NvmlTelemetry) -> list[GpuHealth]:
    return [gpu.health for node in meter.inventory() for gpu in node.gpus]


@pytest.fixture
def day(machine: FakeMachine, clock: ManualClock, meter: NvmlTelemetry) -> Day:
    return Day(machine, clock, meter)


def test_c42_gpus_are_named_by_uuid_and_model(machine: FakeMachine, meter: NvmlTelemetry) -> None:
    """A node has its GPUs in PCI order, under UUIDs, with the model's word and the driver's reserve."""
    (node,) = meter.inventory()
    assert (node.name, node.time_scale) == ("n1", 1.0)
    assert node.host_memory_mib is not None
    assert [(gpu.uuid, gpu.index, gpu.model) for gpu in node.gpus] == [
        (uuid_of(machine, 0), 0, "V100"),
        (uuid_of(machine, 1), 1, "V100"),
    ]
    assert node.gpus[0].memory_usable_mib == 16 * 1024 - 300


@pytest.mark.parametrize(
    ("board", "model"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA L40S", "L40S"), ("Tesla V100-PCIE-16GB", "V100-PCIE-16GB")],
)
def test_a_board_without_a_word_of_ours_keeps_its_own(
    board: str, model: str, machine: FakeMachine, clock: ManualClock
) -> None:
    """No board is taken for another one."""
    machine.set(0, name=board)
    assert direct_meter(clock).inventory()[0].gpus[0].model == model


def test_c50_a_lost_gpu_is_drained_and_returns_without_a_restart(
    machine: FakeMachine, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays in the inventory, unhealthy, its neighbour goes on; it is healthy once it answers again."""
    machine.set(0, lost=1)
    day.pass_s(2)
    assert health_of(day.meter) == [GpuHealth.UNHEALTHY, GpuHealth.HEALTHY]
    assert day.meter.read()[0] == GpuReading(uuid_of(machine, 0), day.clock.now_s())
    machine.set(0, lost=None)
    day.pass_s(30)
    assert health_of(day.meter) == [GpuHealth.HEALTHY, GpuHealth.HEALTHY]
    assert sum("takes no new work" in record.message for record in caplog.records) == 2


def test_c50_an_xid_is_blamed_on_whom_it_concerns(
    machine: FakeMachine, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """Xid 94 names the task and drains nothing; Xid 48 drains the GPU and names who is there."""
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    machine.xids = [(0, 94)]
    day.pass_s(1)
    assert health_of(day.meter)[0] is GpuHealth.HEALTHY
    machine.xids.append((0, 48))
    day.pass_s(1)
    assert health_of(day.meter)[0] is GpuHealth.UNHEALTHY
    told = [record.getMessage() for record in caplog.records if "Xid" in record.getMessage()]
    assert "Xid 94, the program's: gpu=" in told[0]
    assert "held_by=j1" in told[0]
    assert "Xid 48, the hardware's" in told[1]


def test_c49_nvml_that_is_gone_leaves_gpus_unknown_until_it_is_back(
    machine: FakeMachine, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """A replaced driver: the GPUs stay listed with unknown health and nothing known, each cause told once;
    later all is as before, and the energy in between is counted by the counter.
    """
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    day.pass_s(2, gpu0=200)
    machine.errors = {"nvmlDeviceGetPowerUsage": 18, "nvmlInitWithFlags": 18}
    day.pass_s(5, gpu0=200)
    assert health_of(day.meter) == [GpuHealth.UNKNOWN] * 2
    assert [reading.power_w for reading in day.meter.read()] == [None, None]
    machine.errors = {}
    day.pass_s(2, gpu0=200)
    assert health_of(day.meter) == [GpuHealth.HEALTHY] * 2
    energy = day.meter.run_energy("j1", 1)
    assert energy is not None
    assert (energy.energy_j, energy.partial) == (pytest.approx(200 * 8), False)
    told = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert len(told) == len(set(told)) == 2


def test_a_sample_that_is_too_old_says_nothing(meter: NvmlTelemetry, clock: ManualClock) -> None:
    """A sampler that hangs leaves unknown values behind, not old ones."""
    meter._source.refresh = lambda: None  # type: ignore[method-assign]
    clock.advance(STALE_S)
    assert meter.read()[0].power_w == 42.0
    clock.advance(0.1)
    assert meter.read()[0] == GpuReading(meter.read()[0].uuid, clock.now_s())
    assert health_of(meter) == [GpuHealth.UNKNOWN] * 2


def test_before_the_first_sample_there_is_no_node(machine: FakeMachine, clock: ManualClock) -> None:
    """A machine whose NVML never worked offers nothing; it is there as soon as NVML works."""
    machine.init_code = 9
    machine.write()
    meter = direct_meter(clock, first_wait_s=0.0)
    assert (meter.inventory(), meter.read()) == ([], [])
    machine.init_code = 0
    machine.write()
    assert len(meter.read()) == 2


def test_c45_c47_what_a_card_does_not_tell_stays_unknown(
    machine: FakeMachine, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """No utilisation is not idle, no memory size is not 0; each is told once per card (C46)."""
    caplog.set_level(logging.INFO)
    machine.set(0, gpu_pct=None, total=None, power_mw=None)
    day.pass_s(40)
    reading = day.meter.read()[0]
    assert (reading.utilisation_pct, reading.memory_used_mib, reading.power_w) == (None, None, None)
    assert health_of(day.meter)[0] is GpuHealth.HEALTHY
    assert sum("Not known of a GPU" in record.message for record in caplog.records) == 1
    assert direct_meter(day.clock).inventory()[0].gpus[0].memory_total_mib is None


# -- who uses them


def test_strangers_are_seen_before_a_grant(machine: FakeMachine, day: Day) -> None:
    """Foreign processes and memory of a GPU that we do not hold are in its reading, and go with them."""
    machine.processes = [(0, "c", 77, 9 * GIB, 80)]
    machine.set(0, used=9 * GIB + 3 * MIB)
    day.pass_s(1)
    first, second = day.meter.read()
    assert (first.foreign_memory_mib, first.foreign_processes) == (9 * 1024 + 3, 1)
    assert (second.foreign_memory_mib, second.foreign_processes) == (0, 0)
    machine.processes = []
    machine.set(0, used=3 * MIB)
    day.pass_s(1)
    assert day.meter.read()[0].foreign_memory_mib == 0


def test_a_stranger_beside_a_task_is_told_once(
    machine: FakeMachine, processes: ListedProcesses, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """Who comes later is seen, named once, and the task does not pay for its work."""
    day.pass_s(20, gpu0=50)
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    processes.owners[10] = ("j1", 1)
    machine.processes = [(0, "c", 10, GIB, 25)]
    day.pass_s(3, gpu0=50)
    machine.processes.append((0, "c", 77, GIB, 75))
    day.pass_s(10, gpu0=200)
    energy = day.meter.run_energy("j1", 1)
    assert energy is not None
    # Of the last ten seconds the idle draw and a quarter of what is above it.
    assert energy.energy_j == pytest.approx(2 * 50 + 10 * (50 + 150 / 4))
    assert day.meter.device_energy()[uuid_of(machine, 0)].strangers_j == pytest.approx(10 * 150 * 3 / 4)
    assert sum("Somebody else computes" in record.message for record in caplog.records) == 1


def test_c43_a_task_on_a_gpu_that_it_was_not_granted_is_named(
    machine: FakeMachine, processes: ListedProcesses, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """The other GPU is not free for others while it is used, and the log names the task."""
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    processes.owners[10] = ("j1", 1)
    machine.processes = [(1, "c", 10, GIB, 25)]
    day.pass_s(3)
    assert day.meter.read()[1].foreign_processes == 1
    told = [record.getMessage() for record in caplog.records if "was not granted" in record.message]
    assert told == [f"A task uses a GPU that it was not granted: gpu={uuid_of(machine, 1)} job_id=j1"]


def test_a_gpu_that_heat_slows_down_is_told(
    machine: FakeMachine, day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    """With who is there: no neighbour is to blame; not for the ordinary power limit, not again at once."""
    machine.set(0, clocks_event=0x4)
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    day.pass_s(2)
    machine.set(0, clocks_event=0x4 | 0x40, temperature=91)
    day.pass_s(5)
    told = [record.getMessage() for record in caplog.records if "slowed down" in record.message]
    assert len(told) == 1
    assert told[0].endswith(
        "by=hardware temperature temperature_c=91 power_w=42.0 power_limit_w=300.0 held_by=j1"
    )


@pytest.mark.parametrize(("node_w", "told"), [(900.0, "Energy of the machine"), (100.0, "took more than")])
def test_the_sums_are_told_once_an_hour(
    node_w: float, told: str, machine: FakeMachine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What runs, idle cards and strangers have taken, and the machine's own meter beside it."""
    caplog.set_level(logging.INFO)
    power = SteadyPower(clock, node_w)
    meter = direct_meter(clock, node_power=power)
    day = Day(machine, clock, meter)
    day.pass_s(3600, 30.0, gpu0=200, gpu1=100)
    assert not [record for record in caplog.records if "Energy of the GPUs" in record.message]
    day.pass_s(60, 30.0, gpu0=200, gpu1=100)
    (sums,) = [record.getMessage() for record in caplog.records if "Energy of the GPUs" in record.message]
    assert "runs_j=0 idle_j=1080000 strangers_j=0 unknown_s=0" in sums
    assert len([record for record in caplog.records if told in record.message]) == 1
    assert meter.node_energy().host_j == pytest.approx((node_w - 300) * 3630, rel=0.01)
    meter.close()
    assert power.is_closed


class SteadyPower:
    """A meter of the whole machine that always shows the same."""

    def __init__(self, clock: ManualClock, power_w: float) -> None:
        self._clock, self._power_w, self.is_closed = clock, power_w, False

    def look(self) -> DeviceLook:
        return DeviceLook("n1", self._clock.now_s(), self._power_w)

    def close(self) -> None:
        self.is_closed = True


class KnownLeases(ListedProcesses):
    """Tells only processes of runs that are asked about, as keepers are found by their lease."""

    def owners_of(self, pids: Collection[int], runs: Collection[Run]) -> Mapping[int, Run | None]:
        told = super().owners_of(pids, runs)
        return {pid: owner if owner in runs else None for pid, owner in told.items()}


def test_tasks_of_an_earlier_scheduler_are_no_strangers(machine: FakeMachine, clock: ManualClock) -> None:
    """Declared before anything is decided, they are ours at once, without another sample."""
    machine.processes = [(0, "c", 10, GIB, 25)]
    machine.write()
    meter = direct_meter(clock, KnownLeases({10: ("j1", 1)}))
    meter.inventory()
    meter._source.refresh = lambda: None  # type: ignore[method-assign]
    assert meter.read()[0].foreign_processes == 1
    meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    assert (meter.read()[0].foreign_processes, meter.read()[0].foreign_memory_mib) == (0, 0)


def test_c34_a_reading_names_who_else_is_there(machine: FakeMachine, clock: ManualClock) -> None:
    """The process and its user on the GPU where it is, nobody on the other; gone with the process."""
    machine.processes = [(0, "c", 77, GIB, 25)]
    machine.write()
    meter = direct_meter(clock, ListedProcesses(users={77: "alice"}))
    meter.inventory()
    assert [each.foreign_by for each in meter.read()] == [(ForeignProcess(77, "alice"),), ()]
    machine.processes = []
    machine.write()
    assert [each.foreign_by for each in meter.read()] == [(), ()]


def test_c28_an_orphan_of_a_run_without_a_lease_counts_as_somebody_else(
    machine: FakeMachine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease fell and its process holds memory on: ours on its way out for a while, then shown by pid, in
    the way of everybody, and told once. Nothing of it before the meter knows who holds what.
    """
    machine.processes = [(0, "c", 10, GIB, 25)]
    machine.set(0, used=GIB + 3 * MIB)
    meter = direct_meter(clock, ListedProcesses({10: ("j1", 1)}, users={10: "airflow"}))
    day = Day(machine, clock, meter)
    day.pass_s(60)
    assert meter.read()[0].foreign_processes == 0
    meter.occupy([])
    day.pass_s(round(UNLEASED_S))
    assert (meter.read()[0].foreign_processes, meter.read()[0].foreign_by) == (0, ())
    day.pass_s(2)
    seen = meter.read()[0]
    assert (seen.foreign_memory_mib, seen.foreign_processes) == (1027, 1)
    assert seen.foreign_by == (ForeignProcess(10, "airflow"),)
    assert [each for each in caplog.messages if "not granted" in each and "job_id=j1" in each]
    meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    assert (meter.read()[0].foreign_processes, meter.read()[0].foreign_by) == (0, ())


class Departure:
    """A run that had 2 GiB of the first GPU and whose process has gone; a sample follows."""

    def __init__(self, machine: FakeMachine, processes: ListedProcesses, day: Day) -> None:
        self.machine, self.day = machine, day
        self.run: Run = ("j1", 1)
        processes.owners = {10: self.run}
        processes.hidden = {11}
        day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
        self.shows([(0, "c", 10, 2 * GIB, 25)], used=2 * GIB + 3 * MIB)
        self.gone_s = day.clock.now_s()

    def shows(self, processes: list[tuple[int, str, int, int | None, int]], **values: int | None) -> None:
        self.machine.processes = list(processes)
        self.machine.set(0, **values)
        self.day.pass_s(1)

    def is_back(self) -> bool | None:
        return self.day.meter.is_memory_back(self.run, self.gone_s)


@pytest.fixture
def departure(machine: FakeMachine, processes: ListedProcesses, day: Day) -> Departure:
    return Departure(machine, processes, day)


def test_c27_memory_is_back_when_a_later_look_shows_it(departure: Departure) -> None:
    """Not before a sample after the end, not while the driver holds it, and 1 % of it is nobody's."""
    assert departure.is_back() is False
    departure.shows([], used=2 * GIB)
    assert departure.is_back() is False
    departure.shows([(0, "c", 11, 2 * GIB, 0)])
    assert departure.is_back() is False, "a process that cannot be found has just left"
    departure.shows([], used=16 * GIB // 100)
    assert departure.is_back() is True


def test_c27_memory_of_others_is_not_waited_for(departure: Departure, processes: ListedProcesses) -> None:
    """What another run or somebody else has of the GPU is theirs; where it is not known, nobody can tell."""
    meter, here = departure.day.meter, uuid_of(departure.machine, 0)
    processes.owners |= {20: ("j2", 2), 30: None}
    meter.occupy([holder("j1", 1, here), holder("j2", 2, here)])
    others = [(0, "c", 20, 3 * GIB, 25), (0, "c", 30, GIB, 25)]
    departure.shows(others, used=5 * GIB)
    assert departure.is_back() is False
    departure.shows(others, used=4 * GIB + 3 * MIB)
    assert departure.is_back() is True
    departure.shows([(0, "c", 20, None, 25)], used=5 * GIB)
    assert departure.is_back() is None
    departure.shows([(0, "c", 11, 3 * GIB, 25)], used=5 * GIB)
    assert departure.is_back() is None, "pids of another namespace: the neighbour may be among them"


def test_c27_what_cannot_be_told_of_memory_is_unknown(departure: Departure) -> None:
    """Without the driver's part or a fresh look, or of a run that holds nothing: unknown, not back."""
    departure.shows([])
    assert departure.is_back() is False
    assert departure.day.meter.is_memory_back(("j9", 9), departure.gone_s) is None
    departure.day.clock.advance(STALE_S + 1)
    assert departure.is_back() is None
    departure.machine.errors = {"nvmlDeviceGetMemoryInfo_v2": 13}
    departure.shows([])
    assert departure.is_back() is None
