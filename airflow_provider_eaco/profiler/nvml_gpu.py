"""The GPU that is measured on, through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.profiler.measuring import GpuLook
from airflow_provider_eaco.telemetry.gpu_models import model_of_board
from airflow_provider_eaco.telemetry.nvml_reader import NvmlReader
from airflow_provider_eaco.telemetry.nvml_sample import DeviceSample


class NoGpuError(EacoError):
    """There is no such GPU, or it cannot be measured on."""


class NvmlGpu:
    """One GPU by its index, UUID or the only one.

    :raises NoGpuError: naming those that there are.
    :raises NvmlGoneError: if NVML cannot be used.
    """

    def __init__(self, wanted: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = NvmlReader(monotonic=clock)
        self._clock = clock
        self._reader.open()
        try:
            found = self._find(wanted)
        except BaseException:
            self._reader.close()
            raise
        self.uuid, self.model = found.uuid, model_of_board(found.name)

    def look(self) -> GpuLook:
        """Return what NVML tells now; what it does not tell is unknown."""
        device = next(
            (each for each in self._reader.sample().devices if each.uuid == self.uuid),
            DeviceSample(self.uuid, 0, ""),
        )
        memory = device.memory
        return GpuLook(
            self._clock(),
            device.power_w,
            device.energy_j,
            device.utilisation_pct,
            device.memory_utilisation_pct,
            None if memory is None else memory.used_mib,
        )

    def close(self) -> None:
        """Give NVML back."""
        self._reader.close()

    def _find(self, wanted: str | None) -> DeviceSample:
        devices = self._reader.sample().devices
        named = ", ".join(f"{each.index} ({each.uuid}, {each.name})" for each in devices) or "none"
        chosen = [each for each in devices if wanted in {None, str(each.index), each.uuid}]
        if len(chosen) != 1:
            raise NoGpuError(f"--gpu: {wanted or 'nothing'} names {len(chosen)} GPUs; there are: {named}")
        (device,) = chosen
        if device.is_divided:
            raise NoGpuError(f"--gpu: {device.uuid} is divided by MIG; its parts have no power to measure")
        if device.processes:
            pids = ", ".join(str(process.pid) for process in device.processes)
            raise NoGpuError(f"--gpu: {device.uuid} is used by other processes: {pids}")
        return device
