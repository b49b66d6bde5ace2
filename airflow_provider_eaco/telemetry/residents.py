"""Who is on simulated GPUs: residents with their unit of work and their account, and the sets they form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.ports import Occupant

ResidentKey = tuple[str, int]
Place = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One simulated machine. ``memory_mib`` is that of each GPU, ``idle_w`` the draw of a GPU nobody is on
    with its share of the host.
    """

    name: str
    gpu_uuids: tuple[str, ...]
    gpu_model: str
    memory_mib: int
    idle_w: float
    host_memory_mib: int | None = None


@dataclass(slots=True)
class Resident:
    """One job on its GPUs, with its unit of work and its account.

    ``unit`` is the number the client gave to the unit it began (0: none yet). ``work_left_s`` and
    ``unit_work_s`` are solo seconds. ``hold_until_s`` is the wall instant after which it holds the clock no
    more. ``power_w`` is its part of the draw of its GPUs. ``alone_s`` is the part of its stay in which nobody
    else was on them, with the energy of that time and its integral of utilisation, in seconds. ``peak_w`` is
    the largest draw so far.
    """

    job_id: str
    token: int
    family: str
    node: str
    gpu_uuids: tuple[str, ...]
    memory_mib: int | None
    hold_until_s: float
    segment_start_s: float
    unit_s: float = 0.0
    rate: float = 1.0
    power_w: float = 0.0
    unit: int = 0
    unit_work_s: float = 0.0
    work_left_s: float = 0.0
    unit_elapsed_s: float = 0.0
    done: bool = False
    waiting: bool = False
    run_s: float = 0.0
    work_s: float = 0.0
    energy_j: float = 0.0
    segment_work_s: float = 0.0
    segment_energy_j: float = 0.0
    units_done: int = 0
    unit_times_s: list[float] = field(default_factory=list)
    alone_s: float = 0.0
    alone_energy_j: float = 0.0
    alone_busy_s: float = 0.0
    peak_w: float = 0.0

    @property
    def key(self) -> ResidentKey:
        return self.job_id, self.token

    @property
    def working(self) -> bool:
        return self.unit > 0 and not self.done

    def holds(self, wall_s: float) -> bool:
        """Tell whether the clock has to stand still for it at this wall instant."""
        return not self.waiting and self.hold_until_s > wall_s

    def move_on(self, step_s: float) -> None:
        """Count ``step_s`` simulated seconds of its stay: energy, and work where a unit was begun."""
        energy_j = self.power_w * step_s
        self.run_s += step_s
        self.energy_j += energy_j
        self.peak_w = max(self.peak_w, self.power_w if step_s else 0.0)
        self.segment_energy_j += energy_j
        if self.working:
            work_s = min(self.work_left_s, step_s * self.rate)
            self.work_left_s -= work_s
            self.unit_elapsed_s += step_s
            self.work_s += work_s
            self.segment_work_s += work_s

    def count_alone(self, step_s: float, utilisation_pct: float) -> None:
        """Count ``step_s`` simulated seconds in which nobody else was on its GPUs."""
        self.alone_s += step_s
        self.alone_energy_j += self.power_w * step_s
        self.alone_busy_s += utilisation_pct / 100 * step_s


@dataclass(slots=True)
class ResidentSet:
    """GPUs of one node held by the same residents. ``power_w`` and ``utilisation_pct`` are the truth of the
    set; power covers all of its GPUs.
    """

    node: str
    gpu_uuids: tuple[str, ...]
    members: tuple[ResidentKey, ...]
    power_w: float
    utilisation_pct: float


@dataclass(frozen=True, slots=True)
class UnitState:
    """How far a resident's unit is. ``wall_left_s`` is the time to its end if nothing changes and nobody
    holds the clock; ``held`` tells whether somebody does now.
    """

    unit: int
    done: bool
    waiting: bool
    elapsed_s: float
    share_left: float
    wall_left_s: float
    held: bool


def group_by_place(occupants: Sequence[Occupant]) -> list[tuple[Place, list[Occupant]]]:
    """Return the occupants by the GPUs they hold, within a set in the order of their tokens.

    :raises ValueError: if two sets share a part of their GPUs only.
    """
    groups: dict[Place, list[Occupant]] = {}
    owner: dict[str, Place] = {}
    once = {(occupant.token, occupant.job_id): occupant for occupant in occupants}
    for _, occupant in sorted(once.items()):
        place = occupant.placement.node, tuple(sorted(occupant.placement.gpu_uuids))
        for uuid in place[1]:
            if owner.setdefault(uuid, place) != place:
                raise ValueError(
                    f"occupants: {uuid} is in two different sets of GPUs; sets never overlap partly"
                )
        groups.setdefault(place, []).append(occupant)
    return list(groups.items())
