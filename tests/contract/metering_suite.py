"""The contract of metering runs, sentence by sentence; every meter runs it as a subclass.

A subclass hands in the fixture ``meter`` (with at least two GPUs on its first node) and lets jobs work on
them (``work``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_eaco.core.energy.accounting import EnergyPart
from airflow_provider_eaco.core.energy.records import JobEnergy, MachineEnergy, RunNote
from airflow_provider_eaco.core.ports import Occupant
from tests.contract.parts import ManualClock
from tests.contract.telemetry_suite import occupants_of


class KeptParts:
    """An energy log that keeps what it is given, and fails when it is told to."""

    def __init__(self) -> None:
        self.parts: list[EnergyPart] = []
        self.notes: dict[str, RunNote] = {}
        self.machines: dict[str, MachineEnergy] = {}
        self.fails = False

    def add(self, part: EnergyPart) -> None:
        if self.fails:
            raise RuntimeError("away")
        self.parts.append(part)

    def bring_to(self, part: EnergyPart) -> None:
        stored_j = math.fsum(
            each.energy_j or 0.0
            for each in self.parts
            if (each.token, each.gpu_uuid) == (part.token, part.gpu_uuid)
        )
        if part.energy_j is None or part.energy_j > stored_j:
            self.add(replace(part, energy_j=None if part.energy_j is None else part.energy_j - stored_j))

    def note_run(self, note: RunNote) -> None:
        self.notes[note.job_id] = note

    def add_machine(self, counters: MachineEnergy) -> bool:
        self.machines[counters.node] = counters
        return True

    def job_energy(self, job_id: str) -> JobEnergy | None:
        return None

    def joules(self, job_id: str) -> float:
        """Return what was stored for the job."""
        return math.fsum(part.energy_j or 0.0 for part in self.parts if part.job_id == job_id)

    def joules_by_gpu(self) -> dict[str, float]:
        """Return what all runs took of each GPU."""
        found: dict[str, float] = {}
        for part in self.parts:
            found[part.gpu_uuid] = math.fsum((found.get(part.gpu_uuid, 0.0), part.energy_j or 0.0))
        return found


class MeteringContract:
    """What holds for every meter that keeps accounts of runs."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def meter(self, clock: ManualClock) -> Any:
        raise NotImplementedError

    def work(self, meter: Any, occupants: Sequence[Occupant]) -> None:
        """Let time pass in which all of them use their GPUs."""
        raise NotImplementedError

    def counters(self, meter: Any) -> dict[str, float]:
        """Return the energy counter of each GPU."""
        return {reading.uuid: reading.energy_j for reading in meter.read() if reading.energy_j is not None}

    def test_c53_the_parts_of_runs_are_what_their_gpus_took(self, meter: Any) -> None:
        """A job alone gets its GPU's joules, two together share them, nobody gets a GPU's that it does not
        hold, and each run is stored for each of its GPUs once.
        """
        occupants, rows = occupants_of(meter.inventory()[0]), KeptParts()
        meter.occupy(occupants)
        self.counters(meter)
        before = self.counters(meter)
        self.work(meter, occupants)
        after = self.counters(meter)
        meter.occupy([])
        for one in occupants:
            assert meter.write_energy(one.job_id, one.token, rows)
        held = {uuid for one in occupants for uuid in one.placement.gpu_uuids}
        assert sorted((part.job_id, part.gpu_uuid) for part in rows.parts) == sorted(
            (one.job_id, uuid) for one in occupants for uuid in one.placement.gpu_uuids
        )
        taken = rows.joules_by_gpu()
        assert taken == pytest.approx({uuid: after[uuid] - before[uuid] for uuid in held}, rel=0.01)
        assert all(part.energy_j is not None and part.energy_j > 0 for part in rows.parts)

    def test_a_run_is_seen_while_it_is_here_and_after(self, meter: Any) -> None:
        """Who is alone has a draw and a use; who shares has none of his own; both are told after the end."""
        occupants = occupants_of(meter.inventory()[0])
        meter.occupy(occupants)
        self.counters(meter)
        self.work(meter, occupants)
        alone, shared = meter.run_meter("a", 1), meter.run_meter("b", 2)
        assert alone is not None
        assert shared is not None
        assert alone.power_w > 0
        assert 0 < alone.utilisation_pct <= 100
        assert (shared.power_w, shared.utilisation_pct) == (None, None)
        meter.occupy([])
        assert meter.run_meter("a", 1) == alone

    def test_a_run_that_never_was_here_is_not_known(self, meter: Any) -> None:
        """Neither another job nor another lease of the same job has an account."""
        occupants, rows = occupants_of(meter.inventory()[0]), KeptParts()
        meter.occupy(occupants)
        self.counters(meter)
        self.work(meter, occupants)
        assert meter.run_meter("a", 2) is None
        assert meter.run_meter("nobody", 1) is None
        assert not meter.write_energy("a", 2, rows)
        assert rows.parts == []
