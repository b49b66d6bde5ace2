"""What runs on real GPUs take and show, on virtual time: joules, memory, use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyMethod, EnergyPart, SplitRule
from airflow_provider_eaco.core.model.profile import PowerScope
from airflow_provider_eaco.core.ports import RunMeter
from airflow_provider_eaco.telemetry.nvml import INTERIM_S, NvmlTelemetry
from tests.contract.metering_suite import KeptParts
from tests.contract.parts import ManualClock
from tests.nvml.machine import GIB, MIB, FakeMachine
from tests.nvml.rig import Day, ListedProcesses, direct_meter, holder, uuid_of


@pytest.fixture
def day(machine: FakeMachine, clock: ManualClock, meter: NvmlTelemetry) -> Day:
    return Day(machine, clock, meter)


def test_a_run_alone_becomes_a_profile(machine: FakeMachine, processes: ListedProcesses, day: Day) -> None:
    """Memory peak per GPU, mean and largest use, and the draw of all its GPUs, while it was alone."""
    both = (uuid_of(machine, 0), uuid_of(machine, 1))
    processes.owners.update({10: ("j1", 1), 11: ("j1", 1), 12: ("j2", 2)})
    day.meter.occupy([holder("j1", 1, *both)])
    day.pass_s(1)
    machine.processes = [(0, "c", 10, 3 * GIB, 40), (1, "c", 11, 2 * GIB, 60)]
    for index, busy in ((0, 40), (1, 60)):
        machine.set(index, gpu_pct=busy, memory_pct=busy // 2)
    day.pass_s(10, gpu0=150, gpu1=250)
    expected = RunMeter(3072, 50.0, 60.0, 25.0, 400.0, PowerScope.BOARD)
    assert day.meter.run_meter("j1", 1) == expected
    # With a second one there only memory still counts.
    day.meter.occupy([holder("j1", 1, *both), holder("j2", 2, *both)])
    day.pass_s(1, gpu0=150, gpu1=250)
    machine.processes = [(0, "c", 10, 4 * GIB, 40), (0, "c", 12, GIB, 40)]
    day.pass_s(5, gpu0=290, gpu1=290)
    seen = day.meter.run_meter("j1", 1)
    assert seen is not None
    assert (seen.memory_peak_mib, seen.power_w, seen.utilisation_max_pct) == (4096, pytest.approx(400), 60.0)
    assert day.meter.run_meter("j2", 2) == RunMeter(1024, scope=PowerScope.BOARD)
    assert day.meter.run_meter("j3", 3) is None


def test_c54_a_run_is_stored_once_and_for_its_gpu_alone(machine: FakeMachine, day: Day) -> None:
    """What is stored of a run are its own GPU's joules, from the counter; a second look adds nothing."""
    rows = KeptParts()
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    day.pass_s(10, gpu0=200, gpu1=290)
    day.meter.occupy([])
    assert day.meter.write_energy("j1", 1, rows)
    assert day.meter.write_energy("j1", 1, rows)
    assert not day.meter.write_energy("j1", 2, rows)
    # The first second belongs to nobody: the run was declared in it.
    assert rows.parts == [
        EnergyPart("j1", 1, uuid_of(machine, 0), pytest.approx(1800), 9.0, EnergyMethod.COUNTER)
    ]


def test_the_last_second_of_a_run_follows(machine: FakeMachine, day: Day) -> None:
    """What is measured after a run was stored is stored with the next interim, and belongs to it."""
    rows = KeptParts()
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    day.pass_s(3, gpu0=200)
    day.meter.occupy([])
    day.meter.write_energy("j1", 1, rows)
    day.pass_s(1, gpu0=200)
    day.clock.advance(INTERIM_S)
    day.meter.write_interim((), rows)
    assert rows.joules("j1") == pytest.approx(600)


