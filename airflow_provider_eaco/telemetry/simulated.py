"""The simulated node as a meter: the adapter of the port ``Telemetry`` over the device model's file.

Whoever wires it hands in the nodes, the truth and the clock. The executor declares residents
(:meth:`SimulatedCluster.occupy`), tasks do their units through :class:`SimulatedDevice`, and whoever wants to
know what happened reads :meth:`SimulatedCluster.account` or :func:`read_history`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid5

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, RunEnergy, RunKey, SplitRule
from airflow_provider_eaco.core.energy.records import MachineEnergy, RunNote
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.profile import PowerScope
from airflow_provider_eaco.core.ports import EnergyLog, EnergyMethod, EnergyPart, Occupant, RunMeter
from airflow_provider_eaco.telemetry.device_model import DeviceModel
from airflow_provider_eaco.telemetry.gpu_models import GPU_MODELS
from airflow_provider_eaco.telemetry.history import History
from airflow_provider_eaco.telemetry.residents import Resident, ResidentSet, SimulatedNode
from airflow_provider_eaco.telemetry.simulated_device import SimulatedDevice
from airflow_provider_eaco.telemetry.state_file import StateBusyError, StateFile
from airflow_provider_eaco.telemetry.truth import TruthTable, parse_truth

__all__ = [
    "HOLD_LIMIT_S",
    "JobAccount",
    "SimulatedCluster",
    "SimulatedDevice",
    "TruthTable",
    "parse_truth",
    "read_history",
    "simulated_node",
]

HOLD_LIMIT_S = 30.0
# How often what running tasks have used so far is stored, in wall-clock time.
INTERIM_S = 10.0

# Fixed for ever: UUIDs of simulated GPUs must be the same after every restart.
_NAMESPACE = UUID("8d1f4c1e-4f5e-5a53-9a4b-0c6e2f0f6d57")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobAccount:
    """What one job did under one lease token, in simulated time.

    ``energy_j`` is its part of its GPUs' energy, ``run_s`` the time it was resident, ``work_s`` the solo
    seconds of work it did (run / work is its stretch), ``unit_times_s`` the device time of its latest units.
    ``resident``: whether it still is.
    """

    job_id: str
    token: int
    gpu_uuids: tuple[str, ...]
    energy_j: float
    run_s: float
    work_s: float
    units_done: int
    unit_times_s: tuple[float, ...]
    resident: bool


def simulated_node(
    name: str,
    gpus: int = 8,
    gpu_model: str = "V100",
    gpu_memory_mib: int | None = None,
    host_memory_mib: int | None = None,
) -> SimulatedNode:
    """Return a node of ``gpus`` GPUs of a known model, with its memory unless another is named.

    :raises InvalidSettingError: if the model is none of :data:`GPU_MODELS`, or there is no GPU.
    """
    setting = "[eaco] simulated_nodes"
    model = GPU_MODELS.get(gpu_model)
    if model is None:
        allowed = ", ".join(GPU_MODELS)
        raise InvalidSettingError(setting, f"gpu_model of {name} is {gpu_model!r}, must be one of {allowed}")
    if gpus < 1:
        raise InvalidSettingError(setting, f"gpus of {name} is {gpus!r}, must be at least 1")
    return SimulatedNode(
        name=name,
        gpu_uuids=tuple(gpu_uuid(name, index) for index in range(gpus)),
        gpu_model=gpu_model,
        memory_mib=model.memory_mib if gpu_memory_mib is None else gpu_memory_mib,
        idle_w=model.idle_w,
        host_memory_mib=host_memory_mib,
    )


def gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a simulated GPU, the same for ever."""
    return f"GPU-{uuid5(_NAMESPACE, f'{node}/{index}')}"


