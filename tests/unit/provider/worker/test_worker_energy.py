"""What a node's runs have used, on its way from the node's meter to the provider's API."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

import pytest

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, RunEnergy, RunKey, SplitRule
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals, RunNote
from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import FORMATS
from airflow_provider_eaco.core.ports import EnergyLog, EnergyMethod, EnergyPart
from airflow_provider_eaco.provider import worker_api
from airflow_provider_eaco.provider.node_api.models import REPORTS
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_agent import NodeAgent
from airflow_provider_eaco.provider.worker_energy import ReportedEnergy
from tests.unit.provider.worker.worker_rig import MESSAGE, REFERENCE, Rig

COUNTED = EnergyPart("job", 7, "GPU-1", 100.0, 10.0, EnergyMethod.COUNTER)


class Meter:
    """Ten seconds of 10 W for each run whenever it is asked; fails when it is told to."""

    def __init__(self) -> None:
        self.fails = False

    def write_interim(self, own: Collection[RunKey], energy_log: EnergyLog, *, at_once: bool = False) -> None:
        if self.fails:
            raise RuntimeError("the driver is gone")
        for job_id, token in own:
            energy_log.add(replace(COUNTED, job_id=job_id, token=token))
            energy_log.note_run(RunNote(job_id, token, 12.0, frozenset({SplitRule.ALONE})))
        energy_log.add_machine(MachineEnergy("gpu-1", "meter", 0.0, 1.0, {"GPU-1": DeviceTotals(5.0, 5.0)}))

    def write_energy(self, job_id: str, token: int, energy_log: EnergyLog) -> bool:
        energy_log.add(COUNTED)
        return True

    def run_energy(self, job_id: str, token: int) -> RunEnergy | None:
        return None

    def close(self) -> None: ...


class MeteredRig(Rig):
    """The agent's rig with a meter that measures energy."""

    def make_agent(self) -> NodeAgent:
        self.meter = Meter()
        whole = NodeMeter(self.machine, self.meter, live=self.meter)
        plain = super().make_agent()
        return NodeAgent(replace(plain._machine, meter=whole), self.api, self.register, lambda: self.now_s)

    def told_j(self) -> list[float | None]:
        return [part.energy_j for part in self.api.reports[-1].energy]


@pytest.fixture
def rig() -> MeteredRig:
    return MeteredRig()


def test_a_report_has_all_that_a_run_has_used(rig: MeteredRig) -> None:
    """In all and not since the last report, so that one that arrives twice, or not at all, costs nothing."""
    rig.step(1.0, MESSAGE)
    rig.step(10.0)
    first = rig.told_j()
    rig.api.is_away = True
    rig.step(10.0)
    rig.api.is_away = False
    rig.step(10.0)
    # Measured when it began, and ten seconds later; then twice more, of which one report did not arrive.
    assert first == [200.0]
    assert rig.told_j() == [400.0]
    report = rig.api.reports[-1]
    assert report.notes == (RunNote("job", 7, 12.0, frozenset({SplitRule.ALONE})),)
    assert report.counters is not None
    assert report.counters.devices["GPU-1"].energy_j == 5.0


def test_a_run_that_left_is_told_on_for_a_while(rig: MeteredRig) -> None:
    """Its last second is measured after its end; later it is forgotten."""
    rig.step(1.0, MESSAGE)
    rig.machine.alive[REFERENCE] = 0
    rig.api.valid = ()
    rig.step(10.0)
    assert rig.told_j() == [200.0]
    rig.step(10.0)
    assert rig.told_j() == [200.0]
    rig.step(200.0)
    rig.step(10.0)
    assert rig.told_j() == []


def test_a_meter_that_fails_keeps_no_report_back(rig: MeteredRig) -> None:
    """The node goes on telling what lives there."""
    rig.step(1.0, MESSAGE)
    rig.meter.fails = True
    rig.step(10.0)
    assert rig.api.reports[-1].living == (("job", 7),)


@pytest.mark.parametrize("version", FORMATS)
def test_what_is_sent_is_what_is_taken(version: int, rig: MeteredRig) -> None:
    """The node's JSON passes the API's checks and means the same there, but for whose run it is."""
    rig.step(1.0, MESSAGE)
    rig.step(10.0)
    sent = rig.api.reports[-1]
    totals = NodeTotals(9.0, 5.0, 1.0)
    assert sent.counters is not None
    sent = replace(sent, counters=replace(sent.counters, totals=totals))
    here, other = Placement("gpu-1", ("GPU-1",)), Placement("gpu-1", ("GPU-2",))
    limits = NodeLimits(
        {"GPU-1": None, "GPU-2": "no\npermission"},
        {here: LimitInForce(200.0, (300.0,))},
        frozenset({here, other}),
        {other: "out of range"},
    )
    sent = replace(sent, peaks_mib=((7, 5000),), limits=limits)
    taken = REPORTS.validate_json(json.dumps(worker_api._as_json(sent, version))).as_report("gpu-1")
    assert taken.peaks_mib == sent.peaks_mib
    as_told = replace(limits, permits={**limits.permits, "GPU-2": "no permission"})
    assert taken.limits == (as_told if version > 2 else None)
    assert taken.energy == tuple(replace(part, job_id="") for part in sent.energy)
    assert taken.notes == tuple(replace(note, job_id="") for note in sent.notes)
    assert taken.counters == sent.counters


@pytest.mark.parametrize(
    ("more", "energy_j", "method", "partial"),
    [
        (COUNTED, 200.0, EnergyMethod.COUNTER, False),
        (replace(COUNTED, method=EnergyMethod.INTEGRATED), 200.0, EnergyMethod.INTEGRATED, False),
        (replace(COUNTED, energy_j=None, method=EnergyMethod.UNKNOWN), 100.0, EnergyMethod.COUNTER, True),
    ],
)
def test_c52_a_sum_is_as_certain_as_its_least_certain_part(
    more: EnergyPart, energy_j: float, method: EnergyMethod, partial: bool
) -> None:
    """An unknown part adds nothing and says that the sum is a lower bound."""
    kept = ReportedEnergy()
    kept.add(COUNTED)
    kept.add(more)
    (total,) = kept.totals()
    assert (total.energy_j, total.method, total.partial) == (energy_j, method, partial)
