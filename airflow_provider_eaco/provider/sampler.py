"""``airflow eaco sampler``: meters tasks that other executors run on this machine's GPUs, and tells of them.

It starts, ends and changes nothing. One thread, the feed's, takes samples in; the main one tells what they
said. What cannot be told now is told later, and nothing that fails here ends the loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.node_runs import NodeReport
from airflow_provider_eaco.core.observed import ObservedReport, ObservedTask
from airflow_provider_eaco.core.ports import EnergyPart
from airflow_provider_eaco.provider.sampler_tasks import SampledTask, TaskTable
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_api import NodeApiError
from airflow_provider_eaco.provider.worker_energy import ReportedEnergy

log = logging.getLogger(__name__)

_LOOK_S = 1.0
# The log says at most this often that the API cannot be reached.
_COMPLAIN_S = 30.0
# As many as the API takes at once; the rest follows when some of them are forgotten.
MAX_TASKS = 512


class Api(Protocol):
    """The provider's API as the sampler needs it."""

    @property
    def interval_s(self) -> float: ...

    def report(self, report: NodeReport) -> object: ...

    def observe(self, report: ObservedReport) -> frozenset[str]: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The node's name, and that of the machine that is it."""

    node: str
    machine: str


class Sampler:
    """The sampler of one node. All methods but :meth:`stop` are for one thread."""

    def __init__(
        self,
        site: Site,
        meter: NodeMeter,
        tasks: TaskTable,
        api: Api,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site = site
        self._meter = meter
        self._tasks = tasks
        self._api = api
        self._monotonic = monotonic
        self._energy = ReportedEnergy()
        self._closed: set[int] = set()
        self._reported_s = float("-inf")
        self._complained_s = float("-inf")
        self._failed_s = float("-inf")
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have :meth:`run` tell what it knows and return."""
        self._stopped.set()

    def run(self) -> None:
        """Work until :meth:`stop`."""
        while not self._stopped.wait(_LOOK_S):
            self._try(self.step)
        self._try(self._report)

    def close(self) -> None:
        """Stop measuring."""
        if self._meter.live is not None:
            self._meter.live.close()

    def step(self) -> None:
        """Close the energy of what has ended, and report where that is due."""
        news = self._close_ended()
        if news or self._monotonic() - self._reported_s >= self._api.interval_s:
            self._report()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            if self._monotonic() - self._failed_s > _COMPLAIN_S:
                self._failed_s = self._monotonic()
                log.exception("What runs on the GPUs was not looked at or told; it is tried again")

    def _close_ended(self) -> bool:
        """Take in all that is known of tasks that have ended since the last look; return whether any has."""
        gone = [task for task in self._tasks.tasks() if task.ended_s is not None]
        ended = [task for task in gone if task.token not in self._closed]
        for task in ended:
            self._closed.add(task.token)
            task.meter = None if self._meter.runs is None else self._meter.runs.run_meter(*task.run)
            if self._meter.energy is not None:
                self._meter.energy.write_energy(*task.run, self._energy)
        return any(not task.is_refused for task in ended)

    def _report(self) -> None:
        self._reported_s = self._monotonic()
        self._tasks.forget()
        tasks = self._tasks.tasks()
        tokens = {task.token for task in tasks if not task.is_refused}
        self._closed &= {task.token for task in tasks}
        if self._meter.live is not None:
            own = {task.run for task in tasks if not task.is_refused}
            self._meter.live.write_interim(own, self._energy)
        self._energy.keep(tokens)
        try:
            self._api.report(self._machine_report())
            unwanted = self._api.observe(self._task_report())
        except NodeApiError as error:
            self._complain(error)
            return
        if unwanted:
            log.info("Not to be observed, and strangers from now on: job_ids=%s", ", ".join(sorted(unwanted)))
            self._tasks.refuse(unwanted)

    def _machine_report(self) -> NodeReport:
        """Return the machine as it is; nothing can be started there, which takes a worker."""
        found = next(iter(self._meter.telemetry.inventory()), None) or Node(self._site.node, ())
        return NodeReport(
            node=replace(found, available=False),
            machine=self._site.machine,
            readings=tuple(self._meter.telemetry.read()),
            counters=self._energy.counters,
        )

    def _task_report(self) -> ObservedReport:
        parts = self._energy.totals()
        tasks = tuple(self._told(task, parts) for task in self._tasks.due()[:MAX_TASKS])
        return ObservedReport(self._site.node, self._site.machine, tasks)

    def _told(self, task: SampledTask, parts: Sequence[EnergyPart]) -> ObservedTask:
        notes = {note.token: note for note in self._energy.notes()}
        return ObservedTask(
            job_id=task.found.job_id,
            process=task.found.name,
            pids=task.found.pids,
            gpu_uuids=task.gpu_uuids,
            running_s=task.found.age_s,
            from_start=task.from_start,
            alone=task.alone,
            ended_s=None if task.ended_s is None else max(0.0, self._monotonic() - task.ended_s),
            energy=tuple(part for part in parts if part.token == task.token),
            note=notes.get(task.token),
            meter=task.meter,
        )

    def _complain(self, error: NodeApiError) -> None:
        if self._monotonic() - self._complained_s > _COMPLAIN_S:
            self._complained_s = self._monotonic()
            log.log(logging.ERROR if error.is_refusal else logging.WARNING, "Not reported: %s", error)
