"""The live engine over a SQL store, living a recorded day again: its instants, its arrivals, its reports.

Nothing is dispatched: processes start, report and end when the tape says so. What the engine decides is its
own, and what the tape says of a lease that the engine did not grant makes the day fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import JobRecord, RunMeter
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.profiling import ended_run, learn_run
from airflow_provider_eaco.engine.progress import Report, ingest
from airflow_provider_eaco.simulator.clock import VirtualClock
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from airflow_provider_eaco.store.session import Database
from tests.simulation.tape import Day, Event, NotedLog, noted


class LiveDay:
    """The engine and its store; :meth:`live` moves them from event to event.

    A job that gave its GPUs up is handed over again before its old process is gone, as Airflow does it.
    """

    def __init__(self, database: Database, clock: VirtualClock, beliefs: ProfileBook) -> None:
        self.day = Day()
        self.clock = clock
        self.ledger = SqlLedger(database)
        self.profiles = SqlProfileStore(database, beliefs)
        self._loop = AdmissionLoop(
            self.ledger,
            self.profiles,
            NotedLog(SqlDecisionLog(database), self.day),
            SqlPlannerLock(database),
            pools=lambda: self._pools,
            owner="live",
            report_timeout_s=None,
        )
        self.database = database
        self._pools: Sequence[PoolState] = ()
        self._last: dict[str, tuple[JobRecord, Lease]] = {}

    def live(self, events: Sequence[Event]) -> Day:
        """Live the whole day; return it."""
        with noted(self.day):
            for event in _as_airflow_does(events):
                self.clock.move_to(event.at_s)
                step: Any = getattr(self, f"_{event.what}")
                step(*event.given)
        return self.day

    def _nodes(self, nodes: Sequence[Node]) -> None:
        self.ledger.save_nodes(nodes)

    def _queue(self, job: Job, owner: str) -> None:
        self.ledger.add_waiting(job, owner)

    def _start(self, token: int, process: str) -> None:
        assert self.ledger.set_running(token, process), f"the live engine has not granted lease {token}"

    def _end(self, token: int, phase: JobPhase) -> None:
        view = self.ledger.view()
        lease = next(lease for lease in view.leases if lease.token == token)
        record = next(record for record in view.jobs if record.job.job_id == lease.job_id)
        self._last[lease.job_id] = record, lease
        assert self.ledger.release(token, phase)

    def _report(self, reports: Sequence[Report]) -> None:
        ingest(self.ledger, self.profiles, reports)

    def _learn(self, job_id: str, meter: RunMeter | None) -> None:
        record, lease = self._last[job_id]
        run = ended_run(record, lease, self.ledger.view().nodes, JobPhase.FINISHED, meter)
        assert run is not None
        learn_run(self.profiles, run, self.clock.now_s())

    def _cycle(self, pools: Sequence[PoolState]) -> None:
        self._pools = pools
        self.day.reports.append(self._loop.run_once())


def _as_airflow_does(events: Sequence[Event]) -> list[Event]:
    """Return the events with each yield's new hand-over before the end of the old process."""
    ordered = list(events)
    for number, event in enumerate(events[:-1]):
        following = events[number + 1]
        if event.what == "end" and event.given[1] is JobPhase.YIELDED and following.what == "queue":
            ordered[number], ordered[number + 1] = following, event
    return ordered
