"""The simulated device: GPUs, who is on them, and how time, work and energy move on. Pure.

Nothing here reads a clock or a file: the caller hands in the wall instant (seconds since the epoch) and the
model evolves piecewise to it. What families really need and draw is resolved when residents change (see
:mod:`.truth`) and kept with them, so that whoever advances the model later needs no tables.

The simulated clock runs ``time_scale`` seconds per wall second and stands still while a resident holds it:
one that is starting up or computing between two units, for at most ``hold_limit_s`` wall seconds each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from airflow_provider_eaco.core.energy.accounting import split_energy
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.telemetry.history import NodeInterval, ResidentSegment, Segment
from airflow_provider_eaco.telemetry.residents import (
    Place,
    Resident,
    ResidentKey,
    ResidentSet,
    SimulatedNode,
    UnitState,
    group_by_place,
)
from airflow_provider_eaco.telemetry.truth import SetTruth

# Residents that left are kept, so that a list which was stale for one heartbeat does no harm and the account
# of a job can be read after its end; older ones are in the history.
DEPARTED_KEPT = 64
UNIT_TIMES_KEPT = 128
# Callers take the time before they wait for the lock, so a little disorder is no sign of a changed clock.
CLOCK_SET_BACK_S = 60.0

ResolveTruth = Callable[[tuple[str, ...], str, int], SetTruth]


@dataclass(slots=True)
class DeviceModel:
    """All simulated nodes that share one clock. ``generation`` is the wall instant at which it was made.

    ``gpu_idle_j`` is the part of ``gpu_energy_j`` that was used with nobody there.
    Instants called ``wall_s`` are wall time; ``now_s`` and everything in segments is simulated time, which
    began at 0 with the generation.
    """

    nodes: tuple[SimulatedNode, ...]
    time_scale: float
    hold_limit_s: float
    generation: float
    wall_s: float
    now_s: float = 0.0
    gpu_energy_j: dict[str, float] = field(default_factory=dict)
    gpu_idle_j: dict[str, float] = field(default_factory=dict)
    residents: dict[ResidentKey, Resident] = field(default_factory=dict)
    departed: dict[ResidentKey, Resident] = field(default_factory=dict)
    sets: list[ResidentSet] = field(default_factory=list)
    node_since_s: dict[str, float] = field(default_factory=dict)
    journal_count: int = 0
    closed: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.node_since_s.setdefault(node.name, self.now_s)
            for uuid in node.gpu_uuids:
                self.gpu_energy_j.setdefault(uuid, 0.0)

    # -- time ------------------------------------------------------------------------------------------

    def advance(self, wall_s: float) -> None:
        """Evolve to the wall instant. An earlier instant than the last one changes nothing, unless the wall
        clock was plainly set back: then the model goes on from there.
        """
        if wall_s < self.wall_s - CLOCK_SET_BACK_S:
            self._follow_clock(wall_s)
        while self.wall_s < wall_s:
            held_until_s = max(
                (
                    resident.hold_until_s
                    for resident in self.residents.values()
                    if resident.holds(self.wall_s)
                ),
                default=None,
            )
            if held_until_s is not None:
                self.wall_s = min(held_until_s, wall_s)
                continue
            available_s = (wall_s - self.wall_s) * self.time_scale
            step_s = min(
                (
                    resident.work_left_s / resident.rate
                    for resident in self.residents.values()
                    if resident.working
                ),
                default=available_s,
            )
            if step_s >= available_s:
                self._evolve(available_s)
                self.wall_s = wall_s
            else:
                self._evolve(step_s)
                self.wall_s = min(wall_s, self.wall_s + step_s / self.time_scale)
            self._complete_units()

    def _follow_clock(self, wall_s: float) -> None:
        shift_s = wall_s - self.wall_s
        self.wall_s = wall_s
        for resident in self.residents.values():
            resident.hold_until_s += shift_s

    def _evolve(self, step_s: float) -> None:
        self.now_s += step_s
        busy: set[str] = set()
        for held in self.sets:
            gpu_j = held.power_w * step_s / len(held.gpu_uuids)
            for uuid in held.gpu_uuids:
                self.gpu_energy_j[uuid] += gpu_j
            busy.update(held.gpu_uuids)
            if len(held.members) == 1:
                self.residents[held.members[0]].count_alone(step_s, held.utilisation_pct)
        for node in self.nodes:
            for uuid in node.gpu_uuids:
                if uuid not in busy:
                    self.gpu_energy_j[uuid] += node.idle_w * step_s
                    self.gpu_idle_j[uuid] = self.gpu_idle_j.get(uuid, 0.0) + node.idle_w * step_s
        for resident in self.residents.values():
            resident.move_on(step_s)

    def _complete_units(self) -> None:
        for resident in self.residents.values():
            # What rounding leaves of a unit would otherwise cost a step of no length.
            if resident.working and resident.work_left_s <= 1e-12 * resident.unit_work_s:
                resident.work_left_s = 0.0
                resident.done = True
                resident.units_done += 1
                resident.unit_times_s = [*resident.unit_times_s, resident.unit_elapsed_s][-UNIT_TIMES_KEPT:]
                if resident.waiting:
                    resident.waiting = False
                    resident.hold_until_s = self.wall_s + self.hold_limit_s

    # -- units of work ---------------------------------------------------------------------------------

    def begin_unit(self, key: ResidentKey, unit: int, units: float, share: float = 1.0) -> bool:
        """Give the resident ``share`` of ``units`` units of work, called ``unit``; return whether it is here.

        A resident that had used up its time of holding the clock may hold it again.
        """
        resident = self.residents.get(key)
        if resident is None:
            return False
        resident.unit = unit
        resident.unit_work_s = units * resident.unit_s
        resident.work_left_s = resident.unit_work_s * share
        resident.unit_elapsed_s = 0.0
        resident.done = False
        resident.waiting = False
        if resident.hold_until_s <= self.wall_s:
            resident.hold_until_s = self.wall_s + self.hold_limit_s
        return True

    def wait_unit(self, key: ResidentKey) -> None:
        """Note that the resident waits for its unit from now on: it no longer holds the clock."""
        resident = self.residents.get(key)
        if resident is not None and resident.working:
            resident.waiting = True

    def unit_state(self, key: ResidentKey) -> UnitState | None:
        """Return how far the resident's unit is, ``None`` if it is not resident."""
        resident = self.residents.get(key)
        if resident is None:
            return None
        return UnitState(
            unit=resident.unit,
            done=resident.done,
            waiting=resident.waiting,
            elapsed_s=resident.unit_elapsed_s,
            share_left=resident.work_left_s / resident.unit_work_s if resident.unit_work_s else 1.0,
            wall_left_s=resident.work_left_s / resident.rate / self.time_scale,
            held=any(other.holds(self.wall_s) for other in self.residents.values()),
        )

    # -- who is where ----------------------------------------------------------------------------------

    def occupy(self, occupants: Sequence[Occupant], resolve: ResolveTruth) -> None:
        """Replace the residents by ``occupants`` at the present simulated instant.

        Those who stay keep their unit of work, so do those who come back under the same token. Occupants of
        GPUs that no node here has are left out. Declaring the same again changes nothing.

        :raises ValueError: if two occupants share a part of their GPUs only; then nothing was changed.
        """
        here = [occupant for occupant in occupants if self._has(occupant)]
        groups = group_by_place(here)
        before = {(held.node, held.gpu_uuids): held.members for held in self.sets}
        after = {
            place: tuple((occupant.job_id, occupant.token) for occupant in group) for place, group in groups
        }
        changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
        if not changed:
            return
        self._close_segments(changed)
        self._close_intervals({node for node, _ in changed})
        for place in changed:
            for key in before.get(place, ()):
                self._leave(key)
        self.sets = [held for held in self.sets if (held.node, held.gpu_uuids) not in changed]
        for place, group in groups:
            if place in changed:
                self.sets.append(self._settle(place, group, resolve))

    def _has(self, occupant: Occupant) -> bool:
        uuids = set(occupant.placement.gpu_uuids)
        return bool(uuids) and any(
            node.name == occupant.placement.node and uuids <= set(node.gpu_uuids) for node in self.nodes
        )

    def _leave(self, key: ResidentKey) -> None:
        resident = self.residents.pop(key)
        self.departed.pop(key, None)
        self.departed[key] = resident
        while len(self.departed) > DEPARTED_KEPT:
            del self.departed[next(iter(self.departed))]

    def _settle(self, place: Place, group: Sequence[Occupant], resolve: ResolveTruth) -> ResidentSet:
        node = next(node for node in self.nodes if node.name == place[0])
        truth = resolve(tuple(occupant.family for occupant in group), node.gpu_model, len(place[1]))
        parts_w = split_energy(
            truth.power_w,
            node.idle_w * len(place[1]),
            [1.0] * len(truth.members),
            [member.utilisation_pct for member in truth.members],
        )
        for occupant, member, part_w in zip(group, truth.members, parts_w, strict=True):
            resident = self.departed.pop((occupant.job_id, occupant.token), None) or self._newcomer(occupant)
            resident.memory_mib = member.memory_mib if occupant.memory_mib is None else occupant.memory_mib
            resident.unit_s, resident.rate, resident.power_w = member.unit_s, member.rate, part_w
            resident.node, resident.gpu_uuids = place
            resident.segment_start_s = self.now_s
            self.residents[resident.key] = resident
        members = tuple((occupant.job_id, occupant.token) for occupant in group)
        return ResidentSet(place[0], place[1], members, truth.power_w, truth.utilisation_pct)

    def _newcomer(self, occupant: Occupant) -> Resident:
        return Resident(
            job_id=occupant.job_id,
            token=occupant.token,
            family=occupant.family,
            node=occupant.placement.node,
            gpu_uuids=occupant.placement.gpu_uuids,
            memory_mib=occupant.memory_mib,
            hold_until_s=self.wall_s + self.hold_limit_s,
            segment_start_s=self.now_s,
        )

    def reconfigure(self, nodes: tuple[SimulatedNode, ...], time_scale: float, hold_limit_s: float) -> None:
        """Change the configuration at the present instant. Residents have to be declared again after it;
        energy counters go on.
        """
        self.occupy((), _no_truth)
        self._close_intervals({node.name for node in self.nodes})
        self.nodes, self.time_scale, self.hold_limit_s = nodes, time_scale, hold_limit_s
        for node in nodes:
            self.node_since_s[node.name] = self.now_s
            for uuid in node.gpu_uuids:
                self.gpu_energy_j.setdefault(uuid, 0.0)

    # -- what happened ---------------------------------------------------------------------------------

    def present_segments(self) -> list[Segment]:
        """Return the segments that are still open, up to now."""
        segments: list[Segment] = [
            self._segment(self.residents[key], held) for held in self.sets for key in held.members
        ]
        return segments + [self._interval(node) for node in self.nodes]

    def node_power_w(self, node: SimulatedNode) -> float:
        """Return the node's present draw."""
        held = [held for held in self.sets if held.node == node.name]
        busy = sum(len(one.gpu_uuids) for one in held)
        return sum(one.power_w for one in held) + node.idle_w * (len(node.gpu_uuids) - busy)

    def _close_segments(self, places: Iterable[Place]) -> None:
        for held in self.sets:
            if (held.node, held.gpu_uuids) not in places:
                continue
            for key in held.members:
                resident = self.residents[key]
                if self.now_s > resident.segment_start_s:
                    self.closed.append(self._segment(resident, held))
                resident.segment_start_s = self.now_s
                resident.segment_work_s = resident.segment_energy_j = 0.0

    def _close_intervals(self, names: Iterable[str]) -> None:
        for node in self.nodes:
            if node.name in names:
                if self.now_s > self.node_since_s[node.name]:
                    self.closed.append(self._interval(node))
                self.node_since_s[node.name] = self.now_s

    def _segment(self, resident: Resident, held: ResidentSet) -> ResidentSegment:
        return ResidentSegment(
            job_id=resident.job_id,
            token=resident.token,
            family=resident.family,
            node=held.node,
            gpu_uuids=held.gpu_uuids,
            co_residents=tuple(key[0] for key in held.members if key != resident.key),
            start_s=resident.segment_start_s,
            end_s=self.now_s,
            work_s=resident.segment_work_s,
            energy_j=resident.segment_energy_j,
        )

    def _interval(self, node: SimulatedNode) -> NodeInterval:
        busy = sum(len(held.gpu_uuids) for held in self.sets if held.node == node.name)
        return NodeInterval(
            node=node.name,
            start_s=self.node_since_s[node.name],
            end_s=self.now_s,
            power_w=self.node_power_w(node),
            busy_gpus=busy,
            gpus=len(node.gpu_uuids),
        )


def _no_truth(families: tuple[str, ...], gpu_model: str, gpu_count: int) -> SetTruth:
    raise AssertionError(f"nobody is declared, but the truth of {families} is asked")
