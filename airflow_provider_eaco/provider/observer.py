"""Tasks of other executors, from a sampler's report to the store: who they are, what becomes of them, and
what would have been decided about them.

Runs in the API server. A report is taken in as a whole or not at all; what follows it (a decision, a profile,
a line in the story) may fail, and is then logged; a decision, and what an end leaves, is tried again with the
next report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from airflow_provider_eaco.core.energy.records import JobEnergy
from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.errors import InvalidRequestError
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey, Progress
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.pool import PoolMode
from airflow_provider_eaco.core.observed import ObservedReport, ObservedTask
from airflow_provider_eaco.core.ports import JobRecord, LedgerView, ProfileStore
from airflow_provider_eaco.engine.observing import learn_observed, progress_of
from airflow_provider_eaco.engine.profiling import ended_run
from airflow_provider_eaco.engine.progress import Report
from airflow_provider_eaco.provider.audit import text_of
from airflow_provider_eaco.provider.energy_record import record_of_job
from airflow_provider_eaco.provider.energy_text import energy_text
from airflow_provider_eaco.provider.request import CONFIG_KEY, has_request, parse_executor_config
from airflow_provider_eaco.provider.rules import Rule
from airflow_provider_eaco.provider.running import WANTED_STATES, ending_of
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.shown import counted
from airflow_provider_eaco.provider.task_instances import StartedTask

if TYPE_CHECKING:
    from airflow_provider_eaco.store.observed import TakenIn

log = logging.getLogger(__name__)

_OBSERVED, _ENERGY = "observed", "energy"
_VERDICTS = {Verdict.ADMIT: "admitted", Verdict.HOLD: "held", Verdict.REJECT: "rejected"}


class ObservedStore(Protocol):
    """The store's door for samplers."""

    def known(self, report: ObservedReport) -> frozenset[str]: ...

    def observe(self, report: ObservedReport, new: Mapping[str, Job]) -> TakenIn: ...

    def end(self, endings: Mapping[str, JobPhase]) -> tuple[str, ...]: ...

    def lease_of(self, job_id: str) -> Lease | None: ...


@dataclass(frozen=True, slots=True)
class AirflowSide:
    """What Airflow knows: its task instances by id, what one has reported of its training, and our rules."""

    tasks: Callable[[Collection[str]], Mapping[str, StartedTask]]
    progress: Callable[[StartedTask], Report | None]
    rules: Callable[[], tuple[Rule, ...]]


@dataclass(frozen=True, slots=True)
class Around:
    """What an observer works with.

    ``decide`` tells what would be decided about an observed job, ``None`` where that cannot be said now;
    ``tell`` writes a line into a job's story.
    """

    settings: EacoSettings
    airflow: AirflowSide
    store: ObservedStore
    decide: Callable[[str], AdmissionDecision | None]
    view: Callable[[], LedgerView]
    record_of: Callable[[str], JobRecord | None]
    energy_of: Callable[[str], JobEnergy | None]
    profiles: ProfileStore
    tell: Callable[[str, str, str, float], None]
    save_progress: Callable[[str, Progress, None], None]


