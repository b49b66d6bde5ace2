"""What one look through NVML saw of a machine, and its form on the way from the sampling process.

``None`` is unknown: a value that this GPU, driver or user cannot be told is neither 0 nor idle. Memory is in
MiB, power in W, energy in J since the driver was loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class DeviceState(StrEnum):
    """``OK``: it answers. ``LOST``: off the bus, gone from the list, or of no use before a reset. ``SILENT``:
    it is listed, and nothing that matters can be read from it.
    """

    OK = "ok"
    LOST = "lost"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on a device. ``is_compute``: it has a CUDA context; otherwise it only draws.

    ``sm_pct`` is the share of the time since the last look in which the device's processors worked for it.
    """

    pid: int
    is_compute: bool
    memory_mib: int | None = None
    sm_pct: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """``reserved_mib`` is what the driver keeps; ``used_mib`` is without it unless it is unknown."""

    total_mib: int
    used_mib: int
    reserved_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """One MIG instance: what can be told of it apart from its device. ``slices``: its compute slices."""

    uuid: str
    name: str
    slices: int = 1
    memory: MemoryUse | None = None
    processes: tuple[ProcessUse, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One GPU at one instant. ``index`` is NVML's at this moment, ``pci_bus_id`` its place on the machine.

    ``is_divided``: MIG is on, and only ``partitions`` can be used. ``clock_limits`` names what keeps its
    clocks down now. ``xids`` are the critical errors since the last look. ``unknown`` says of each value that
    could not be read why.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str = ""
    state: DeviceState = DeviceState.OK
    utilisation_pct: float | None = None
    memory_utilisation_pct: float | None = None
    memory: MemoryUse | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    clock_limits: tuple[str, ...] | None = None
    processes: tuple[ProcessUse, ...] | None = None
    is_divided: bool = False
    partitions: tuple[Partition, ...] = ()
    xids: tuple[int, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def pids(self) -> set[int]:
        """The processes that could be listed, those on its partitions included."""
        listed = [self.processes, *(part.processes for part in self.partitions)]
        return {process.pid for processes in listed for process in processes or ()}


@dataclass(frozen=True, slots=True)
class MachineSample:
    """All GPUs of one machine. ``at_s`` since the epoch; ``monotonic_s`` of the machine's steady clock, which
    all its processes share. With a ``problem`` NVML as a whole could not be asked.
    """

    at_s: float
    monotonic_s: float
    devices: tuple[DeviceSample, ...] = ()
    problem: str | None = None

    def as_line(self) -> str:
        """Return the sample as one line of JSON, its end included."""
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> MachineSample:
        """Read what :meth:`as_line` gave.

        :raises ValueError: for anything else.
        """
        try:
            row = json.loads(line)
            return cls(**{**row, "devices": tuple(_device(each) for each in row["devices"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a sample: {error!r}") from error


def _device(row: dict[str, Any]) -> DeviceSample:
    limits, span = row["clock_limits"], row["power_limit_range_w"]
    return DeviceSample(
        **{
            **row,
            "state": DeviceState(row["state"]),
            "memory": _memory(row["memory"]),
            "power_limit_range_w": None if span is None else tuple(span),
            "clock_limits": None if limits is None else tuple(limits),
            "processes": _processes(row["processes"]),
            "partitions": tuple(
                Partition(
                    **{
                        **each,
                        "memory": _memory(each["memory"]),
                        "processes": _processes(each["processes"]),
                    }
                )
                for each in row["partitions"]
            ),
            "xids": tuple(row["xids"]),
        }
    )


def _memory(row: dict[str, Any] | None) -> MemoryUse | None:
    return None if row is None else MemoryUse(**row)


def _processes(rows: list[dict[str, Any]] | None) -> tuple[ProcessUse, ...] | None:
    return None if rows is None else tuple(ProcessUse(**row) for row in rows)
