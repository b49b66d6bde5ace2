"""A simulated cluster on virtual time, and jobs that train on it side by side."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.telemetry.simulated import SimulatedCluster, SimulatedDevice, simulated_node
from airflow_provider_eaco.telemetry.truth import TruthTable, parse_truth
from tests.contract.parts import ManualClock

SCALE = 600.0

# Two families with easy numbers on one V100, and what they do to each other.
ROWS = [
    {
        "families": ["slow"],
        "gpu_model": "V100",
        "gpu_count": 1,
        "unit_s": 600,
        "power_w": 100,
        "utilisation_pct": 10,
        "memory_mib": 4000,
    },
    {
        "families": ["fast"],
        "gpu_model": "V100",
        "gpu_count": 1,
        "unit_s": 300,
        "power_w": 200,
        "utilisation_pct": 30,
    },
    {
        "families": ["fast", "slow"],
        "gpu_model": "V100",
        "gpu_count": 1,
        "slowdowns": [2.0, 1.25],
        "power_w": 249,
        "utilisation_pct": 40,
    },
]
TRUTH = TruthTable(ProfileBook(), parse_truth(ROWS))


def make_cluster(
    state: Path, clock: ManualClock, *, gpus: int = 2, truth: TruthTable = TRUTH
) -> SimulatedCluster:
    """Return a cluster of one node, n1, at 600 simulated seconds per wall second."""
    return SimulatedCluster(state, [simulated_node("n1", gpus)], truth, time_scale=SCALE, clock=clock.now_s)


def occupant(
    job_id: str,
    token: int,
    family: str = "slow",
    gpus: Sequence[int] = (0,),
    memory_mib: int | None = None,
) -> Occupant:
    uuids = simulated_node("n1", 16).gpu_uuids
    return Occupant(
        job_id, token, family, Placement("n1", tuple(sorted(uuids[gpu] for gpu in gpus))), memory_mib
    )


@dataclass
class SideBySide:
    """Runs functions that sleep, as if each were a process, on one clock: the one that wakes next runs next.

    Each function gets its own ``sleep``; only one runs at any time, so a run is the same every time.
    """

    clock: ManualClock
    _waiting: list[tuple[float, int, threading.Event]] = field(default_factory=list)
    _turns: int = 0
    _idle: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def run(self, *processes: Callable[[Callable[[float], None]], None]) -> None:
        threads = [
            threading.Thread(target=self._process, args=(process,), daemon=True) for process in processes
        ]
        for thread in threads:
            self._idle.clear()
            thread.start()
            self._idle.wait()
        while self._waiting:
            wake_s, _, event = heapq.heappop(self._waiting)
            self.clock.advance(max(0.0, wake_s - self.clock.now_s()))
            self._idle.clear()
            event.set()
            self._idle.wait()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _process(self, process: Callable[[Callable[[float], None]], None]) -> None:
        try:
            self._sleep(0.0)
            process(self._sleep)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._errors.append(error)
        finally:
            self._idle.set()

    def _sleep(self, seconds: float) -> None:
        event = threading.Event()
        self._turns += 1
        heapq.heappush(self._waiting, (self.clock.now_s() + seconds, self._turns, event))
        self._idle.set()
        event.wait()


def device(state: Path, clock: ManualClock, who: Occupant, sleep: Callable[[float], None]) -> SimulatedDevice:
    """Return the device of a job on virtual time."""
    return SimulatedDevice(state, who.job_id, who.token, clock=clock.now_s, sleep=sleep)
