"""From successive readings of a meter to the energy of each job on each GPU.

For meters whose device time is wall time: nothing uses it before nodes with real GPUs are metered. A
simulated node keeps exact accounts itself (:meth:`.simulated.SimulatedCluster.write_energy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart, Occupant
from airflow_provider_eaco.telemetry.attribution import split_power

# No GPU board with its share of a host draws more; a counter that says so has jumped.
MAX_POWER_W = 3000.0


class EnergySampler:
    """Attributes what GPUs took between two samples to those who were on them.

    :param idle_w: draw of each GPU with nobody on it; missing or ``None`` where it is not known. The idle
        part of a GPU's energy is shared equally, the part above it in the proportion of the residents' solo
        utilisations; all of it equally where one of these is unknown.
    """

    def __init__(self, idle_w: Mapping[str, float | None] | None = None) -> None:
        self._idle_w = dict(idle_w or {})
        self._last: dict[str, GpuReading] = {}
        self._occupants: tuple[Occupant, ...] = ()

    def sample(
        self,
        readings: Sequence[GpuReading],
        occupants: Sequence[Occupant],
        utilisation_pct: Mapping[str, float | None] | None = None,
    ) -> list[EnergyPart]:
        """Return the parts since the last sample, of those who were declared then.

        To be called regularly, and whenever residents have changed. The parts of one GPU add up to it.

        :param occupants: who is on the GPUs from now on.
        :param utilisation_pct: mean solo GPU utilisation of families, as far as it is known.
        """
        weights = utilisation_pct or {}
        parts = [
            part
            for reading in readings
            if (before := self._last.get(reading.uuid)) is not None and reading.at_s > before.at_s
            for part in self._parts(before, reading, weights)
        ]
        self._last.update({reading.uuid: reading for reading in readings})
        self._occupants = tuple(occupants)
        return parts

    def _parts(
        self, before: GpuReading, after: GpuReading, weights: Mapping[str, float | None]
    ) -> list[EnergyPart]:
        residents = [one for one in self._occupants if after.uuid in one.placement.gpu_uuids]
        if not residents:
            return []
        seconds = after.at_s - before.at_s
        energy_j, method, partial = measured_energy(before, after)
        idle_w = self._idle_w.get(after.uuid)
        known = [weight for one in residents if (weight := weights.get(one.family)) is not None]
        if len(known) < len(residents) or idle_w is None:
            known = [0.0] * len(residents)
        shares: Sequence[float | None] = (
            [None] * len(residents)
            if energy_j is None
            else split_power(energy_j, (idle_w or 0.0) * seconds, known)
        )
        return [
            EnergyPart(one.job_id, one.token, after.uuid, share, seconds, method, partial)
            for one, share in zip(residents, shares, strict=True)
        ]


def measured_energy(before: GpuReading, after: GpuReading) -> tuple[float | None, EnergyMethod, bool]:
    """Return the energy in joules between two readings of one GPU, how it was found, and if it is partial.

    From the counter where there is one; a counter that went back or jumped, or that is missing in one of the
    readings, is replaced by the integrated power. ``None`` where that is not known either.
    """
    seconds = after.at_s - before.at_s
    has_counter = before.energy_j is not None and after.energy_j is not None
    if before.energy_j is not None and after.energy_j is not None:
        counted_j = after.energy_j - before.energy_j
        if 0 <= counted_j <= MAX_POWER_W * seconds:
            return counted_j, EnergyMethod.COUNTER, False
    if before.power_w is None or after.power_w is None:
        return None, EnergyMethod.UNKNOWN, True
    return (before.power_w + after.power_w) / 2 * seconds, EnergyMethod.INTEGRATED, has_counter
