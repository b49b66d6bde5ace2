"""The real pynvml over a library that answers from a file: what is read, and what each fault costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_eaco.telemetry.nvml_reader import RESCAN_LOST_S, RESCAN_S, NvmlGoneError, NvmlReader
from airflow_provider_eaco.telemetry.nvml_sample import (
    DeviceSample,
    DeviceState,
    MachineSample,
    MemoryUse,
    ProcessUse,
)
from tests.contract.parts import ManualClock
from tests.nvml.machine import GIB, MIB, FakeMachine, fake_machine, load_library

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN_ERROR = 3, 4, 13, 999


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    load_library()
    return fake_machine(tmp_path, monkeypatch)


@pytest.fixture
def reader(machine: FakeMachine, clock: ManualClock) -> Iterator[NvmlReader]:
    reader = NvmlReader(clock.now_s, clock.now_s)
    reader.open()
    yield reader
    reader.close()


def changed(before: DeviceSample, after: DeviceSample) -> set[str]:
    """Return the values that differ, the list of causes apart."""
    return {
        each.name
        for each in fields(DeviceSample)
        if each.name != "unknown" and getattr(before, each.name) != getattr(after, each.name)
    }


def test_everything_that_a_card_tells_is_read(machine: FakeMachine, reader: NvmlReader) -> None:
    """All values arrive in the units of their names; idle clocks are no limit, a power cap is one."""
    machine.processes = [(0, "c", 101, 2 * GIB, 40), (0, "g", 102, 64 * MIB, 0), (0, "c", 103, None, None)]
    machine.set(0, gpu_pct=55, memory_pct=20, power_mw=181_500, energy_mj=12_345, clocks_event=0x4 | 0x20)
    first, second = reader.sample().devices
    assert first == DeviceSample(
        uuid=machine.gpus[0]["uuid"],
        index=0,
        name="Tesla V100-SXM2-16GB",
        pci_bus_id="00000000:10:00.0",
        utilisation_pct=55,
        memory_utilisation_pct=20,
        memory=MemoryUse(16 * 1024, 3, 300),
        power_w=181.5,
        power_limit_w=300.0,
        power_limit_range_w=(150.0, 300.0),
        energy_j=12.345,
        temperature_c=34,
        clock_limits=("power cap", "temperature"),
        processes=(
            ProcessUse(102, False, 64, 0.0),
            ProcessUse(101, True, 2048, 40.0),
            ProcessUse(103, True, None, 0.0),
        ),
        unknown={"mig": "Not Supported"},
    )
    assert (second.clock_limits, second.processes) == ((), ())


def test_a_sample_survives_its_way(machine: FakeMachine, reader: NvmlReader) -> None:
    """One line of JSON carries a sample from the sampling process and nothing is lost on the way."""
    machine.processes = [(0, "c", 101, 2 * GIB, 40)]
    machine.set(0, mig=None, power_mw=None)
    sample = reader.sample()
    assert MachineSample.from_line(sample.as_line()) == sample
    for line in ("", "{}", "[]", '{"at_s": 1, "monotonic_s": 1, "devices": [1]}'):
        with pytest.raises(ValueError, match=r".+"):
            MachineSample.from_line(line)


def test_c42_cards_are_ordered_by_their_place_on_the_bus(machine: FakeMachine, reader: NvmlReader) -> None:
    """The order is that of the PCI bus, which CUDA is told to use as well; names are UUIDs."""
    machine.gpus[0]["bus"] = "00000000:90:00.0"
    machine.write()
    assert [device.index for device in reader.sample().devices] == [1, 0]


CALLS = {
    "nvmlDeviceGetUtilizationRates": {"utilisation_pct", "memory_utilisation_pct"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetPowerManagementLimitConstraints": {"power_limit_range_w"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_limits"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes"},
    "nvmlDeviceGetGraphicsRunningProcesses_v3": set(),
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetPciInfo_v3": {"pci_bus_id"},
    "nvmlDeviceGetMigMode": set(),
    "nvmlDeviceGetProcessUtilization": {"processes"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory"},
    "nvmlDeviceRegisterEvents": set(),
    "nvmlEventSetCreate": set(),
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, UNKNOWN_ERROR])
@pytest.mark.parametrize("call", CALLS)
def test_c46_a_call_that_fails_costs_its_own_value(
    call: str, code: int, machine: FakeMachine, clock: ManualClock
) -> None:
    """Whatever error one call gives on one card: only its values are unknown there, with a cause."""
    machine.processes = [(0, "c", 101, GIB, 40)]
    machine.write()
    whole = [replace(device) for device in _fresh_sample(clock)]
    machine.errors = {call: code if call == "nvmlEventSetCreate" else {0: code}}
    machine.write()
    first, second = _fresh_sample(clock)
    assert changed(whole[0], first) == CALLS[call]
    assert changed(whole[1], second) == set()
    assert first.state is DeviceState.OK
    assert len(first.unknown) > len(whole[0].unknown) or call == "nvmlDeviceGetMigMode"


def _fresh_sample(clock: ManualClock) -> tuple[DeviceSample, ...]:
    reader = NvmlReader(clock.now_s, clock.now_s)
    reader.open()
    devices = reader.sample().devices
    reader.close()
    return devices


def test_a_memory_that_cannot_name_its_reserve(machine: FakeMachine, reader: NvmlReader) -> None:
    """An old driver counts what it keeps as used; then the reserve is unknown, not 0."""
    machine.errors = {"nvmlDeviceGetMemoryInfo_v2": FUNCTION_NOT_FOUND}
    machine.write()
    assert reader.sample().devices[0].memory == MemoryUse(16 * 1024, 303, None)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"gpu_pct": 4_000_000_000, "memory_pct": 4_000_000_000}, "utilisation_pct"),
        ({"power_mw": 4_294_967_295}, "power_w"),
        ({"energy_mj": 2**62}, "energy_j"),
        ({"temperature": 4_294_967_295}, "temperature_c"),
        ({"total": 0}, "memory"),
        ({"used": 17 * GIB}, "memory"),
    ],
)
def test_c46_a_value_that_cannot_be_true_is_unknown(
    values: dict[str, Any], name: str, machine: FakeMachine, reader: NvmlReader
) -> None:
    """All bits set is how NVML says that there is none; it never becomes a reading."""
    machine.set(0, **values)
    assert getattr(reader.sample().devices[0], name) is None


def test_c47_unified_memory_is_unknown(machine: FakeMachine, reader: NvmlReader) -> None:
    """A card whose memory cannot be told is there all the same."""
    machine.set(0, total=None)
    device = reader.sample().devices[0]
    assert (device.memory, device.state) == (None, DeviceState.OK)


def test_a_card_of_which_nothing_can_be_read_is_silent(machine: FakeMachine, reader: NvmlReader) -> None:
    """Nothing known is a state of its own: neither lost nor healthy."""
    basic = ("UtilizationRates", "PowerUsage", "TotalEnergyConsumption", "Temperature", "MemoryInfo")
    machine.errors = {f"nvmlDeviceGet{name}": {0: UNKNOWN_ERROR} for name in (*basic, "MemoryInfo_v2")}
    machine.write()
    assert [device.state for device in reader.sample().devices] == [DeviceState.SILENT, DeviceState.OK]


@pytest.mark.parametrize("how", ["lost", "reset", "gone"])
def test_a_lost_card_is_shown_as_lost_and_comes_back(
    how: str, machine: FakeMachine, reader: NvmlReader, clock: ManualClock
) -> None:
    """Off the bus, waiting for a reset, or not listed any more: it stays in the sample, its neighbour is
    read, and once it answers again it is a card like before.
    """
    before = reader.sample().devices
    uuid = machine.gpus[0]["uuid"]
    if how == "reset":
        machine.errors = {"nvmlDeviceGetUtilizationRates": {0: 16}, "nvmlDeviceGetUUID": {0: 16}}
        machine.write()
    else:
        machine.set(0, **({"lost": 1} if how == "lost" else {"uuid": None}))
    clock.advance(RESCAN_S)
    lost, other = reader.sample().devices
    assert (lost.uuid, lost.state, lost.power_w) == (uuid, DeviceState.LOST, None)
    assert changed(before[1], replace(other, index=1)) == set()
    machine.errors = {}
    machine.set(0, lost=None, uuid=uuid)
    clock.advance(RESCAN_LOST_S)
    assert reader.sample().devices == before


def test_c50_xids_reach_the_sample_once(machine: FakeMachine, reader: NvmlReader) -> None:
    """Each critical error is told once, with the card that had it; older ones are not told at all."""
    machine.xids = [(0, 13)]
    machine.write()
    assert [device.xids for device in reader.sample().devices] == [(), ()]
    machine.xids += [(1, 94), (1, 31)]
    machine.write()
    assert [device.xids for device in reader.sample().devices] == [(), (94, 31)]
    assert [device.xids for device in reader.sample().devices] == [(), ()]


def test_mig_instances_are_parts_of_their_card(
    machine: FakeMachine, reader: NvmlReader, clock: ManualClock
) -> None:
    """Each has a name, size, memory and processes of its own; one that is made later is found."""
    part = {"name": "NVIDIA A100 MIG 1g.5gb", "total": 5 * GIB, "used": GIB, "reserved": 0, "slices": 1}
    machine.gpus[0].update(mig=1)
    machine.partitions[0, 2] = {"uuid": "MIG-a", **part}
    machine.processes = [(0, "c", 101, GIB, None, 2)]
    machine.write()
    device = reader.sample().devices[0]
    (seen,) = device.partitions
    assert device.is_divided
    assert device.processes is None
    assert (seen.uuid, seen.name, seen.slices) == ("MIG-a", part["name"], 1)
    assert seen.memory == MemoryUse(5 * 1024, 1024, 0)
    assert seen.processes == (ProcessUse(101, True, 1024, None),)
    machine.partitions[0, 3] = {"uuid": "MIG-b", **part, "slices": 3, "total": None}
    machine.write()
    clock.advance(RESCAN_S)
    assert [(p.uuid, p.slices, p.memory is None) for p in reader.sample().devices[0].partitions] == [
        ("MIG-a", 1, False),
        ("MIG-b", 3, True),
    ]


@pytest.mark.parametrize("code", [1, 9, 12, 18], ids=["uninitialized", "driver", "library", "mismatch"])
def test_c49_nvml_that_is_gone_is_told_apart(code: int, machine: FakeMachine, reader: NvmlReader) -> None:
    """A driver that was unloaded or replaced is no matter of one value: the reader says so."""
    reader.sample()
    machine.errors = {"nvmlDeviceGetPowerUsage": code}
    machine.write()
    with pytest.raises(NvmlGoneError, match="NVML is gone"):
        reader.sample()


@pytest.mark.parametrize("chosen", ["MIG-3f2a", "GPU-3f2a", "0,1", ""])
def test_c44_what_cuda_is_to_see_hides_no_gpu_from_the_meter(
    chosen: str, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the meter's own process was told of CUDA's devices, it reads what NVML lists."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    load_library()
    reader = NvmlReader()
    reader.open()
    listed = [device.uuid for device in reader.sample().devices]
    reader.close()
    assert listed == [values["uuid"] for values in machine.gpus.values()]


def test_c49_a_driver_that_is_not_loaded_is_named(machine: FakeMachine) -> None:
    """Opening says why NVML cannot be started."""
    machine.init_code = 9
    machine.write()
    with pytest.raises(NvmlGoneError, match="Driver Not Loaded"):
        NvmlReader().open()
