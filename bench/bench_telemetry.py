"""What reading eight real GPUs once a second costs, measured on a library that answers as NVML does.

CPU time of one sample: every call of pynvml, the line to the scheduler, and there its reading, the owners of
32 processes out of ``/proc`` and the energy accounts of 32 residents. The library answers from memory, so
what a driver's own work costs on top is not in it. A sample a second below 10 ms is less than 1 % of a core.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.dispatch.process_owner import ProcessOwners
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from airflow_provider_eaco.telemetry.nvml_feed import Deliver
from airflow_provider_eaco.telemetry.nvml_reader import NvmlReader
from airflow_provider_eaco.telemetry.nvml_sample import MachineSample
from bench.figures import Aim, Figure, Kind, Outcome, figures_of
from tests.nvml.machine import CONTROL_VARIABLE, GIB, FakeMachine, build_library, load_library

GPUS, RESIDENTS_A_GPU = 8, 4
SAMPLE_AIM_MS = 10.0


class _Still:
    """A source that delivers when the benchmark says so."""

    deliver: Deliver

    def start(self, deliver: Deliver) -> None:
        self.deliver = deliver

    def refresh(self) -> None:
        """Nothing comes by itself."""

    def close(self) -> None:
        """Nothing runs."""


def make_machine(folder: Path) -> FakeMachine:
    """Return a machine of eight busy GPUs with four processes each.

    They are real processes of this machine and none of ours: those are looked up anew in every sample.
    """
    machine = FakeMachine(folder / "nvml.txt")
    machine.add_gpus(GPUS, gpu_pct=80, memory_pct=40, used=12 * GIB)
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for number in range(GPUS * RESIDENTS_A_GPU):
        machine.processes.append((number % GPUS, "c", pids[number % len(pids)], GIB, 20))
    machine.write()
    return machine


def run(*, quick: bool) -> Outcome:
    """Measure both halves of a sample: in the sampling process, and in the scheduler's."""
    build_library()
    load_library()
    # It would tell of the strangers.
    logging.getLogger("airflow_provider_eaco.telemetry").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="eaco-bench-") as folder:
        machine = make_machine(Path(folder))
        os.environ[CONTROL_VARIABLE] = str(machine.path)
        return Outcome(_measure(machine, 50 if quick else 500))


def _measure(machine: FakeMachine, rounds: int) -> list[Figure]:
    source = _Still()
    meter = NvmlTelemetry("n1", source, ProcessOwners(), first_wait_s=0.0)
    reader = NvmlReader()
    reader.open()
    source.deliver(reader.sample())
    meter.occupy(
        [
            Occupant(f"j{number}", number, "f", Placement("n1", (machine.gpus[number % GPUS]["uuid"],)), None)
            for number in range(GPUS * RESIDENTS_A_GPU)
        ]
    )
    sampling_ms, taking_ms = [], []
    for _ in range(rounds):
        begin_s = time.process_time()
        line = reader.sample().as_line()
        middle_s = time.process_time()
        source.deliver(MachineSample.from_line(line))
        end_s = time.process_time()
        sampling_ms.append((middle_s - begin_s) * 1000)
        taking_ms.append((end_s - middle_s) * 1000)
    reader.close()
    aim = Aim(SAMPLE_AIM_MS / 2)
    return [
        *figures_of("telemetry, one sample of 8 GPUs", sampling_ms, "ms", Kind.CPU_TIME, median_aim=aim),
        *figures_of("telemetry, its use by the scheduler", taking_ms, "ms", Kind.CPU_TIME, median_aim=aim),
    ]
