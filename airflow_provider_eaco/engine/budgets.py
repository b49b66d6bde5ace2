"""What jobs have used on a pool's nodes since the day began: from records, and by draw where none is yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.energy_budget import EnergyUsed, day_began_s
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.policy.facts import CycleFacts
from airflow_provider_eaco.core.policy.pool_draw import PoolDraw
from airflow_provider_eaco.core.ports import EnergyUse, UsedEnergy

READ_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float
    since_s: float
    parts: Sequence[UsedEnergy]


class DayEnergy:
    """Fills in what has been used today. Pools without a budget of kilowatt-hours cost nothing.

    :param use: the records; ``None``: nobody keeps any, so that nothing is known.
    :param read_every_s: what is recorded is read at most so often.
    """

    def __init__(self, use: EnergyUse | None, read_every_s: float = READ_EVERY_S) -> None:
        self._use = use
        self._read_every_s = read_every_s
        self._read: _Read | None = None

    def told(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Return the snapshot with what jobs have used in the day of its instant.

        :raises StoreUnavailableError: if the records cannot be read.
        """
        budget = snapshot.pool.settings.energy_budget
        if self._use is None or budget is None or budget.kwh_per_day is None:
            return snapshot
        used = _used(self._parts(self._use, snapshot.now_s), snapshot)
        return replace(snapshot, pool=replace(snapshot.pool, energy_used=used))

    def _parts(self, use: EnergyUse, now_s: float) -> Sequence[UsedEnergy]:
        since_s, read = day_began_s(now_s), self._read
        if read is None or read.since_s != since_s or now_s - read.at_s >= self._read_every_s:
            read = self._read = _Read(now_s, since_s, use.used_since(since_s))
        return read.parts


def _used(parts: Sequence[UsedEnergy], snapshot: ClusterSnapshot) -> EnergyUsed:
    since_s = day_began_s(snapshot.now_s)
    here = [part for part in parts if part.node in snapshot.nodes]
    energies_j = [part.energy_j * _share_after(part, since_s) for part in here if part.energy_j is not None]
    partial = any(part.partial or part.energy_j is None for part in here)
    covered_s: dict[str, float] = {}
    for part in here:
        covered_s[part.job_id] = max(part.end_s, covered_s.get(part.job_id, since_s))
    draw = PoolDraw(CycleFacts(snapshot), snapshot.pool.asleep_w)
    for state in snapshot.nodes.values():
        for held in state.sets:
            drawn = draw.of_set(held)
            partial = partial or drawn.unknown_sets > 0
            for resident in held.residents:
                from_s = max(resident.granted_s, covered_s.get(resident.job.job_id, since_s))
                open_s = max(0.0, snapshot.now_s - max(from_s, since_s))
                energies_j.append(drawn.power_w / len(held.residents) * open_s)
    return EnergyUsed(since_s, math.fsum(energies_j), partial)


def _share_after(part: UsedEnergy, since_s: float) -> float:
    """Return the share of the part that lies after an instant; its energy is spread evenly over its time."""
    if part.begin_s >= since_s:
        return 1.0
    length_s = part.end_s - part.begin_s
    return max(0.0, part.end_s - since_s) / length_s if length_s > 0 else 0.0