class Observer:
    """Takes in what samplers report; for several threads."""

    def __init__(self, around: Around) -> None:
        self._around = around

    def take(self, report: ObservedReport) -> frozenset[str]:
        """Take the report in and return the job ids of tasks that are not to be told of any more: their GPU
        pool does not observe, Airflow does not know them as processes of this kind, or an executor of ours
        runs them.

        :raises StoreUnavailableError: if the tables are out of reach; then nothing was taken.
        :raises NodeRefusedError: if another machine reports for this node, or a task is said to use a GPU
            that the node never had; then nothing was taken.
        """
        around = self._around
        tasks = around.airflow.tasks({task.job_id for task in report.tasks})
        known = around.store.known(report)
        new: dict[str, Job] = {}
        for seen in report.tasks:
            task = tasks.get(seen.job_id)
            job = None if task is None or seen.process in known else self._job_of(seen, task)
            if job is not None:
                new[job.job_id] = job
        taken = around.store.observe(report, new)
        by_id = {seen.job_id: seen for seen in report.tasks}
        for job_id in taken.undecided:
            _softly(partial(self._decide, job_id, by_id[job_id], report.node))
        for job_id in by_id.keys() & tasks.keys() - {*taken.left_out}:
            _softly(partial(self._note_progress, by_id[job_id], tasks[job_id]))
        for job_id in taken.unclosed:
            _softly(partial(self._close, job_id, by_id.get(job_id), tasks.get(job_id)))
        _softly(partial(self._end, by_id, tasks))
        if taken.silent:
            _softly(lambda: self._end({}, around.airflow.tasks(taken.silent), taken.silent))
        return frozenset(taken.left_out)

    def _end(
        self, seen: Mapping[str, ObservedTask], tasks: Mapping[str, StartedTask], silent: Collection[str] = ()
    ) -> None:
        """End the jobs whose processes are gone, and of which nobody has told for long, as Airflow says.

        One that Airflow still counts on is left as it is: it learns of the end a moment later.
        """
        gone = {*silent, *(job_id for job_id, one in seen.items() if one.ended_s is not None)}
        phases = {job_id: _phase_of(tasks.get(job_id)) for job_id in sorted(gone)}
        endings = {job_id: phase for job_id, phase in phases.items() if phase is not None}
        for job_id in self._around.store.end(endings):
            _softly(partial(self._close, job_id, seen.get(job_id), tasks.get(job_id)))

    def _note_progress(self, seen: ObservedTask, task: StartedTask) -> None:
        """Store how far the training has come, where it tells and that is news."""
        report, record = self._around.airflow.progress(task), self._around.record_of(seen.job_id)
        if report is None or record is None:
            return
        progress = progress_of(report, alone=seen.alone and seen.from_start)
        if progress != record.job.progress:
            self._around.save_progress(seen.job_id, progress, None)

    def _job_of(self, seen: ObservedTask, task: StartedTask) -> Job | None:
        """Return the job of a task that is to be observed, ``None`` for any other.

        A process may give itself any name: it is the task's only if Airflow knows it by its pid.
        """
        settings, facts = self._around.settings, task.facts
        if settings.pool_for(facts.pool).mode is not PoolMode.OBSERVE or task.pid not in seen.pids:
            return None
        request = self._request_of(seen, task)
        if request is None:
            return None
        key = facts.key
        ranked = facts.ranked(settings.backfill_priority)
        return Job(
            job_id=seen.job_id,
            request=request,
            pool=facts.pool,
            queued_s=facts.run_after_s if task.queued_s is None else task.queued_s,
            order=OrderKey(facts.run_after_s, key.dag_id, key.task_id, key.map_index, seen.job_id),
            priority=ranked.priority,
            pool_slots=facts.pool_slots,
        )

    def _request_of(self, seen: ObservedTask, task: StartedTask) -> GpuRequest | None:
        """Return what the task asks for; else what the first rule that fits asks for it; else the GPUs that
        it was seen to use, and nothing more.
        """
        asked: list[object] = [{"gpus": len(seen.gpu_uuids)}]
        if has_request(task.config):
            asked.insert(0, (task.config or {})[CONFIG_KEY])
        else:
            rule = next(
                (rule for rule in self._around.airflow.rules() if rule.fits(_facts_for_rules(task))), None
            )
            if rule is not None and rule.request is not None:
                asked.insert(0, rule.request)
        key = task.facts.key
        for each in asked:
            try:
                request = parse_executor_config(
                    {CONFIG_KEY: each},
                    default_family=f"{key.dag_id}.{key.task_id}",
                    default_max_stretch=self._around.settings.default_max_stretch,
                )
            except InvalidRequestError as error:
                log.info("A request is left out: job_id=%s error=%s", seen.job_id, error)
                continue
            if request is not None:
                return request
        return None

    def _decide(self, job_id: str, seen: ObservedTask, node: str) -> None:
        decision = self._around.decide(job_id)
        if decision is None:
            return
        gpus, verdict = counted(len(seen.gpu_uuids), "GPU"), _VERDICTS[decision.verdict]
        why = text_of(decision)
        text = f"it runs on {gpus} of {node}, granted by nobody; it would have been {verdict}: {why}"
        self._around.tell(job_id, _OBSERVED, text, self._around.view().now_s)

    def _close(self, job_id: str, seen: ObservedTask | None, task: StartedTask | None) -> None:
        """Let a complete run teach, and then write the energy of the task into its story.

        That line is the last step: an end without it is closed anew with a later report.
        """
        self._learn(job_id, seen, task)
        around = self._around
        energy, text = around.energy_of(job_id), "nothing is known of its energy"
        if energy is not None:
            text = energy_text(record_of_job(energy, None, around.settings.carbon_g_per_kwh))
        around.tell(job_id, _ENERGY, text, around.view().now_s)

    def _learn(self, job_id: str, seen: ObservedTask | None, task: StartedTask | None) -> None:
        around = self._around
        lease, record = around.store.lease_of(job_id), around.record_of(job_id)
        if record is None or lease is None or seen is None or not seen.from_start:
            return
        view = around.view()
        run = ended_run(record, lease, view.nodes, record.phase, seen.meter)
        if run is not None:
            report = None if task is None else around.airflow.progress(task)
            learn_observed(around.profiles, run, report, view.now_s)


def _phase_of(task: StartedTask | None) -> JobPhase | None:
    """Return how a task has ended whose process is gone, ``None`` while Airflow does not know it yet."""
    state = None if task is None else task.facts.state
    if task is not None and state in WANTED_STATES:
        return None
    return ending_of(state, known=task is not None, exit_code=None, requeued=False).phase


def _facts_for_rules(task: StartedTask) -> dict[str, set[str]]:
    key = task.facts.key
    return {
        "pool": {task.facts.pool},
        "queue": {task.queue},
        "dag_id": {key.dag_id},
        "task_id": {key.task_id},
        "tag": set(task.tags),
        "operator": {task.operator},
    }


def _softly(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        log.exception("What follows a sampler's report is incomplete")
