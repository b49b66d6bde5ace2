"""A simulated day on tape: what came from outside, at which instant, and everything that was decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from airflow_provider_eaco.core.cycle import run_cycle
from airflow_provider_eaco.core.model.instruction import KindDecision, Plan
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot
from airflow_provider_eaco.core.ports import DecisionLog, Explain, PastLease
from airflow_provider_eaco.engine import admission_loop
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop, CycleReport
from airflow_provider_eaco.simulator import reporting, runner
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_store import MemoryLedger
from airflow_provider_eaco.simulator.recording import Recording
from airflow_provider_eaco.simulator.runner import Simulation
from airflow_provider_eaco.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the engine did not decide: ``what`` names it, ``given`` is what came with it."""

    at_s: float
    what: str
    given: tuple[Any, ...] = ()


@dataclass(slots=True)
class Day:
    """A day as its engine lived it.

    ``seen`` is what each decision could see, ``plans`` hold every decision about every job and the order of
    the queue, ``reports`` what each cycle did.
    """

    seen: list[ClusterSnapshot] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    reports: list[CycleReport] = field(default_factory=list)


@contextmanager
def noted(day: Day) -> Iterator[None]:
    """Note every snapshot that is planned from meanwhile."""

    def plan(policy: Any, ordering: Any, snapshot: ClusterSnapshot, rules: Any) -> Plan:
        day.seen.append(snapshot)
        return run_cycle(policy, ordering, snapshot, rules)

    with patch.object(admission_loop, "run_cycle", plan):
        yield


class NotedLog:
    """A decision log that also keeps the plans which it is given."""

    def __init__(self, log: DecisionLog, day: Day) -> None:
        self._log = log
        self._day = day

    def record(self, plan: Plan, explain: Explain | None = None) -> Sequence[KindDecision]:
        self._day.plans.append(plan)
        return self._log.record(plan, explain)

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        self._log.record_event(job_id, event, text, at_s)


@dataclass(slots=True)
class Tape:
    """A recorded day. ``beliefs`` and ``events`` are all that another engine needs to live it again.

    The rest is what came of it: the day, what was written down, and what was believed and held at its end.
    """

    beliefs: ProfileBook = field(default_factory=ProfileBook)
    events: list[Event] = field(default_factory=list)
    day: Day = field(default_factory=Day)
    log: MemoryDecisionLog = field(default_factory=MemoryDecisionLog)
    recording: Recording = field(default_factory=Recording)
    learnt: ProfileBook = field(default_factory=ProfileBook)
    past: Sequence[PastLease] = ()

    def note(self, at_s: float, what: str, *given: Any) -> None:
        """Note something from outside."""
        self.events.append(Event(at_s, what, given))


def record(scenario: Scenario) -> Tape:
    """Return the tape of the scenario's day in the simulator."""
    tape = Tape()
    with (
        noted(tape.day),
        patch.object(runner, "MemoryLedger", partial(_TapedLedger, tape)),
        patch.object(runner, "AdmissionLoop", partial(_TapedLoop, tape)),
        patch.object(reporting, "ingest_one", partial(_ingest_one, tape, reporting.ingest_one)),
        patch.object(runner, "learn_run", partial(_learn_run, tape, runner.learn_run)),
    ):
        simulation = Simulation(scenario)
        tape.beliefs = simulation.profiles.book()
        tape.recording = simulation.run()
    # Some reports are taken in after their own instant, before anything else looks at their jobs.
    tape.events.sort(key=lambda event: event.at_s)
    tape.learnt = simulation.profiles.book()
    tape.past = simulation.ledger.past_leases(0.0, simulation.clock.now_s())
    return tape


class _TapedLedger(MemoryLedger):
    """Notes what the simulator does to the ledger; what the loop does to it is a decision."""

    def __init__(self, tape: Tape, clock: Any) -> None:
        super().__init__(clock)
        self._tape = tape

    def _note(self, what: str, *given: Any) -> None:
        self._tape.note(self._clock.now_s(), what, *given)

    def save_nodes(self, nodes: Any) -> None:
        self._note("nodes", nodes)
        super().save_nodes(nodes)

    def add_waiting(self, job: Any, owner: str) -> None:
        self._note("queue", job, owner)
        super().add_waiting(job, owner)

    def set_running(self, token: int, process: str) -> bool:
        self._note("start", token, process)
        return super().set_running(token, process)

    def release(self, token: int, phase: Any) -> bool:
        self._note("end", token, phase)
        return super().release(token, phase)


class _TapedLoop(AdmissionLoop):
    """Notes every cycle, with what was said of the pools in it and what came of it."""

    def __init__(
        self, tape: Tape, ledger: Any, profiles: Any, decisions: Any, planner: Any, **more: Any
    ) -> None:
        both = _BothLogs(decisions, NotedLog(tape.log, tape.day))
        super().__init__(ledger, profiles, both, planner, **more)
        self._tape = tape

    def run_once(self, readings: Any = ()) -> CycleReport:
        self._tape.note(self._ledger.view().now_s, "cycle", tuple(self._pools()))
        report = super().run_once(readings)
        self._tape.day.reports.append(report)
        return report


class _BothLogs:
    """The simulator's own decision log, and one that keeps everything; the answer is the latter's."""

    def __init__(self, own: DecisionLog, whole: DecisionLog) -> None:
        self._logs = own, whole

    def record(self, plan: Plan, explain: Explain | None = None) -> Sequence[KindDecision]:
        _, changed = [log.record(plan, explain) for log in self._logs]
        return changed

    def record_event(self, job_id: str, event: str, text: str, at_s: float) -> None:
        for log in self._logs:
            log.record_event(job_id, event, text, at_s)


def _ingest_one(tape: Tape, ingest_one: Any, ledger: Any, profiles: Any, reports: Any, **more: Any) -> Any:
    for at_s, report in reports:
        tape.note(at_s, "report", (report,))
    return ingest_one(ledger, profiles, reports, **more)


def _learn_run(tape: Tape, learn_run: Any, profiles: Any, run: Any, now_s: float) -> Any:
    tape.note(now_s, "learn", run.job.job_id, run.meter)
    return learn_run(profiles, run, now_s)
