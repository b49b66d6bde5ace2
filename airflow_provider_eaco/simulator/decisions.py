"""The decision log of a simulation: one line a job, whenever what was decided about it is news."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_eaco.core.model.alternative import Alternative
from airflow_provider_eaco.core.model.decision import AdmissionDecision, Verdict
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.ports import Explain
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.recording import Decided, Recording


@dataclass(frozen=True, slots=True)
class Explained:
    """One decision about a job that is followed, as it is recorded, with what else there was."""

    decided: Decided
    decision: AdmissionDecision
    alternatives: tuple[Alternative, ...]


class DecisionRecorder(MemoryDecisionLog):
    """The port :class:`~airflow_provider_eaco.core.ports.DecisionLog`, written into a recording.

    :param left_s: returns the exclusive seconds that a job is believed to have left.
    :param index_of: the number of each GPU on its node, by UUID.
    """

    def __init__(
        self,
        recording: Recording,
        book: Callable[[], ProfileBook],
        left_s: Callable[[str], float],
        index_of: dict[str, int],
        gpu_model: str,
    ) -> None:
        super().__init__()
        self._recording = recording
        self._book = book
        self._left_s = left_s
        self._index_of = index_of
        self._gpu_model = gpu_model
        self._answers: dict[str, tuple[Verdict, str]] = {}
        self._arrived: list[Job] = []
        # The kinds whose jobs were told apart in the last plan.
        self._several: set[JobKind] = set()
        self._followed = ""
        self._follow: Callable[[Explained], None] | None = None
        self._explain: Explain | None = None

    def follow(self, job_id: str, tell: Callable[[Explained], None]) -> None:
        """Have every decision about this job told, with its alternatives, as it is recorded."""
        self._followed, self._follow = job_id, tell

    def expect(self, job: Job) -> None:
        """Note a job that comes to the queue: what holds its kind already is news for it."""
        self._arrived.append(job)
        self._answers.pop(job.job_id, None)

    def record(self, plan: Plan, explain: Explain | None = None) -> Sequence[KindDecision]:
        """Record what changed since the pool's last plan and return exactly that."""
        changed = super().record(plan, explain)
        self._explain = explain
        self.decisions.clear()
        for item in changed:
            self._write(plan.now_s, item)
        # A job that comes to an answer which stands already is no news for its kind, but for the job.
        arrived, self._arrived = {job.kind for job in self._arrived}, []
        held = [item.kind for item in plan.decisions if item.decision.placement is None]
        several = {kind for kind, answers in Counter(held).items() if answers > 1} if len(held) > 1 else set()
        if arrived or several or self._several:
            for item in plan.decisions:
                if item.kind in arrived or item.kind in several or item.kind in self._several:
                    self._write(plan.now_s, item)
        self._several = several
        return changed

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        """Leave events out: the recording has the intervals that they led to."""

    def _write(self, now_s: float, item: KindDecision) -> None:
        decision = item.decision
        answer = decision.verdict, "" if decision.reason is None else decision.reason.code
        for job_id in item.job_ids:
            if self._answers.get(job_id) != answer:
                self._answers[job_id] = answer
                decided = self._decided(now_s, job_id, item, *answer)
                self._recording.decisions.append(decided)
                if job_id == self._followed and self._follow is not None:
                    own = replace(item, job_ids=(job_id,))
                    alternatives = () if self._explain is None else self._explain(own)
                    self._follow(Explained(decided, decision, alternatives))

    def _decided(
        self, now_s: float, job_id: str, item: KindDecision, verdict: Verdict, reason: str
    ) -> Decided:
        decision = item.decision
        if decision.placement is None:
            return Decided(now_s, job_id, verdict.value, reason)
        gpus = tuple(sorted(self._index_of[uuid] for uuid in decision.placement.gpu_uuids))
        slowdown, energy_j = self._predicted(job_id, item.kind.request.family, len(gpus), decision)
        rate = None if slowdown is None else 1.0 / slowdown
        return Decided(now_s, job_id, verdict.value, reason, decision.placement.node, gpus, rate, energy_j)

    def _predicted(
        self, job_id: str, family: str, gpus: int, decision: AdmissionDecision
    ) -> tuple[float | None, float | None]:
        """Return the slowdown, and the job's even share of the set's joules over the rest of its work."""
        if decision.co_residents:
            prediction = decision.prediction
            slowdown = None if prediction is None else prediction.slowdowns[family]
            power_w = None if prediction is None else prediction.power_w
        else:
            solo = self._book().solo_of(family, self._gpu_model, gpus)
            slowdown, power_w = 1.0, None if solo is None else solo.power_w
        if slowdown is None or power_w is None:
            return slowdown, None
        return slowdown, power_w * slowdown * self._left_s(job_id) / (len(decision.co_residents) + 1)