class SimulatedCluster:
    """The simulated nodes of one state file. Any number of processes may hold one at the same time."""

    def __init__(
        self,
        state: Path,
        nodes: Sequence[SimulatedNode],
        truth: TruthTable,
        *,
        time_scale: float = 1.0,
        hold_limit_s: float = HOLD_LIMIT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < time_scale < math.inf:
            raise InvalidSettingError(
                "[eaco] simulated_time_scale", f"{time_scale!r} must be a finite number above 0"
            )
        self._file = StateFile(state)
        self._nodes = tuple(nodes)
        self._truth = truth
        self._time_scale = time_scale
        self._hold_limit_s = hold_limit_s
        self._clock = clock
        self._state = state
        self._interim_at_s = float("-inf")
        self._read_model: DeviceModel | None = None
        self._read_signature: tuple[int, int, int] | None = None

    def inventory(self) -> Sequence[Node]:
        """Return the configured nodes, reported now."""
        return [_node(node, self._time_scale, self._clock()) for node in self._nodes]

    def read(self) -> Sequence[GpuReading]:
        """Return one reading per GPU. Where the state cannot be read or made, all values are unknown."""
        now_s = self._clock()
        try:
            model = self._file.load() or self._made(now_s)
        except (OSError, StateBusyError) as error:
            log.warning("simulated state cannot be made: path=%s error=%s", self._state, error)
            return [GpuReading(uuid, now_s) for node in self._nodes for uuid in node.gpu_uuids]
        model.advance(now_s)
        sets = {uuid: held for held in model.sets for uuid in held.gpu_uuids}
        return [
            _reading(model, node, uuid, sets.get(uuid), now_s)
            for node in self._nodes
            for uuid in node.gpu_uuids
        ]

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Declare who holds which GPUs from now on, as one change at one simulated instant.

        :raises ValueError: if two occupants share only a part of their GPUs.
        :raises StateBusyError: if the state is locked for too long.
        :raises OSError: if it cannot be written.
        """
        with self._file.change(self._clock(), self._make) as model:
            if model is None:  # pragma: no cover - change() yields a model where it is told how to make one
                return
            wanted = self._nodes, self._time_scale, self._hold_limit_s
            if (model.nodes, model.time_scale, model.hold_limit_s) != wanted:
                log.info("simulated nodes were configured anew: path=%s", self._state)
                model.reconfigure(*wanted)
            model.occupy(occupants, self._truth.of)

    def account(self, job_id: str, token: int) -> JobAccount | None:
        """Return what the job did so far under this token; ``None`` if it never was here, or long ago."""
        found = self._find(job_id, token)
        return None if found is None else _account(found[0], resident=found[1])

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        """Return what the job drew and used so far under this token, as the device model has it."""
        found = self._find(job_id, token)
        return None if found is None else _run_meter(found[0])

    def energy_of(self, job_id: str) -> float | None:
        """Return the job's energy in joules over all its stays; ``None`` if it never was here."""
        found = self.history()
        parts = [] if found is None else [part for part in found.residents if part.job_id == job_id]
        return sum(part.energy_j for part in parts) if parts else None

    def write_energy(self, job_id: str, token: int, energy_log: EnergyLog) -> bool:
        """Bring ``energy_log`` to the job's account, evenly over its GPUs; return whether there is one."""
        found = self._find(job_id, token)
        if found is None:
            return False
        one = found[0]
        part_j = one.energy_j / len(one.gpu_uuids)
        for uuid in one.gpu_uuids:
            energy_log.bring_to(EnergyPart(job_id, token, uuid, part_j, one.run_s, EnergyMethod.MODEL))
        run = _run_energy(one)
        energy_log.note_run(RunNote(job_id, token, run.peak_w, frozenset(run.rules)))
        return True

    def write_interim(self, own: Collection[RunKey], energy_log: EnergyLog, *, at_once: bool = False) -> None:
        """Bring ``energy_log`` to what these runs and the nodes have used so far, now and then or
        ``at_once``.
        """
        now_s = self._clock()
        if not at_once and 0 <= now_s - self._interim_at_s < INTERIM_S:
            return
        self._interim_at_s = now_s
        for job_id, token in own:
            self.write_energy(job_id, token, energy_log)
        model = self._model_now()
        if model is not None:
            for node in model.nodes:
                energy_log.add_machine(_machine_energy(model, node))

    def run_energy(self, job_id: str, token: int) -> RunEnergy | None:
        """Return the energy record of the job under this token up to now, in simulated time.

        Who was beside it is not told: the ledger knows.
        """
        found = self._find(job_id, token)
        return None if found is None else _run_energy(found[0])

    def close(self) -> None:
        """Nothing was opened."""

    def history(self) -> History | None:
        """Return all that happened since the state began; ``None`` without a state."""
        return self._file.history(self._clock())

    def _find(self, job_id: str, token: int) -> tuple[Resident, bool] | None:
        """Return the job under this token, and whether it is resident now."""
        model = self._model_now()
        if model is None:
            return None
        key = job_id, token
        one = model.residents.get(key) or model.departed.get(key)
        return None if one is None else (one, key in model.residents)

    def _model_now(self) -> DeviceModel | None:
        """Return the present state, read anew only if the file has changed: many ask for many jobs."""
        signature = self._file.signature()
        if signature is None or signature != self._read_signature:
            self._read_model, self._read_signature = self._file.load(), signature
        if self._read_model is not None:
            self._read_model.advance(self._clock())
        return self._read_model

    def _make(self) -> DeviceModel:
        now_s = self._clock()
        if self._state.exists():
            log.warning("simulated state is damaged and begins anew, with new counters: path=%s", self._state)
        else:
            log.info("simulated state begins: path=%s", self._state)
        return DeviceModel(self._nodes, self._time_scale, self._hold_limit_s, generation=now_s, wall_s=now_s)

    def _made(self, now_s: float) -> DeviceModel:
        with self._file.change(now_s, self._make) as model:
            assert model is not None  # noqa: S101 - change() yields a model where it is told how to make one
            return model


def read_history(state: Path, wall_s: float) -> History | None:
    """Return what happened on the nodes of ``state`` up to a wall instant; ``None`` without a state."""
    return StateFile(state).history(wall_s)


def _node(node: SimulatedNode, time_scale: float, now_s: float) -> Node:
    gpus = tuple(
        Gpu(uuid, node.name, index, node.gpu_model, node.memory_mib)
        for index, uuid in enumerate(node.gpu_uuids)
    )
    return Node(node.name, gpus, node.host_memory_mib, last_report_s=now_s, time_scale=time_scale)


def _reading(
    model: DeviceModel, node: SimulatedNode, uuid: str, held: ResidentSet | None, now_s: float
) -> GpuReading:
    energy_j = model.gpu_energy_j.get(uuid)
    if energy_j is None:
        return GpuReading(uuid, now_s)
    if held is None:
        return GpuReading(uuid, now_s, 0.0, 0, node.idle_w, energy_j, 0, 0)
    memories = [model.residents[key].memory_mib for key in held.members]
    known = [memory for memory in memories if memory is not None]
    return GpuReading(
        uuid=uuid,
        at_s=now_s,
        utilisation_pct=held.utilisation_pct,
        memory_used_mib=min(sum(known), node.memory_mib) if len(known) == len(memories) else None,
        power_w=held.power_w / len(held.gpu_uuids),
        energy_j=energy_j,
        foreign_memory_mib=0,
        foreign_processes=0,
    )


def _account(one: Resident, *, resident: bool) -> JobAccount:
    return JobAccount(
        job_id=one.job_id,
        token=one.token,
        gpu_uuids=one.gpu_uuids,
        energy_j=one.energy_j,
        run_s=one.run_s,
        work_s=one.work_s,
        units_done=one.units_done,
        unit_times_s=tuple(one.unit_times_s),
        resident=resident,
    )


def _run_meter(one: Resident) -> RunMeter:
    if not one.alone_s:
        return RunMeter(memory_peak_mib=one.memory_mib)
    return RunMeter(
        memory_peak_mib=one.memory_mib,
        utilisation_pct=100 * one.alone_busy_s / one.alone_s,
        power_w=one.alone_energy_j / one.alone_s,
        scope=PowerScope.NODE,
    )


def _run_energy(one: Resident) -> RunEnergy:
    was_shared = one.alone_s < one.run_s
    return RunEnergy(
        energy_j=one.energy_j,
        seconds=one.run_s,
        known_s=one.run_s,
        peak_w=one.peak_w if one.run_s else None,
        methods={EnergyMethod.MODEL},
        rules={SplitRule.PROFILE} if was_shared else {SplitRule.ALONE},
    )


def _machine_energy(model: DeviceModel, node: SimulatedNode) -> MachineEnergy:
    devices = {}
    for uuid in node.gpu_uuids:
        energy_j, idle_j = model.gpu_energy_j[uuid], model.gpu_idle_j.get(uuid, 0.0)
        devices[uuid] = DeviceTotals(energy_j, energy_j - idle_j, idle_j)
    origin = f"{node.name}:simulated:{model.generation!r}"
    return MachineEnergy(node.name, origin, model.generation, model.wall_s, devices)