def test_what_others_run_is_theirs_to_store(machine: FakeMachine, day: Day) -> None:
    """Two schedulers of one machine meter all runs, and each stores its own; one that takes a run over goes
    on from there. What could not be stored is not lost.
    """
    rows = KeptParts()
    day.meter.occupy([holder("mine", 1, uuid_of(machine, 0)), holder("theirs", 2, uuid_of(machine, 1))])
    day.pass_s(INTERIM_S + 1, gpu0=100, gpu1=100)
    rows.fails = True
    with pytest.raises(RuntimeError):
        day.meter.write_interim({("mine", 1)}, rows)
    rows.fails = False
    day.pass_s(INTERIM_S, gpu0=100, gpu1=100)
    day.meter.write_interim({("mine", 1)}, rows)
    assert (rows.joules("mine"), rows.joules("theirs")) == (pytest.approx(100 * 2 * INTERIM_S), 0)
    day.pass_s(10, gpu0=100, gpu1=100)
    day.meter.write_energy("theirs", 2, rows)
    assert rows.joules("theirs") == pytest.approx(1000)


def test_a_run_that_was_there_before_is_a_lower_bound(machine: FakeMachine, day: Day) -> None:
    """After a restart of the meter the energy of a running task says that a part is missing."""
    rows = KeptParts()
    began_s = day.clock.now_s()
    day.meter.occupy(
        [
            holder("old", 1, uuid_of(machine, 0), granted_s=began_s - 3600),
            holder("new", 2, uuid_of(machine, 1), granted_s=began_s),
        ]
    )
    day.pass_s(5, gpu0=100, gpu1=100)
    for job_id, token in (("old", 1), ("new", 2)):
        day.meter.write_energy(job_id, token, rows)
    assert {part.job_id: part.partial for part in rows.parts} == {"old": True, "new": False}


@pytest.mark.parametrize(
    ("values", "method", "known"),
    [
        ({"energy_mj": None}, EnergyMethod.INTEGRATED, True),
        ({"energy_mj": None, "power_mw": None}, EnergyMethod.UNKNOWN, False),
    ],
)
def test_c52_without_a_counter_power_is_integrated(
    values: dict[str, Any], method: EnergyMethod, known: bool, machine: FakeMachine, clock: ManualClock
) -> None:
    """It is told apart from a counter's, and without power the energy is unknown, never 0."""
    rows = KeptParts()
    machine.set(0, **values)
    meter = direct_meter(clock)
    meter.inventory()
    meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    for _ in range(10):
        clock.advance(1)
        meter.read()
    meter.write_energy("j1", 1, rows)
    (part,) = rows.parts
    assert (part.method, part.energy_j is not None, part.seconds) == (method, known, 9.0)


@pytest.mark.parametrize("change_mj", [-900_000, 10**12], ids=["goes back", "jumps"])
def test_c55_a_counter_that_goes_back_or_jumps_is_read_anew_from_there(
    change_mj: int, machine: FakeMachine, day: Day
) -> None:
    """That second is estimated from the power, and the run says that it is partial; before and after it the
    counter counts. Nothing is negative, and nothing is a giant step.
    """
    rows = KeptParts()
    day.meter.occupy([holder("j1", 1, uuid_of(machine, 0))])
    day.pass_s(4, gpu0=200)
    machine.gpus[0]["energy_mj"] += change_mj
    day.pass_s(6, gpu0=200)
    day.meter.write_energy("j1", 1, rows)
    told = {part.method: (part.energy_j, part.seconds, part.partial) for part in rows.parts}
    assert told == {
        EnergyMethod.COUNTER: (pytest.approx(200 * 8), 8.0, False),
        EnergyMethod.INTEGRATED: (pytest.approx(200), 1.0, True),
    }
    energy = day.meter.run_energy("j1", 1)
    assert energy is not None
    assert (energy.energy_j, energy.partial) == (pytest.approx(200 * 9), True)
    assert day.meter.device_energy()[uuid_of(machine, 0)].runs_j == pytest.approx(200 * 9)


