"""The contract of the meter, sentence by sentence; every adapter runs it as a subclass.

A subclass hands in the fixture ``meter`` (with at least two GPUs on one node), says how to make another one
over the same devices (``again``) and how to take its source of values away (``break_source``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant, Telemetry
from tests.contract.parts import ManualClock


def occupants_of(node: Node) -> list[Occupant]:
    """Return one job on the node's first GPU and two together on its second."""
    places = [Placement(node.name, (gpu.uuid,)) for gpu in node.gpus]
    return [
        Occupant("a", 1, "alpha", places[0], 1000),
        Occupant("b", 2, "beta", places[1], None),
        Occupant("c", 3, "gamma", places[1], 500),
    ]


def values_of(reading: GpuReading) -> dict[str, float]:
    """Return the values that are known."""
    values = {
        "utilisation_pct": reading.utilisation_pct,
        "memory_used_mib": reading.memory_used_mib,
        "power_w": reading.power_w,
        "energy_j": reading.energy_j,
        "foreign_memory_mib": reading.foreign_memory_mib,
    }
    return {name: value for name, value in values.items() if value is not None}


class TelemetryContract:
    """What holds for every :class:`Telemetry`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def meter(self, clock: ManualClock) -> Telemetry:
        raise NotImplementedError

    def again(self, meter: Telemetry) -> Telemetry:
        """Return another meter over the same devices, as after a restart."""
        raise NotImplementedError

    def break_source(self, meter: Telemetry) -> None:
        """Take away what the meter reads from."""
        raise NotImplementedError

    def test_every_gpu_has_a_place_and_a_name_of_its_own(self, meter: Telemetry) -> None:
        """UUIDs and node names are unique, GPUs are listed by index and belong to their node."""
        nodes = meter.inventory()
        gpus = [gpu for node in nodes for gpu in node.gpus]
        assert len({node.name for node in nodes}) == len(nodes)
        assert len({gpu.uuid for gpu in gpus}) == len(gpus) >= 2
        for node in nodes:
            assert [gpu.index for gpu in node.gpus] == list(range(len(node.gpus)))
            assert {gpu.node for gpu in node.gpus} == {node.name}
            assert node.time_scale > 0

    def test_names_survive_a_restart(self, meter: Telemetry) -> None:
        """Another meter over the same devices finds the same nodes and GPUs under the same names."""

        def seen(one: Telemetry) -> list[Node]:
            return [replace(node, last_report_s=None) for node in one.inventory()]

        assert seen(self.again(meter)) == seen(meter)

    def test_an_inventory_is_a_sign_of_life(self, meter: Telemetry, clock: ManualClock) -> None:
        """A node that is seen reports at the instant it was asked."""
        clock.advance(17)
        assert {node.last_report_s for node in meter.inventory()} == {clock.now_s()}

    def test_there_is_one_reading_per_gpu(self, meter: Telemetry) -> None:
        """Every GPU of the inventory is read, once, whoever is on it."""
        expected = sorted(gpu.uuid for node in meter.inventory() for gpu in node.gpus)
        assert sorted(reading.uuid for reading in meter.read()) == expected
        meter.occupy(occupants_of(meter.inventory()[0]))
        assert sorted(reading.uuid for reading in meter.read()) == expected

    def test_what_is_known_can_be(self, meter: Telemetry, clock: ManualClock) -> None:
        """No value is negative, above what there is, or not a number (invariant I4)."""
        usable = {gpu.uuid: gpu.memory_total_mib for node in meter.inventory() for gpu in node.gpus}
        meter.occupy(occupants_of(meter.inventory()[0]))
        for _ in range(3):
            clock.advance(40)
            for reading in meter.read():
                assert reading.at_s == clock.now_s()
                assert all(value >= 0 for value in values_of(reading).values())
                assert (reading.utilisation_pct or 0) <= 100
                total_mib = usable[reading.uuid]
                assert total_mib is None or (reading.memory_used_mib or 0) <= total_mib

    def test_counters_only_grow(self, meter: Telemetry, clock: ManualClock) -> None:
        """An energy counter never falls, whoever comes and goes, and a restart does not reset it."""
        occupants = occupants_of(meter.inventory()[0])
        last: dict[str, float] = {}
        for present in (occupants, occupants[1:], [], occupants[:1]):
            meter.occupy(present)
            clock.advance(45)
            for reading in self.again(meter).read():
                if reading.energy_j is not None:
                    assert reading.energy_j >= last.get(reading.uuid, 0.0)
                    last[reading.uuid] = reading.energy_j

    def test_a_declaration_may_be_repeated_and_empty(self, meter: Telemetry) -> None:
        """Every heartbeat declares all holders again; nobody is a valid declaration; jobs of other machines
        are none of this meter's business.
        """
        occupants = occupants_of(meter.inventory()[0])
        stranger = replace(occupants[0], job_id="x", token=9, placement=Placement("elsewhere", ("GPU-else",)))
        meter.occupy([])
        meter.occupy(occupants)
        before = meter.read()
        meter.occupy([*occupants, stranger])
        assert meter.read() == before
        meter.occupy([])

    def test_c46_a_lost_source_reads_as_unknown(self, meter: Telemetry) -> None:
        """Reading never raises: without a source there is one reading per GPU in which nothing is known."""
        expected = sorted(gpu.uuid for node in meter.inventory() for gpu in node.gpus)
        self.break_source(meter)
        readings = meter.read()
        assert sorted(reading.uuid for reading in readings) == expected
        assert all(values_of(reading) == {} for reading in readings)
