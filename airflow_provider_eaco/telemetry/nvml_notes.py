"""What an operator is told of real GPUs, each thing once, though they are looked at every second."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from airflow_provider_eaco.core.energy.accounting import RunKey
from airflow_provider_eaco.core.energy.node_energy import NodeEnergy
from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.telemetry.device_health import PROGRAM_XIDS, Verdict
from airflow_provider_eaco.telemetry.nvml_attribution import Attribution
from airflow_provider_eaco.telemetry.nvml_sample import DeviceSample

# How often a node's own meter is held against its GPUs.
NODE_INTERVAL_S = 3600.0

log = logging.getLogger(__name__)


class NoteBook:
    """Logs what changed since the last time."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._problem: str | None = None
        self._causes: dict[str, str | None] = {}
        self._unknown: set[tuple[str, str]] = set()
        self._strangers: set[str] = set()
        self._trespassers: set[tuple[str, RunKey]] = set()
        self._node_told_s = 0.0

    def note_problem(self, problem: str | None) -> None:
        """Tell that NVML as a whole cannot be asked, or can again."""
        if problem == self._problem:
            return
        if problem is not None:
            log.warning("GPUs cannot be read and take no work: node=%s cause=%s", self._node, problem)
        else:
            log.info("GPUs can be read again: node=%s", self._node)
        self._problem = problem

    def note_device(
        self, uuid: str, seen: DeviceSample | None, verdict: Verdict, runs: Collection[RunKey]
    ) -> None:
        """Tell of Xids, of values that cannot be read, and of a health that changed.

        :param runs: those that hold the device or a part of it.
        """
        jobs = ", ".join(sorted(job_id for job_id, _ in runs)) or "nobody of ours"
        for xid in () if seen is None else seen.xids:
            blame = "the program's" if xid in PROGRAM_XIDS else "the hardware's"
            log.warning("Xid %s, %s: gpu=%s held_by=%s", xid, blame, uuid, jobs)
        if seen is not None and verdict.health is GpuHealth.HEALTHY:
            self._note_unknown(uuid, seen.unknown)
        if self._causes.get(uuid) != verdict.why:
            self._causes[uuid] = verdict.why
            if verdict.why is None:
                log.info("A GPU takes work again: gpu=%s", uuid)
            else:
                log.warning("A GPU takes no new work: gpu=%s cause=%s held_by=%s", uuid, verdict.why, jobs)

    def _note_unknown(self, uuid: str, unknown: Mapping[str, str]) -> None:
        # Whether a card can be divided is no value that anybody misses.
        new = {what for what in unknown if (uuid, what) not in self._unknown} - {"mig"}
        if new:
            self._unknown.update((uuid, what) for what in new)
            told = "; ".join(f"{what}: {unknown[what]}" for what in sorted(new))
            log.info("Not known of a GPU: gpu=%s %s", uuid, told)

    def note_node(self, energy: NodeEnergy) -> None:
        """Tell once an hour of metered time what the machine took beside its GPUs, or that this cannot be."""
        if energy.seconds - self._node_told_s < NODE_INTERVAL_S:
            return
        self._node_told_s = energy.seconds
        numbers = (self._node, energy.seconds, energy.node_j, energy.gpus_j)
        if energy.is_plausible:
            log.info("Energy of the machine: node=%s seconds=%.0f node_j=%.0f gpus_j=%.0f", *numbers)
        else:
            log.warning(
                "The GPUs took more than the machine, so one meter is wrong or of another machine: "
                "node=%s seconds=%.0f node_j=%.0f gpus_j=%.0f",
                *numbers,
            )

    def note_use(self, uuid: str, use: Attribution, holders: Collection[RunKey]) -> None:
        """Tell of strangers beside our runs, and of runs on GPUs that they do not hold."""
        is_beside = bool(holders) and bool(use.foreign_processes)
        if is_beside and uuid not in self._strangers:
            log.warning(
                "Somebody else computes on a GPU that is held: gpu=%s processes=%s memory_mib=%s",
                uuid,
                use.foreign_processes,
                use.foreign_memory_mib,
            )
        (self._strangers.add if is_beside else self._strangers.discard)(uuid)
        for job_id, token in use.trespassers:
            if (uuid, (job_id, token)) not in self._trespassers:
                self._trespassers.add((uuid, (job_id, token)))
                log.warning("A task uses a GPU that it was not granted: gpu=%s job_id=%s", uuid, job_id)
