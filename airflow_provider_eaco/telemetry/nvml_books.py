"""What is kept of each run on real GPUs: its energy, and what it was seen to need while it ran alone.

Not for several threads: :class:`.nvml.NvmlTelemetry` calls it under its lock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_eaco.core.energy.accounting import (
    Consumer,
    DeviceLook,
    EnergyAccounts,
    EnergyMethod,
    EnergyPart,
    RunEnergy,
    RunKey,
)
from airflow_provider_eaco.core.energy.records import RunNote
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.profile import PowerScope
from airflow_provider_eaco.core.ports import Occupant, RunMeter
from airflow_provider_eaco.telemetry.nvml_attribution import Attribution, is_back, used_beside_reserve_mib
from airflow_provider_eaco.telemetry.nvml_sample import DeviceSample, DeviceState, Partition

# Runs that left are kept for a while, so that the account of one can be read after its end.
DEPARTED_KEPT = 64
# A lease that was granted this long before the first sample was already running then.
START_SLACK_S = 10.0

SoloUtilisation = Callable[[str, str, int], float | None]


@dataclass(frozen=True, slots=True)
class Place:
    """What can be held: a device, or a partition of one with ``slices`` of its compute slices."""

    uuid: str
    device: str
    model: str
    slices: int | None = None

    def seen_in(self, device: DeviceSample) -> DeviceSample | Partition:
        """Return what a sample of its device says of it; a partition that is gone has nothing known."""
        if self.slices is None:
            return device
        parts = {part.uuid: part for part in device.partitions}
        return parts.get(self.uuid) or Partition(self.uuid, self.model)


@dataclass(frozen=True, slots=True)
class Sight:
    """One sample, understood: its devices, the places on them, and who uses each place, all by UUID.

    ``at_s`` is its instant, ``steady_s`` the same on the machine's steady clock.
    """

    at_s: float
    steady_s: float
    devices: Mapping[str, DeviceSample]
    places: Mapping[str, Place]
    attributions: Mapping[str, Attribution]

    def use_of(self, place: Place) -> Attribution:
        """Return who uses it; nothing is known of a place that the sample does not show."""
        return self.attributions.get(place.uuid) or Attribution()

    def strangers_pct(self) -> dict[str, float]:
        """Return by device the SM time of those who are none of ours, where there are any."""
        found: dict[str, float] = {}
        for uuid, use in self.attributions.items():
            if use.strangers_pct is not None:
                device = self.places[uuid].device
                found[device] = found.get(device, 0.0) + use.strangers_pct
        return found


@dataclass(slots=True)
class _Seen:
    """What was seen of a run; sums are over the time in which it was alone on its GPUs."""

    memory_peak_mib: int | None = None
    busy_s: float = 0.0
    memory_busy_s: float = 0.0
    busy_known_s: float = 0.0
    most_pct: float | None = None
    energy_j: float = 0.0
    energy_s: float = 0.0

    def meter(self) -> RunMeter:
        known_s = self.busy_known_s
        return RunMeter(
            memory_peak_mib=self.memory_peak_mib,
            utilisation_pct=self.busy_s / known_s if known_s else None,
            utilisation_max_pct=self.most_pct,
            memory_utilisation_pct=self.memory_busy_s / known_s if known_s else None,
            power_w=self.energy_j / self.energy_s if self.energy_s else None,
            scope=PowerScope.BOARD,
        )

    def count_alone(self, seconds: float, devices: Sequence[DeviceSample]) -> None:
        """Count the use of its GPUs, where all of it is known."""
        busy = [device.utilisation_pct for device in devices if device.utilisation_pct is not None]
        memory = [each.memory_utilisation_pct for each in devices if each.memory_utilisation_pct is not None]
        if len(busy) < len(devices) or len(memory) < len(devices):
            return
        self.busy_known_s += seconds
        self.busy_s += seconds * math.fsum(busy) / len(busy)
        self.memory_busy_s += seconds * math.fsum(memory) / len(memory)
        self.most_pct = max(self.most_pct or 0.0, *busy)


class RunBooks:
    """Energy accounts and observations of the runs on one machine's GPUs.

    :param solo_utilisation: mean utilisation of a family alone, by family, GPU model and count.
    """

    def __init__(self, solo_utilisation: SoloUtilisation | None = None) -> None:
        self._solo_utilisation = solo_utilisation
        self.accounts = EnergyAccounts()
        self._occupants: tuple[Occupant, ...] = ()
        # Those since the last sample: what was used before a change belongs to those before it.
        self._since: tuple[Occupant, ...] = ()
        self._solo_pct: dict[RunKey, float | None] = {}
        self._seen: dict[RunKey, _Seen] = {}
        self._pending: dict[tuple[RunKey, str, EnergyMethod], EnergyPart] = {}
        self._first_at_s: float | None = None
        self._last_s: float | None = None
        self._metered: set[str] = set()

    @property
    def holders(self) -> Mapping[str, frozenset[RunKey]]:
        """The runs that hold each GPU now."""
        found: dict[str, set[RunKey]] = defaultdict(set)
        for one in self._occupants:
            for uuid in one.placement.gpu_uuids:
                found[uuid].add(_key(one))
        return {uuid: frozenset(keys) for uuid, keys in found.items()}

    def occupy(self, occupants: Sequence[Occupant], models: Mapping[str, str]) -> None:
        """Note who holds which GPUs from now on.

        :param models: by GPU.
        """
        self._occupants = tuple(occupants)
        for one in occupants:
            uuids = one.placement.gpu_uuids
            if self._solo_utilisation is not None and _key(one) not in self._solo_pct and uuids:
                model = models.get(uuids[0], "")
                self._solo_pct[_key(one)] = self._solo_utilisation(one.family, model, len(uuids))

    def count(self, sight: Sight) -> None:
        """Account for the time since the last sample, and begin the next one with those who hold GPUs now."""
        if self._first_at_s is None:
            self._first_at_s = sight.at_s
        seconds = 0.0 if self._last_s is None else sight.steady_s - self._last_s
        self._last_s = sight.steady_s
        consumers: dict[str, list[Consumer]] = defaultdict(list)
        for one in self._since:
            for uuid in one.placement.gpu_uuids:
                place = sight.places.get(uuid)
                if place is not None:
                    consumers[place.device].append(self._consumer(one, place, sight.use_of(place)))
        looks = [self._look(device, sight.steady_s) for device in sight.devices.values()]
        parts = self.accounts.look(filter(None, looks), consumers, sight.strangers_pct())
        own: dict[RunKey, list[EnergyPart]] = defaultdict(list)
        for part in parts:
            self._add(part)
            own[part.job_id, part.token].append(part)
        for one in self._since:
            self._observe(one, seconds, own[_key(one)], sight)
        self._since = self._occupants
        self._forget_departed()

    def run_meter(self, key: RunKey) -> RunMeter | None:
        """Return what was seen of the run, ``None`` if it never was here, or long ago."""
        seen = self._seen.get(key)
        return None if seen is None else seen.meter()

    def energy(self, key: RunKey) -> RunEnergy | None:
        """Return the energy record of the run up to now, ``None`` if it never was here, or long ago."""
        run = self.accounts.runs.get(key)
        if run is None:
            return None
        return replace(run, awaits_look=any(_key(one) == key for one in (*self._since, *self._occupants)))

    def notes(self, keys: Collection[RunKey]) -> list[RunNote]:
        """Return what is to be kept of these runs beside their joules."""
        runs = [(key, self.accounts.runs.get(key)) for key in keys]
        return [
            RunNote(job_id, token, run.peak_w, frozenset(run.rules))
            for (job_id, token), run in runs
            if run is not None
        ]

    def take_parts(self, wanted: Callable[[RunKey], bool]) -> list[EnergyPart]:
        """Return the energy that was not taken yet, of the runs that are wanted."""
        keys = [each for each in self._pending if wanted(each[0])]
        return [self._pending.pop(each) for each in keys]

    def put_back(self, parts: Sequence[EnergyPart]) -> None:
        """Give parts back that were taken and could not be stored."""
        for part in parts:
            self._add(part)

    def _consumer(self, one: Occupant, place: Place, use: Attribution) -> Consumer:
        granted_s, first_s = one.granted_s, self._first_at_s
        began_before = granted_s is not None and first_s is not None and granted_s < first_s - START_SLACK_S
        return Consumer(
            job_id=one.job_id,
            token=one.token,
            gpu_uuid=place.uuid,
            sm_pct=None if use.sm_pct is None else use.sm_pct.get(_key(one), 0.0),
            solo_pct=self._solo_pct.get(_key(one)),
            slices=place.slices,
            since_start=not began_before,
        )

    def _look(self, device: DeviceSample, steady_s: float) -> DeviceLook | None:
        """Return the look to account for; ``None`` for one that fails for once: a counter bridges it."""
        if device.state is not DeviceState.OK:
            return None
        if device.power_w is not None or device.energy_j is not None:
            self._metered.add(device.uuid)
        elif device.uuid in self._metered:
            return None
        return DeviceLook(device.uuid, steady_s, device.power_w, device.energy_j)

    def is_memory_back(
        self,
        run: RunKey,
        places: Iterable[Place],
        devices: Iterable[DeviceSample],
        owners: Mapping[int, RunKey | None],
    ) -> bool | None:
        """Tell whether a run that has ended has left no memory behind on any of the places that it held;
        ``None`` where that cannot be told of all of them and none is known to be in use still.
        """
        by_uuid, holders = {device.uuid: device for device in devices}, self.holders
        told: list[bool | None] = []
        for place in places:
            device = by_uuid.get(place.device)
            if device is None:
                told.append(None)
                continue
            seen, is_alone = place.seen_in(device), holders.get(place.uuid, frozenset()) <= {run}
            told.append(is_back(seen.processes, seen.memory, owners, run, is_alone=is_alone))
        if False in told:
            return False
        return None if None in told or not told else True

    def _add(self, part: EnergyPart) -> None:
        key = (part.job_id, part.token), part.gpu_uuid, part.method
        known = self._pending.get(key)
        if known is not None:
            sum_j = None if known.energy_j is None else known.energy_j + (part.energy_j or 0.0)
            partial = known.partial or part.partial
            part = replace(known, energy_j=sum_j, seconds=known.seconds + part.seconds, partial=partial)
        self._pending[key] = part

    def _observe(self, one: Occupant, seconds: float, parts: Sequence[EnergyPart], sight: Sight) -> None:
        here = [sight.places[uuid] for uuid in one.placement.gpu_uuids if uuid in sight.places]
        if not here:
            return
        seen = self._seen.setdefault(_key(one), _Seen())
        is_alone = self._is_alone(_key(one), here, sight)
        for place in here:
            used_mib = sight.use_of(place).memory_mib.get(_key(one))
            if used_mib is None and is_alone:
                used_mib = used_beside_reserve_mib(place.seen_in(sight.devices[place.device]).memory)
            if used_mib is not None:
                seen.memory_peak_mib = max(seen.memory_peak_mib or 0, used_mib)
        # What a partition draws and how busy it is cannot be told.
        if not is_alone or seconds <= 0 or any(place.slices is not None for place in here):
            return
        seen.count_alone(seconds, [sight.devices[place.device] for place in here])
        known_j = [part.energy_j for part in parts if part.energy_j is not None]
        if len(known_j) == len(here):
            seen.energy_j += math.fsum(known_j)
            seen.energy_s += seconds

    def _is_alone(self, key: RunKey, here: Sequence[Place], sight: Sight) -> bool:
        mine = {place.uuid for place in here}
        others = any(_key(one) != key and not mine.isdisjoint(one.placement.gpu_uuids) for one in self._since)
        return not others and all(sight.use_of(place).strangers_pct is None for place in here)

    def _forget_departed(self) -> None:
        present = {_key(one) for one in (*self._since, *self._occupants)}
        books: tuple[dict[RunKey, Any], ...] = (self.accounts.runs, self._seen, self._solo_pct)
        for book in books:
            departed = [key for key in book if key not in present]
            for key in departed[: max(0, len(departed) - DEPARTED_KEPT)]:
                del book[key]


def reading_of(place: Place, device: DeviceSample, use: Attribution, at_s: float) -> GpuReading:
    """Return what a sample of its device says of the place, and who uses it."""
    memory = place.seen_in(device).memory
    # What a partition draws and how busy it is cannot be told.
    whole = place.slices is None
    return GpuReading(
        uuid=place.uuid,
        at_s=at_s,
        utilisation_pct=device.utilisation_pct if whole else None,
        memory_used_mib=None if memory is None else memory.used_mib,
        power_w=device.power_w if whole else None,
        energy_j=device.energy_j if whole else None,
        foreign_memory_mib=use.foreign_memory_mib,
        foreign_processes=use.foreign_processes,
        foreign_by=use.foreign_by,
    )


def _key(one: Occupant) -> RunKey:
    return one.job_id, one.token
