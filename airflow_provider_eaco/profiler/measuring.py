"""One set of commands on one GPU: started together, warmed up, and measured for a number of steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from airflow_provider_eaco.core.energy.accounting import DeviceLook, EnergyMethod, energy_between
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.profiler.commands import STEP_PATTERN, Command, RunningCommand

LOOK_S = 0.5


class MeasuringError(EacoError):
    """A set that could not be measured: a command ended, or its steps did not come in time."""


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One look at the GPU; ``None`` is unknown. ``used_mib`` is without the driver's reserve where that can
    be told apart.
    """

    at_s: float
    power_w: float | None = None
    energy_j: float | None = None
    utilisation_pct: float | None = None
    memory_utilisation_pct: float | None = None
    used_mib: int | None = None


class Gpu(Protocol):
    """The GPU that is measured on."""

    uuid: str
    model: str

    def look(self) -> GpuLook: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """``warm_up`` steps of each command are not counted, then at least ``steps`` of each are, all in
    ``max_s`` seconds. ``pattern`` is how the line of a step begins.
    """

    steps: int = 30
    warm_up: int = 3
    max_s: float = 600.0
    pattern: str = STEP_PATTERN


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Steps of one command in the time that was measured: mean and standard deviation of their seconds."""

    family: str
    samples: int
    unit_s: float
    spread_s: float | None


@dataclass(frozen=True, slots=True)
class SetMeasure:
    """What a set did while all of its members were there and warm."""

    members: tuple[StepTimes, ...]
    seconds: float
    energy_j: float | None
    method: EnergyMethod
    power_w: float | None
    utilisation_pct: float | None
    utilisation_max_pct: float | None
    memory_utilisation_pct: float | None
    memory_peak_mib: int | None


@dataclass(slots=True)
class _Window:
    """Looks at the GPU; the peak of memory is that of the whole run, all else of the measured time (C37)."""

    looks: list[GpuLook] = field(default_factory=list)
    peak_mib: int | None = None

    def take(self, look: GpuLook, *, counts: bool) -> None:
        if look.used_mib is not None:
            self.peak_mib = max(self.peak_mib or 0, look.used_mib)
        if counts:
            self.looks.append(look)


def measure(
    commands: Sequence[Command],
    gpu: Gpu,
    limits: Limits,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SetMeasure:
    """Run the commands together on the GPU and return what was measured; all have ended afterwards.

    :raises MeasuringError: naming the command that ended or told too few steps, with its last lines.
    """
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu.uuid}
    running: list[RunningCommand] = []
    window, begun_s = _Window(), clock()
    try:
        running.extend(RunningCommand(each, environment, limits.pattern, clock) for each in commands)
        while not _is_measured(running, limits, window):
            _check(running, limits, clock() - begun_s)
            sleep(LOOK_S)
            is_warm = all(len(each.steps_s()) > limits.warm_up for each in running)
            window.take(gpu.look(), counts=is_warm)
        members = [_times(each, window) for each in running]
    except OSError as error:
        raise MeasuringError(f"a command cannot be started: {error}") from error
    finally:
        for each in running:
            each.end()
    return _measured(tuple(members), window)


def _is_measured(running: Sequence[RunningCommand], limits: Limits, window: _Window) -> bool:
    return len(window.looks) > 1 and all(len(_within(each, window)) > limits.steps for each in running)


def _within(command: RunningCommand, window: _Window) -> list[float]:
    begin_s, end_s = window.looks[0].at_s, window.looks[-1].at_s
    return [at_s for at_s in command.steps_s() if begin_s <= at_s <= end_s]


def _check(running: Sequence[RunningCommand], limits: Limits, elapsed_s: float) -> None:
    for each in running:
        code = each.exit_code()
        if code is not None:
            raise MeasuringError(
                f"{each.family} ended with exit code {code} before enough steps were measured; let it train "
                f"longer, or ask for fewer steps. Its last lines:\n{each.output()}"
            )
    if elapsed_s > limits.max_s:
        told = ", ".join(f"{each.family} {len(each.steps_s())}" for each in running)
        raise MeasuringError(
            f"{limits.max_s:.0f} s were not enough for {limits.warm_up} + {limits.steps} steps of each; "
            f"steps told: {told}. A command tells a step by a line that begins like {limits.pattern!r}"
        )


def _times(command: RunningCommand, window: _Window) -> StepTimes:
    instants = _within(command, window)
    seconds = [after - before for before, after in pairwise(instants)]
    spread_s = statistics.stdev(seconds) if len(seconds) > 1 else None
    return StepTimes(command.family, len(seconds), math.fsum(seconds) / len(seconds), spread_s)


def _measured(members: tuple[StepTimes, ...], window: _Window) -> SetMeasure:
    looks = window.looks
    seconds = looks[-1].at_s - looks[0].at_s
    steps = [energy_between(_device(before), _device(after)) for before, after in pairwise(looks)]
    whole = energy_between(_device(looks[0]), _device(looks[-1]))
    known = [each.energy_j for each in steps if each.energy_j is not None]
    # A counter tells best over the whole time; without one the looks in between do.
    by_counter = whole.method is EnergyMethod.COUNTER
    energy_j = whole.energy_j if by_counter else math.fsum(known) if len(known) == len(steps) else None
    method = whole.method if by_counter else EnergyMethod.INTEGRATED
    busy = [look.utilisation_pct for look in looks if look.utilisation_pct is not None]
    memory = [look.memory_utilisation_pct for look in looks if look.memory_utilisation_pct is not None]
    return SetMeasure(
        members=members,
        seconds=seconds,
        energy_j=energy_j,
        method=EnergyMethod.UNKNOWN if energy_j is None else method,
        power_w=None if energy_j is None else energy_j / seconds,
        utilisation_pct=_mean(busy, looks),
        utilisation_max_pct=max(busy, default=None),
        memory_utilisation_pct=_mean(memory, looks),
        memory_peak_mib=window.peak_mib or None,
    )


def _mean(values: Sequence[float], looks: Sequence[GpuLook]) -> float | None:
    """Return the mean of what every look has told, ``None`` where one of them did not."""
    return math.fsum(values) / len(values) if values and len(values) == len(looks) else None


def _device(look: GpuLook) -> DeviceLook:
    return DeviceLook("gpu", look.at_s, look.power_w, look.energy_j)
