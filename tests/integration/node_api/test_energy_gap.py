"""Energy of a run and of its GPU where the node's worker was away: on NVML's test library, into the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_tables import energy_device
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from tests.contract.parts import ManualClock
from tests.integration.node_api.gate import Gate, gpu_of
from tests.nvml.machine import FakeMachine, fake_machine
from tests.nvml.rig import Day, DirectSource, ListedProcesses
from tests.unit.provider.worker.worker_rig import FakeMachine as Processes
from tests.unit.provider.worker.worker_rig import FakeRegister, NoBoards

DRAW_W = 30.0


class Site:
    """Node ``one``, whose workers come and go, and the store behind the API; a second passes per report."""

    interval_s = 0.0

    def __init__(self, gate: Gate, machine: FakeMachine, clock: ManualClock) -> None:
        self.gate, self.machine, self.clock = gate, machine, clock
        self.processes, self.register = Processes(), FakeRegister()

    def work(self, reports: int, *messages: dict[str, Any]) -> None:
        """Let a worker report so often, and once more when it leaves."""
        meter = NvmlTelemetry(
            "one",
            DirectSource(self.clock),
            ListedProcesses(),
            clock=self.clock.now_s,
            monotonic=self.clock.now_s,
        )
        meter.inventory()
        self._day, self._left = Day(self.machine, self.clock, meter), reports
        there = self.processes
        self._agent = NodeAgent(
            Machine(
                "one",
                "host-one",
                NodeMeter(meter, meter, meter, live=meter),
                there,
                order,
                self.find,
                NoBoards(),
            ),
            self,
            self.register,
            self.clock.now_s,
        )
        for message in messages:
            self._agent.take(message)
        self._agent.run()

    def find(self, job_id: str, token: int) -> str | None:
        """The run, if its process lives."""
        return next((each for each, code in self.processes.alive.items() if code is None), None)

    def pass_s(self, seconds: int) -> None:
        """Let time pass while no worker looks."""
        unread = SimpleNamespace(read=lambda: ())
        Day(self.machine, self.clock, unread).pass_s(seconds, gpu0=DRAW_W)  # type: ignore[arg-type]

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        return self.gate.reports.claim("one", "host-one", token, job_id)

    def report(self, report: NodeReport) -> NodeAnswer:
        # Its pool wants no power limits.
        answer = replace(self.gate.reports.take(report), limits_w=None)
        self._day.pass_s(1, gpu0=DRAW_W)
        self._left -= 1
        if self._left == 0:
            self._agent.stop()
        return answer

    def device(self) -> Any:
        """What is stored of its first GPU."""
        with self.gate.engine.connect() as connection:
            query = sa.select(energy_device).where(energy_device.c.uuid == gpu_of("one"))
            return connection.execute(query).one()


def order(claim: RunClaim, payload: str) -> LaunchOrder:
    return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)


def message_of(lease: Lease) -> dict[str, Any]:
    return {"v": 1, "job_id": lease.job_id, "token": lease.token, "payload": "payload"}


@pytest.fixture
def site(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    machine = fake_machine(tmp_path, monkeypatch)
    for index in range(2):
        machine.set(index, uuid=gpu_of("one", index))
    # The clock of the store: by it a run is told to be older than its meter.
    return Site(gate, machine, ManualClock(gate.lease.granted_s or 0.0))


@pytest.mark.parametrize(("fate", "reports"), [("ended", 10), ("lives", 10), ("lives", 3)])
def test_what_nobody_measured_while_a_worker_was_away_is_marked(fate: str, reports: int, site: Site) -> None:
    """A run that ended meanwhile, or goes on, is a lower bound; the GPU's book has the time as unknown. What
    the first worker had measured is stored to its last second.
    """
    site.work(reports, message_of(site.gate.lease))
    energy = SqlEnergyLog(site.gate.database)
    record = energy.job_energy("job")
    assert record is not None
    # In the first second nobody held it.
    seen_s = reports - 1.0
    assert (record.energy_j, record.seconds, record.partial) == (
        pytest.approx(seen_s * DRAW_W),
        seen_s,
        False,
    )
    assert (site.device().energy_j, site.device().unknown_s) == (pytest.approx(reports * DRAW_W), 0.0)

    site.pass_s(2)
    if fate == "ended":
        site.processes.alive = dict.fromkeys(site.processes.alive, 0)
    site.work(3)
    record = energy.job_energy("job")
    assert record is not None
    seen_s += 0.0 if fate == "ended" else 2.0
    assert (record.energy_j, record.partial) == (pytest.approx(seen_s * DRAW_W), True)
    # One second more passed when the first worker had told all.
    assert site.device().unknown_s == pytest.approx(3.0)
    assert site.device().energy_j == pytest.approx((reports + 3) * DRAW_W)
