"""Nodes and GPUs as the inventory knows them, and what a meter reads from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GpuHealth(StrEnum):
    """Whether new work may start on a GPU. ``UNKNOWN`` is not ``HEALTHY``."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``memory_reserved_mib`` is what the driver keeps for itself."""

    uuid: str
    node: str
    index: int
    model: str
    memory_total_mib: int | None
    memory_reserved_mib: int = 0
    health: GpuHealth = GpuHealth.HEALTHY

    @property
    def memory_usable_mib(self) -> int | None:
        """Total less the driver's reserve; the admission margin is subtracted by the filter."""
        return None if self.memory_total_mib is None else self.memory_total_mib - self.memory_reserved_mib


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with GPUs.

    ``time_scale`` is the number of device seconds that pass in one wall second: 1 on real hardware, more on
    a simulated node that runs faster. ``last_report_s`` is the instant of the node's last sign of life.
    """

    name: str
    gpus: tuple[Gpu, ...]
    host_memory_mib: int | None = None
    draining: bool = False
    available: bool = True
    last_report_s: float | None = None
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU. Every value may be ``None``, which means unknown, never zero or idle."""

    uuid: str
    at_s: float
    utilisation_pct: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    foreign_memory_mib: int | None = None
