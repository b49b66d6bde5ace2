"""Real GPUs as a meter: the adapter of the port ``Telemetry`` over samples that come from NVML.

Samples arrive from a process of its own (:mod:`.nvml_feed`); whoever asks for a reading or the inventory gets
what the last one said, at once. A sample that is too old, or that says that NVML is gone, leaves every value
unknown and every GPU with unknown health, so that nothing new starts there and nothing that runs is touched,
until samples come again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from airflow_provider_eaco.core.energy.accounting import DeviceLook, DeviceTotals, RunEnergy, RunKey
from airflow_provider_eaco.core.energy.node_energy import NodeEnergy
from airflow_provider_eaco.core.model.gpu import Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.ports import EnergyLog, EnergyPart, Occupant, RunMeter
from airflow_provider_eaco.telemetry.device_health import HealthBook, Verdict
from airflow_provider_eaco.telemetry.gpu_models import model_of_board
from airflow_provider_eaco.telemetry.host_memory import host_memory_mib
from airflow_provider_eaco.telemetry.machine_counters import MachineCounters
from airflow_provider_eaco.telemetry.nvml_attribution import (
    Attribution,
    ProcessTable,
    Unleased,
    attribute,
    with_users,
)
from airflow_provider_eaco.telemetry.nvml_books import Place, RunBooks, Sight, SoloUtilisation, reading_of
from airflow_provider_eaco.telemetry.nvml_feed import SampleSource
from airflow_provider_eaco.telemetry.nvml_notes import NoteBook
from airflow_provider_eaco.telemetry.nvml_sample import DeviceSample, DeviceState, MachineSample, MemoryUse

# A sample that is older says nothing about now.
STALE_S = 5.0
# How long the very first question waits for the very first sample; no later one waits.
FIRST_WAIT_S = 3.0
# How often what running tasks have used so far is stored, so that a crash costs little of it.
INTERIM_S = 30.0


class NodePower(Protocol):
    """A meter of a whole node."""

    def look(self) -> DeviceLook | None:
        """Return the last reading, at once; ``None`` without any. Its ``uuid`` is the node's name."""

    def close(self) -> None:
        """Stop reading."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a place for good: where it stands and how much memory it has."""

    place: Place
    pci_bus_id: str
    memory: MemoryUse | None


@dataclass(slots=True)
class _Present:
    """The last sample, as it is to be answered from."""

    sample: MachineSample | None = None
    health: dict[str, Verdict] = field(default_factory=dict)
    readings: dict[str, GpuReading] = field(default_factory=dict)


