"""Reads the GPUs of this machine through NVML; :mod:`.nvml_limits` alone changes anything about them.

Each value is asked for by itself, and whatever one question meets costs only its own answer: not supported,
no permission, an unknown error and a text that cannot be decoded leave that value unknown, with the cause.
Two things reach further. A device that is lost, or of no use before a reset, is not asked anything more until
it is found again; and where NVML as a whole is gone :class:`NvmlGoneError` tells the caller to start anew,
since only a new process gets a new driver's library.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.telemetry.nvml_sample import (
    DeviceSample,
    DeviceState,
    MachineSample,
    MemoryUse,
    Partition,
    ProcessUse,
)

# How often the list of devices is looked through; sooner while one is lost, so that it is soon back. NVML is
# started anew for that, which may take seconds where no driver is kept loaded.
RESCAN_S = 30.0
RESCAN_LOST_S = 15.0

MIB = 2**20
# Values beyond these are NVML's way of saying that there is none (all bits set), or broken.
_MOST_W = 10_000.0
_MOST_J = 1e15
_MOST_C = 250

_GONE = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")
_LOST = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# Asking again before the next scan would give the same answer.
_LASTING = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION")
_XID_EVENT = 0x8
_EVENTS_A_LOOK = 64

# nvmlClocksEventReason*: the bits that say what keeps the clocks down. An idle GPU and clocks that a user
# chose are no limits.
_CLOCK_LIMITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "hardware temperature",
    0x80: "power brake",
}
_BASIC = ("utilisation", "memory", "power", "energy", "temperature")


class NvmlGoneError(EacoError):
    """NVML cannot be asked at all: no library, no driver, or a driver of another version."""


@dataclass(slots=True)
class _Device:
    """What stays the same of a device from one scan to the next.

    Why a value is not known: ``lasting`` ones are not asked for again before the next scan, ``scanned`` ones
    are asked for by scans alone, ``unknown`` ones failed in this look.
    """

    uuid: str
    index: int
    handle: Any
    name: str
    pci_bus_id: str
    is_lost: bool = False
    limits_w: tuple[float, float] | None = None
    is_divided: bool = False
    partitions: list[tuple[Any, Partition]] = field(default_factory=list)
    sm_seen_us: int = 0
    lasting: dict[str, str] = field(default_factory=dict)
    scanned: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    xids: list[int] = field(default_factory=list)


class NvmlReader:
    """One machine's GPUs. Not for several threads; a call into the driver may hang, so give it a process.

    :param clock: seconds since the epoch.
    :param monotonic: seconds of the machine's steady clock.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._clock = clock
        self._monotonic = monotonic
        self._devices: dict[str, _Device] = {}
        self._events: Any = None
        self._heard: frozenset[int | None] = frozenset()
        self._scanned_s: float | None = None
        self._gone = self._codes(_GONE)
        self._lost = self._codes(_LOST)
        self._lasting = self._codes(_LASTING)
        self._none = self._codes(("NOT_FOUND",)) | {0}

    def open(self) -> None:
        """Make NVML ready.

        :raises NvmlGoneError: with NVML's cause.
        """
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NvmlGoneError(f"NVML cannot be started: {error}") from error
        self._scanned_s = None

    def close(self) -> None:
        """Give NVML back; what fails then no longer matters."""
        self._events = None
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def sample(self) -> MachineSample:
        """Return one look at all GPUs, those that are lost included.

        :raises NvmlGoneError: if NVML as a whole is gone.
        """
        now_s = self._monotonic()
        some_lost = any(device.is_lost for device in self._devices.values())
        if self._scanned_s is None or now_s - self._scanned_s >= (RESCAN_LOST_S if some_lost else RESCAN_S):
            if some_lost:
                # A card that was reset is seen again only by an NVML that was started after it.
                self.close()
                self.open()
            self._scan()
            self._scanned_s = now_s
        self._take_events()
        devices = sorted(self._devices.values(), key=lambda device: (device.pci_bus_id, device.index))
        samples = tuple(self._look(device) for device in devices)
        return MachineSample(self._clock(), now_s, samples)

    # -- which devices there are ---------------------------------------------------------------------------

    def _scan(self) -> None:
        found: set[str] = set()
        for index in range(self._whole("nvmlDeviceGetCount")):
            device = self._found(index)
            if device is not None:
                found.add(device.uuid)
        for device in self._devices.values():
            if device.uuid not in found:
                device.is_lost = True
        self._listen()
        for device in self._devices.values():
            device.scanned = dict(device.unknown)

    def _found(self, index: int) -> _Device | None:
        """Return the device at NVML's ``index`` with a handle that is good now; ``None`` if it is lost."""
        try:
            handle = self._whole("nvmlDeviceGetHandleByIndex", index)
            uuid = self._whole("nvmlDeviceGetUUID", handle)
        except self._nvml.NVMLError:
            return None
        known = self._devices.get(uuid)
        device = _Device(uuid, index, handle, "", "") if known is None else known
        device.index, device.handle, device.is_lost = index, handle, False
        device.lasting.clear()
        device.unknown.clear()
        device.name = self._ask(device, "name", "nvmlDeviceGetName") or device.name
        pci = self._ask(device, "pci", "nvmlDeviceGetPciInfo")
        if pci is not None:
            device.pci_bus_id = _text(pci.busId)
        span = self._ask(device, "power_limits", "nvmlDeviceGetPowerManagementLimitConstraints")
        device.limits_w = None if span is None else (span[0] / 1000, span[1] / 1000)
        mode = self._ask(device, "mig", "nvmlDeviceGetMigMode")
        device.is_divided = bool(mode and mode[0])
        device.partitions = list(self._partitions(device)) if device.is_divided else []
        if device.is_lost:
            return None
        self._devices[uuid] = device
        return device

    def _partitions(self, device: _Device) -> list[tuple[Any, Partition]]:
        count = self._ask(device, "partitions", "nvmlDeviceGetMaxMigDeviceCount") or 0
        found = []
        for number in range(count):
            try:
                handle = self._whole("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, number)
                uuid = self._whole("nvmlDeviceGetUUID", handle)
            except self._nvml.NVMLError:  # this place is free
                continue
            name = self._ask(device, "partition_name", "nvmlDeviceGetName", handle) or f"{device.name} MIG"
            attributes = self._ask(device, "slices", "nvmlDeviceGetAttributes_v2", handle)
            slices = 1 if attributes is None else max(1, attributes.computeInstanceSliceCount)
            found.append((handle, Partition(uuid, name, slices)))
        return found

    # -- what they do --------------------------------------------------------------------------------------

    def _look(self, device: _Device) -> DeviceSample:
        xids, device.xids = tuple(device.xids), []
        device.unknown = {}
        utilisation = self._ask(device, "utilisation", "nvmlDeviceGetUtilizationRates")
        power_mw = self._ask(device, "power", "nvmlDeviceGetPowerUsage")
        limit_mw = self._ask(device, "power_limit", "nvmlDeviceGetEnforcedPowerLimit")
        energy_mj = self._ask(device, "energy", "nvmlDeviceGetTotalEnergyConsumption")
        temperature = self._ask(device, "temperature", "nvmlDeviceGetTemperature", device.handle, 0)
        memory = self._memory(device, device.handle)
        processes = None if device.is_divided else self._processes(device, device.handle)
        partitions = tuple(self._partition(device, *each) for each in device.partitions)
        limits = self._ask(device, "clock_limits", "nvmlDeviceGetCurrentClocksEventReasons")
        return DeviceSample(
            uuid=device.uuid,
            index=device.index,
            name=device.name,
            pci_bus_id=device.pci_bus_id,
            state=_state(device),
            utilisation_pct=None if utilisation is None else _within(utilisation.gpu, 100),
            memory_utilisation_pct=None if utilisation is None else _within(utilisation.memory, 100),
            memory=memory,
            power_w=_thousandth(power_mw, _MOST_W),
            power_limit_w=_thousandth(limit_mw, _MOST_W),
            power_limit_range_w=device.limits_w,
            energy_j=_thousandth(energy_mj, _MOST_J),
            temperature_c=_within(temperature, _MOST_C),
            clock_limits=None
            if limits is None
            else tuple(name for bit, name in _CLOCK_LIMITS.items() if limits & bit),
            processes=processes,
            is_divided=device.is_divided,
            partitions=partitions,
            xids=xids,
            unknown={**device.lasting, **device.scanned, **device.unknown},
        )

    def _partition(self, device: _Device, handle: Any, partition: Partition) -> Partition:
        of = f"{partition.uuid} "
        memory = self._memory(device, handle, of)
        processes = self._processes(device, handle, of)
        return Partition(partition.uuid, partition.name, partition.slices, memory, processes)

    def _memory(self, device: _Device, handle: Any, of: str = "") -> MemoryUse | None:
        second = getattr(self._nvml, "nvmlMemory_v2", None)
        told = None
        if second is not None:
            told = self._ask(device, f"{of}reserved_memory", "nvmlDeviceGetMemoryInfo", handle, second)
        reserved = None if told is None else told.reserved
        if told is None:
            told = self._ask(device, f"{of}memory", "nvmlDeviceGetMemoryInfo", handle)
        if told is None or not 0 < told.total < 2**60 or not 0 <= told.used <= told.total:
            return None
        return MemoryUse(told.total // MIB, told.used // MIB, None if reserved is None else reserved // MIB)

    def _processes(self, device: _Device, handle: Any, of: str = "") -> tuple[ProcessUse, ...] | None:
        compute = self._ask(device, f"{of}processes", "nvmlDeviceGetComputeRunningProcesses", handle)
        if compute is None:
            return None
        graphics = self._ask(
            device, f"{of}graphics_processes", "nvmlDeviceGetGraphicsRunningProcesses", handle
        )
        sm_pct = None if device.is_divided else self._sm_time(device)
        found: dict[int, ProcessUse] = {}
        for is_compute, listed in ((False, graphics or ()), (True, compute)):
            for one in listed:
                used_mib = None if one.usedGpuMemory is None else one.usedGpuMemory // MIB
                share = None if sm_pct is None else sm_pct.get(one.pid, 0.0)
                found[one.pid] = ProcessUse(one.pid, is_compute, used_mib, share)
        return tuple(found.values())

    def _sm_time(self, device: _Device) -> dict[int, float] | None:
        """Return the SM time of processes since the last look in per cent, ``None`` where nobody can tell."""
        samples = self._ask(
            device, "sm_time", "nvmlDeviceGetProcessUtilization", device.handle, device.sm_seen_us
        )
        if samples is None and device.unknown.get("sm_time") == _NONE:
            # No sample since then: nobody worked. NVML says so by an error, pynvml also by one of "success".
            del device.unknown["sm_time"]
            return {}
        if samples is None:
            return None
        samples = [one for one in samples if one.timeStamp > device.sm_seen_us]
        instants = {one.timeStamp for one in samples}
        device.sm_seen_us = max([device.sm_seen_us, *instants])
        total: dict[int, float] = {}
        for one in samples:
            if one.smUtil <= 100:
                total[one.pid] = total.get(one.pid, 0.0) + one.smUtil
        return {pid: pct / max(1, len(instants)) for pid, pct in total.items()}

    # -- Xid -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Listen to the critical errors of all devices, where others are there than the last time."""
        nvml = self._nvml
        present = frozenset(_address(each.handle) for each in self._devices.values() if not each.is_lost)
        if self._events is not None and present == self._heard:
            return
        self._heard = present
        try:
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
            self._events = nvml.nvmlEventSetCreate()
        except Exception as error:  # noqa: BLE001 - without events the rest is read all the same
            self._events = None
            for device in self._devices.values():
                device.lasting["xid"] = str(error)
            return
        for device in self._devices.values():
            if not device.is_lost:
                self._ask(device, "xid", "nvmlDeviceRegisterEvents", device.handle, _XID_EVENT, self._events)

    def _take_events(self) -> None:
        for _ in range(_EVENTS_A_LOOK if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait(self._events, 0)
            except Exception:  # noqa: BLE001 - usually the time-out that says that there is none
                return
            device = self._device_of(event.device)
            if device is not None and event.eventType & _XID_EVENT:
                device.xids.append(int(event.eventData))

    def _device_of(self, handle: Any) -> _Device | None:
        address = _address(handle)
        for device in self._devices.values():
            if _address(device.handle) == address:
                return device
        return None

    # -- questions -----------------------------------------------------------------------------------------

    def _whole(self, function: str, *arguments: Any) -> Any:
        """Ask what concerns no single value.

        :raises NvmlGoneError: if NVML as a whole is gone; other errors of NVML pass.
        """
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._gone:
                raise NvmlGoneError(f"NVML is gone: {error}") from error
            raise

    def _ask(self, device: _Device, what: str, function: str, *arguments: Any) -> Any:
        """Return the answer, or ``None`` and note why there is none. Without arguments it is the device's."""
        if device.is_lost or what in device.lasting:
            return None
        try:
            return getattr(self._nvml, function)(*(arguments or (device.handle,)))
        except self._nvml.NVMLError as error:
            if error.value in self._gone:
                raise NvmlGoneError(f"NVML is gone: {error}") from error
            device.is_lost = error.value in self._lost
            noted = device.lasting if error.value in self._lasting else device.unknown
            noted[what] = _NONE if error.value in self._none else str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this value is unknown
            device.unknown[what] = f"{type(error).__name__}: {error}"
        return None

    def _codes(self, names: Sequence[str]) -> frozenset[int]:
        codes = (getattr(self._nvml, f"NVML_ERROR_{name}", None) for name in names)
        return frozenset(code for code in codes if code is not None)


_NONE = "there is none"


def _state(device: _Device) -> DeviceState:
    if device.is_lost:
        return DeviceState.LOST
    silent = all(what in device.unknown or what in device.lasting for what in _BASIC)
    return DeviceState.SILENT if silent else DeviceState.OK


def _within(value: int | None, most: int) -> int | None:
    return value if value is not None and 0 <= value <= most else None


def _thousandth(value: int | None, most: float) -> float | None:
    return None if value is None or not 0 <= value / 1000 <= most else value / 1000


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
