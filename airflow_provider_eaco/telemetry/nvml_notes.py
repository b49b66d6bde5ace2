"""What an operator is told of real GPUs, each thing once, though they are looked at every second."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, RunKey
from airflow_provider_eaco.core.energy.node_energy import NodeEnergy
from airflow_provider_eaco.core.model.gpu import GpuHealth
from airflow_provider_eaco.telemetry.device_health import PROGRAM_XIDS, Verdict
from airflow_provider_eaco.telemetry.nvml_attribution import Attribution
from airflow_provider_eaco.telemetry.nvml_sample import DeviceSample

# How often the sums of energy are told.
ENERGY_INTERVAL_S = 3600.0
# What keeps clocks down and is neither a choice nor the ordinary power limit; told of one GPU this often.
SLOWED = frozenset({"hardware slowdown", "temperature", "hardware temperature", "power brake"})
SLOWED_AGAIN_S = 600.0

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
        self._slowed_at_s: dict[str, float] = {}
        self._energy_told_s: float | None = None

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
        jobs = _jobs(runs)
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

    def note_clocks(self, now_s: float, seen: DeviceSample, runs: Collection[RunKey]) -> None:
        """Tell of a held GPU that heat or its supply slows down: who runs there is not slowed by a neighbour.

        :param now_s: of a clock that never goes back.
        """
        limits = SLOWED.intersection(seen.clock_limits or ())
        told_s = self._slowed_at_s.get(seen.uuid)
        if not limits or not runs or (told_s is not None and now_s - told_s < SLOWED_AGAIN_S):
            return
        self._slowed_at_s[seen.uuid] = now_s
        log.warning(
            "A GPU is slowed down: gpu=%s by=%s temperature_c=%s power_w=%s power_limit_w=%s held_by=%s",
            seen.uuid,
            ", ".join(sorted(limits)),
            seen.temperature_c,
            seen.power_w,
            seen.power_limit_w,
            _jobs(runs),
        )

    def note_energy(self, now_s: float, devices: Iterable[DeviceTotals], node: NodeEnergy) -> None:
        """Tell once an hour what all GPUs have used since the start, and for whom; with a meter of the whole
        machine also what it took beside them, or that this cannot be.

        :param now_s: of a clock that never goes back.
        """
        if self._energy_told_s is None:
            self._energy_told_s = now_s
        if now_s - self._energy_told_s < ENERGY_INTERVAL_S:
            return
        self._energy_told_s = now_s
        totals = list(devices)
        log.info(
            "Energy of the GPUs so far: node=%s runs_j=%.0f idle_j=%.0f strangers_j=%.0f unknown_s=%.0f",
            self._node,
            math.fsum(each.runs_j for each in totals),
            math.fsum(each.idle_j for each in totals),
            math.fsum(each.strangers_j for each in totals),
            math.fsum(each.unknown_s for each in totals),
        )
        if node.host_j is None:
            return
        numbers = (self._node, node.seconds, node.node_j, node.gpus_j)
        if node.is_plausible:
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


def _jobs(runs: Collection[RunKey]) -> str:
    return ", ".join(sorted(job_id for job_id, _ in runs)) or "nobody of ours"