class NvmlTelemetry:
    """The GPUs of this machine. Safe for several threads.

    :param node: the machine's name.
    :param source: where samples come from; started here.
    :param processes: who owns the processes that are seen on GPUs.
    :param solo_utilisation: mean utilisation of a family alone, as far as it is known, by family, GPU model
        and count.
    :param memory_mib: the memory of GPUs that do not tell theirs, by UUID or model; what a GPU tells counts.
    :param node_power: the power meter of the whole machine, where there is one.
    :param clock: seconds since the epoch.
    :param monotonic: the machine's steady clock, which the samples carry.
    """

    def __init__(
        self,
        node: str,
        source: SampleSource,
        processes: ProcessTable,
        *,
        solo_utilisation: SoloUtilisation | None = None,
        memory_mib: Mapping[str, int] | None = None,
        node_power: NodePower | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self._node = node
        self._source = source
        self._processes = processes
        self._clock = clock
        self._monotonic = monotonic
        self._first_wait_s = first_wait_s
        self._lock = threading.Lock()
        self._processes_lock = threading.Lock()
        self._first = threading.Event()
        self._known: dict[str, _Known] = {}
        self._health = HealthBook()
        self._books = RunBooks(solo_utilisation)
        self._unleased = Unleased()
        self._is_told = False
        self._memory_mib = dict(memory_mib or {})
        self._node_power = node_power
        self._node_energy = NodeEnergy()
        self._machine = MachineCounters(node)
        self._notes = NoteBook(node)
        self._present = _Present()
        self._closing: set[RunKey] = set()
        self._interim_at_s = float("-inf")
        self._host_memory_mib = host_memory_mib()
        source.start(self.take)

    def close(self) -> None:
        """Stop sampling."""
        self._source.close()
        if self._node_power is not None:
            self._node_power.close()

    # -- samples -------------------------------------------------------------------------------------------

    def take(self, sample: MachineSample) -> None:
        """Take a sample in: inventory, health, who uses what, and the energy since the last one."""
        with self._lock:
            self._notes.note_problem(sample.problem)
            if sample.problem is None:
                self._learn(sample)
            else:
                self._present = _Present(sample)
        if sample.problem is None:
            uses = self._attributed(sample)
            with self._lock:
                self._count(sample, uses)
        self._first.set()

    def _attributed(self, sample: MachineSample) -> dict[str, Attribution]:
        """Return who uses each place that the sample shows, by those who hold GPUs now."""
        devices = {device.uuid: device for device in sample.devices}
        with self._lock:
            holders = self._books.holders
            places = [known.place for known in self._known.values() if known.place.device in devices]
        active = frozenset(key for keys in holders.values() for key in keys)
        owners = self._owners(sample, active)
        if self._is_told:
            active |= self._unleased.left_behind(owners, active, sample.monotonic_s)
        uses = {}
        for place in places:
            seen, keys = place.seen_in(devices[place.device]), holders.get(place.uuid, frozenset())
            uses[place.uuid] = attribute(seen.processes, seen.memory, owners, keys, active)
        with self._processes_lock:
            return with_users(uses, self._processes.users_of)

    def _owners(self, sample: MachineSample, active: Collection[RunKey]) -> Mapping[int, RunKey | None]:
        pids = set().union(*(device.pids for device in sample.devices))
        with self._processes_lock:
            return self._processes.owners_of(pids, active)

    def _learn(self, sample: MachineSample) -> None:
        """Note which places there are; a device that is no longer listed stays, and is lost."""
        for device in sample.devices:
            before = {uuid: known for uuid, known in self._known.items() if known.place.device == device.uuid}
            if before and device.state is not DeviceState.OK:
                continue
            for uuid in before:
                del self._known[uuid]
            if not device.is_divided:
                own = Place(device.uuid, device.uuid, model_of_board(device.name))
                self._keep(own, device.pci_bus_id, device.memory, before)
            for part in device.partitions:
                place = Place(part.uuid, device.uuid, model_of_board(part.name), part.slices)
                self._keep(place, device.pci_bus_id, part.memory, before)

    def _keep(
        self, place: Place, pci_bus_id: str, memory: MemoryUse | None, before: dict[str, _Known]
    ) -> None:
        # Memory that cannot be read for once has not gone away.
        last = before.get(place.uuid)
        self._known[place.uuid] = _Known(place, pci_bus_id, memory or (last.memory if last else None))

    def _count(self, sample: MachineSample, uses: Mapping[str, Attribution]) -> None:
        devices = {device.uuid: device for device in sample.devices}
        places = {uuid: self._known[uuid].place for uuid in uses}
        holders = self._books.holders
        for uuid, use in uses.items():
            self._notes.note_use(uuid, use, holders.get(uuid, frozenset()))
        self._books.count(Sight(sample.at_s, sample.monotonic_s, devices, places, uses))
        totals = self._books.accounts.devices.values()
        if self._node_power is not None:
            self._node_energy.look(self._node_power.look(), math.fsum(each.energy_j for each in totals))
        self._notes.note_energy(sample.monotonic_s, totals, self._node_energy)
        self._machine.look(sample.at_s, self._books.accounts.devices, self._node_energy)
        verdicts = self._judge(sample, devices)
        health = {uuid: verdicts[known.place.device] for uuid, known in self._known.items()}
        self._present = _Present(sample, health, self._readings(sample, uses))

    def _readings(self, sample: MachineSample, uses: Mapping[str, Attribution]) -> dict[str, GpuReading]:
        devices = {device.uuid: device for device in sample.devices}
        found = {}
        for uuid, use in uses.items():
            place = self._known[uuid].place
            found[uuid] = reading_of(place, devices[place.device], use, sample.at_s)
        return found

    def _judge(self, sample: MachineSample, devices: Mapping[str, DeviceSample]) -> dict[str, Verdict]:
        """Return the health of every device ever seen here."""
        held_by: dict[str, set[RunKey]] = defaultdict(set)
        for uuid, keys in self._books.holders.items():
            if uuid in self._known:
                held_by[self._known[uuid].place.device] |= keys
        verdicts: dict[str, Verdict] = {}
        for uuid in {known.place.device for known in self._known.values()} | devices.keys():
            seen = devices.get(uuid)
            state, xids = (DeviceState.LOST, ()) if seen is None else (seen.state, seen.xids)
            verdicts[uuid] = self._health.judge(uuid, sample.monotonic_s, state, xids)
            self._notes.note_device(uuid, seen, verdicts[uuid], held_by[uuid])
            if seen is not None:
                self._notes.note_clocks(sample.monotonic_s, seen, held_by[uuid])
        return verdicts

    # -- the port ------------------------------------------------------------------------------------------

    def inventory(self) -> Sequence[Node]:
        """Return this machine with every GPU seen since the start; nothing before the first sample.

        The first call waits for that for a moment, all others return at once.
        """
        if not self._first.is_set():
            self._source.refresh()
            self._first.wait(self._first_wait_s)
            self._first_wait_s = 0.0
        with self._lock:
            if not self._known:
                return []
            fresh = self._is_fresh()
            gpus = tuple(self._gpu(index, known, fresh=fresh) for index, known in enumerate(self._in_order()))
            return [Node(self._node, gpus, self._host_memory_mib, last_report_s=self._clock())]

    def read(self) -> Sequence[GpuReading]:
        """Return one reading per GPU, as of the last sample; nothing is known where that is too old."""
        self._source.refresh()
        with self._lock:
            now_s, fresh = self._clock(), self._is_fresh()
            return [
                (self._present.readings.get(known.place.uuid) if fresh else None)
                or GpuReading(known.place.uuid, now_s)
                for known in self._in_order()
            ]

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Note who holds which GPUs from now on, and see the last sample in that light: what was a stranger
        to those who held GPUs before may be one of ours.
        """
        here = [each for each in occupants if each.placement.node == self._node]
        with self._lock:
            models = {uuid: known.place.model for uuid, known in self._known.items()}
            self._books.occupy(here, models)
            self._is_told = True
            sample = self._present.sample
        if sample is None or sample.problem is not None:
            return
        uses = self._attributed(sample)
        with self._lock:
            if self._present.sample is sample:
                self._present.readings = self._readings(sample, uses)

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        """Return what was seen of the job under this token, ``None`` if it never was here."""
        with self._lock:
            return self._books.run_meter((job_id, token))

    def is_memory_back(self, run: RunKey, since_s: float) -> bool | None:
        """Tell whether a run that ended at ``since_s``, on the steady clock, has left no memory behind."""
        with self._lock:
            sample = self._present.sample if self._is_fresh() else None
            holders = self._books.holders
            places = [each.place for each in self._known.values() if run in holders.get(each.place.uuid, ())]
        if sample is None or not places:
            return None
        if sample.monotonic_s <= since_s:
            return False
        owners = self._owners(sample, frozenset(key for keys in holders.values() for key in keys))
        with self._lock:
            return self._books.is_memory_back(run, places, sample.devices, owners)

    # -- energy --------------------------------------------------------------------------------------------

    def write_energy(self, job_id: str, token: int, energy_log: EnergyLog) -> bool:
        """Add what the job has used and was not stored yet to ``energy_log``; return whether it was here.

        What is measured of its last second after this call follows with the next :meth:`write_interim`.
        """
        key = job_id, token
        with self._lock:
            known = self._books.energy(key) is not None
            if known:
                self._closing.add(key)
            parts = self._books.take_parts(lambda each: each == key)
            notes = self._books.notes({key})
        self._store(parts, energy_log)
        for note in notes:
            energy_log.note_run(note)
        return known

    def write_interim(self, own: Collection[RunKey], energy_log: EnergyLog, *, at_once: bool = False) -> None:
        """Add what the caller's runs and the whole machine have used so far, now and then or ``at_once``.

        What the runs of other schedulers on this machine have used is theirs to store, and dropped here.
        """
        now_s = self._monotonic()
        if not at_once and now_s - self._interim_at_s < INTERIM_S:
            return
        self._interim_at_s = now_s
        with self._lock:
            mine = {*own, *self._closing}
            self._closing.clear()
            parts = self._books.take_parts(lambda key: key in mine)
            self._books.take_parts(lambda key: key not in mine)
            notes, counters = self._books.notes(mine), self._machine.present()
        self._store(parts, energy_log)
        for note in notes:
            energy_log.note_run(note)
        if counters is not None and not energy_log.add_machine(counters):
            with self._lock:
                self._machine.begin_anew()

    def run_energy(self, job_id: str, token: int) -> RunEnergy | None:
        """Return the energy record of the job under this token up to now, ``None`` if it never was here."""
        with self._lock:
            return self._books.energy((job_id, token))

    def device_energy(self) -> dict[str, DeviceTotals]:
        """Return what each device has used since the start of this meter, and who used it."""
        with self._lock:
            return dict(self._books.accounts.devices)

    def node_energy(self) -> NodeEnergy:
        """Return what the whole machine has used beside its GPUs, as far as its own power is known."""
        with self._lock:
            return replace(self._node_energy)

    def _store(self, parts: list[EnergyPart], energy_log: EnergyLog) -> None:
        while parts:
            try:
                energy_log.add(parts[0])
            except Exception:
                with self._lock:
                    self._closing.update((part.job_id, part.token) for part in parts)
                    self._books.put_back(parts)
                raise
            del parts[0]

    # -- answers -------------------------------------------------------------------------------------------

    def _is_fresh(self) -> bool:
        sample = self._present.sample
        if sample is None or sample.problem is not None:
            return False
        return self._monotonic() - sample.monotonic_s <= STALE_S

    def _in_order(self) -> list[_Known]:
        """Return all places in PCI order; partitions of one device as they are numbered."""
        return sorted(self._known.values(), key=lambda known: known.pci_bus_id)

    def _gpu(self, index: int, known: _Known, *, fresh: bool) -> Gpu:
        uuid, memory = known.place.uuid, known.memory
        verdict = self._present.health.get(uuid) if fresh else None
        set_mib = self._memory_mib.get(uuid, self._memory_mib.get(known.place.model))
        return Gpu(
            uuid,
            self._node,
            index,
            known.place.model,
            set_mib if memory is None else memory.total_mib,
            0 if memory is None or memory.reserved_mib is None else memory.reserved_mib,
            GpuHealth.UNKNOWN if verdict is None else verdict.health,
        )
