"""Nodes and GPUs as the inventory knows them, and what a meter reads from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache


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
    def is_partition(self) -> bool:
        """Whether it is a part of a GPU with hardware of its own (MIG), which is never shared further."""
        return self.uuid.startswith("MIG-")

    @property
    def memory_usable_mib(self) -> int | None:
        """Total less the driver's reserve; the admission margin is subtracted by the filter."""
        return None if self.memory_total_mib is None else self.memory_total_mib - self.memory_reserved_mib


# So many foreign processes are named in one sentence.
MOST_IN_WORDS = 4


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process on a GPU that is none of ours; ``user`` is as whom it runs, ``None`` if not known."""

    pid: int
    user: str | None = None

    def __str__(self) -> str:
        return f"PID {self.pid} ({'user unknown' if self.user is None else self.user})"


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs of one model and memory size on a node; ``sound`` ones are healthy and nobody else's.

    ``are_partitions``: they are parts of GPUs (MIG), of which a process can use only one.

    ``foreign`` ones are used by somebody else, who holds at most ``foreign_mib`` of memory on one of them;
    ``foreign_by`` are the processes that could be told, by pid.
    """

    model: str
    usable_mib: int | None
    total: int
    sound: int
    unhealthy: tuple[str, ...] = ()
    foreign: int = 0
    foreign_mib: int = 0
    are_partitions: bool = False
    foreign_by: tuple[ForeignProcess, ...] = ()

    @property
    def foreign_who(self) -> str | None:
        """The foreign processes in words, ``None`` if none could be told."""
        told, more = self.foreign_by[:MOST_IN_WORDS], len(self.foreign_by) - MOST_IN_WORDS
        words = ", ".join(map(str, told))
        return (f"{words} and {more} more" if more > 0 else words) or None


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """The part of a node that no launch changes: what it could offer, were all its GPUs free.

    Nodes that are alike in it share one object, so that it is compared and looked up by identity.
    """

    groups: tuple[GpuGroup, ...]
    time_scale: float
    available: bool
    draining: bool


_shared_hardware = lru_cache(maxsize=4096)(Hardware)


@dataclass(frozen=True)
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

    @cached_property
    def by_uuid(self) -> Mapping[str, Gpu]:
        """The GPUs by UUID."""
        return {gpu.uuid: gpu for gpu in self.gpus}

    @cached_property
    def hardware(self) -> Hardware:
        """What it offers where nobody else uses its GPUs."""
        return self.hardware_beside({})

    def hardware_beside(self, foreign: Mapping[str, GpuReading]) -> Hardware:
        """Return what it offers beside somebody else, who was read to be on the GPUs with these UUIDs."""
        by_size: dict[tuple[str, int | None], list[Gpu]] = {}
        for gpu in self.gpus:
            by_size.setdefault((gpu.model, gpu.memory_usable_mib), []).append(gpu)
        groups = [
            GpuGroup(
                model,
                usable_mib,
                len(gpus),
                sum(gpu.health is GpuHealth.HEALTHY and gpu.uuid not in foreign for gpu in gpus),
                tuple(sorted(gpu.uuid for gpu in gpus if gpu.health is not GpuHealth.HEALTHY)),
                sum(gpu.uuid in foreign for gpu in gpus),
                max(each.foreign_memory_mib or 0 for each in seen) if seen else 0,
                gpus[0].is_partition,
                tuple(sorted({one for each in seen for one in each.foreign_by}, key=lambda one: one.pid)),
            )
            for (model, usable_mib), gpus in by_size.items()
            for seen in [[foreign[gpu.uuid] for gpu in gpus if gpu.uuid in foreign]]
        ]
        groups.sort(key=lambda group: (group.model, group.usable_mib or 0))
        return _shared_hardware(tuple(groups), self.time_scale, self.available, self.draining)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU. Every value may be ``None``, which means unknown, never zero or idle.

    ``foreign_processes`` are those that compute there and are none of ours, ``foreign_memory_mib`` is what
    somebody else holds, and ``foreign_by`` are as many of their processes as are told, by pid: there may be
    others, and where none can be told there are none in it.
    """

    uuid: str
    at_s: float
    utilisation_pct: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    foreign_memory_mib: int | None = None
    foreign_processes: int | None = None
    foreign_by: tuple[ForeignProcess, ...] = ()

    def is_used_by_others(self, margin_mib: int) -> bool | None:
        """Tell whether somebody else computes there, or holds more than ``margin_mib``; ``None``: that is
        not known. Who is seen counts, whatever else is unknown; memory that was told and is within the margin
        is nobody's use as long as no process is seen.
        """
        if self.foreign_processes:
            return True
        return None if self.foreign_memory_mib is None else self.foreign_memory_mib > margin_mib