@pytest.mark.parametrize("who", ["sm time", "profile"])
def test_c53_two_tasks_on_one_gpu_add_up(
    who: str, machine: FakeMachine, processes: ListedProcesses, clock: ManualClock
) -> None:
    """Ten minutes together: both parts are the GPU's joules within 1 %, neither is the whole, and the idle
    draw is shared equally.
    """
    solo: dict[str, float] = {"a": 10.0, "b": 30.0}
    find: Callable[[str, str, int], float | None] = lambda family, model, count: solo.get(family)  # noqa: E731
    meter = direct_meter(clock, processes, solo_utilisation=find)
    day = Day(machine, clock, meter)
    meter.inventory()
    day.pass_s(60, gpu0=50)
    uuid = uuid_of(machine, 0)
    meter.occupy([holder("a", 1, uuid), holder("b", 2, uuid)])
    processes.owners.update({10: ("a", 1), 11: ("b", 2)})
    if who == "sm time":
        machine.processes = [(0, "c", 10, GIB, 10), (0, "c", 11, GIB, 30)]
    else:
        machine.errors = {"nvmlDeviceGetProcessUtilization": 3}
    day.pass_s(10, gpu0=50)
    rows = KeptParts()
    before_j = sum(rows.joules(job) for job in "ab")
    for job_id, token in (("a", 1), ("b", 2)):
        meter.write_energy(job_id, token, rows)
    rows.parts.clear()
    day.pass_s(600, 5.0, gpu0=250)
    for job_id, token in (("a", 1), ("b", 2)):
        meter.write_energy(job_id, token, rows)
    assert before_j == 0
    assert rows.joules("a") + rows.joules("b") == pytest.approx(600 * 250, rel=0.01)
    assert rows.joules("a") == pytest.approx(600 * (25 + 200 / 4), rel=0.01)
    energy = meter.run_energy("a", 1)
    assert energy is not None
    assert energy.co_residents == {"b"}
    assert (SplitRule.SM_TIME if who == "sm time" else SplitRule.PROFILE) in energy.rules


def test_mig_partitions_are_gpus_of_their_own(
    machine: FakeMachine, processes: ListedProcesses, clock: ManualClock
) -> None:
    """They stand in for their card, hold their own memory and processes, have no draw or use of their own,
    and divide the card's energy by size, which says that it is estimated.
    """
    part = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "total": 5 * GIB, "used": MIB, "reserved": 0}
    machine.gpus[0].update(mig=1, name="NVIDIA A100-SXM4-40GB")
    machine.partitions = {
        (0, 0): {"uuid": "MIG-a", **part, "slices": 1},
        (0, 1): {"uuid": "MIG-b", **part, "slices": 3},
    }
    machine.write()
    meter = direct_meter(clock, processes)
    day = Day(machine, clock, meter)
    (node,) = meter.inventory()
    assert [(gpu.uuid, gpu.index, gpu.is_partition) for gpu in node.gpus] == [
        ("MIG-a", 0, True),
        ("MIG-b", 1, True),
        (uuid_of(machine, 1), 2, False),
    ]
    assert node.gpus[0].model == "A100-SXM4-40GB MIG 1g.5gb"
    meter.occupy([holder("a", 1, "MIG-a"), holder("b", 2, "MIG-b")])
    processes.owners.update({10: ("a", 1)})
    machine.processes = [(0, "c", 10, 2 * GIB, None, 0), (0, "c", 77, GIB, None, 1)]
    day.pass_s(11, gpu0=200)
    readings = {reading.uuid: reading for reading in meter.read()}
    assert readings["MIG-a"].foreign_processes == 0
    assert readings["MIG-b"].foreign_processes == 1
    assert (readings["MIG-a"].power_w, readings["MIG-a"].utilisation_pct) == (None, None)
    rows = KeptParts()
    for job_id, token in (("a", 1), ("b", 2)):
        meter.write_energy(job_id, token, rows)
    assert {part.method for part in rows.parts} == {EnergyMethod.DIVIDED}
    assert (rows.joules("a"), rows.joules("b")) == (pytest.approx(500), pytest.approx(1500))
    assert meter.run_meter("a", 1) == RunMeter(2048, scope=PowerScope.BOARD)
