"""The NVML meter in the test's own process and on its clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from airflow_provider_eaco.telemetry.nvml_feed import Deliver
from airflow_provider_eaco.telemetry.nvml_reader import NvmlGoneError, NvmlReader
from airflow_provider_eaco.telemetry.nvml_sample import MachineSample
from tests.contract.parts import ManualClock
from tests.nvml.machine import FakeMachine, load_library

Run = tuple[str, int]


class DirectSource:
    """Looks when it is asked to, where the sampling process looks by itself."""

    def __init__(self, clock: ManualClock) -> None:
        load_library()
        self._clock = clock
        self._reader: NvmlReader | None = None
        self._deliver: Deliver | None = None

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def refresh(self) -> None:
        assert self._deliver is not None
        self._deliver(self._sample())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _sample(self) -> MachineSample:
        """Return one look, by way of the line in which the sampling process sends it."""
        now_s = self._clock.now_s()
        try:
            if self._reader is None:
                reader = NvmlReader(self._clock.now_s, self._clock.now_s)
                reader.open()
                self._reader = reader
            return MachineSample.from_line(self._reader.sample().as_line())
        except NvmlGoneError as error:
            self._reader = None
            return MachineSample(now_s, now_s, problem=str(error))


@dataclass
class ListedProcesses:
    """Processes whose owners and users the test names; ``hidden`` ones cannot be seen from here."""

    owners: dict[int, Run | None] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    users: dict[int, str] = field(default_factory=dict)

    def owners_of(self, pids: Collection[int], runs: Collection[Run]) -> Mapping[int, Run | None]:
        return {pid: self.owners.get(pid) for pid in pids if pid not in self.hidden}

    def users_of(self, pids: Collection[int]) -> Mapping[int, str]:
        return {pid: self.users[pid] for pid in pids if pid in self.users}


def direct_meter(
    clock: ManualClock, processes: ListedProcesses | None = None, **options: Any
) -> NvmlTelemetry:
    """Return a meter of the node n1 over the fake library."""
    return NvmlTelemetry(
        "n1",
        DirectSource(clock),
        processes or ListedProcesses(),
        clock=clock.now_s,
        monotonic=clock.now_s,
        **options,
    )


def holder(job_id: str, token: int, *uuids: str, granted_s: float | None = None) -> Occupant:
    """Return a job on GPUs of n1, its family named like it."""
    return Occupant(job_id, token, job_id, Placement("n1", uuids), None, granted_s)


def uuid_of(machine: FakeMachine, index: int) -> str:
    """Return the UUID of the machine's GPU."""
    return str(machine.gpus[index]["uuid"])


class Day:
    """Lets seconds pass on the machine: draws power, counts joules, and looks once a second."""

    def __init__(self, machine: FakeMachine, clock: ManualClock, meter: NvmlTelemetry) -> None:
        self.machine, self.clock, self.meter = machine, clock, meter

    def pass_s(self, seconds: int, step_s: float = 1.0, **power_w: float) -> None:
        """Let time pass while each GPU (``gpu0``, ...) draws so much."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            for name, watts in power_w.items():
                values = self.machine.gpus[int(name.removeprefix("gpu"))]
                values["power_mw"] = round(watts * 1000)
                if values.get("energy_mj") is not None:
                    values["energy_mj"] += round(watts * step_s * 1000)
            self.machine.write()
            self.meter.read()
