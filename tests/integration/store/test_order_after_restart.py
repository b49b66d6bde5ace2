"""Case C04: whoever plans, and however often it was started anew, goes by the same order."""

from __future__ import annotations

import random
from dataclasses import replace

from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.job import Job, OrderKey
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.planner import SqlPlannerLock
from airflow_provider_eaco.store.profiles import SqlProfileStore
from tests.contract.parts import START_S, ManualClock, make_job, make_node
from tests.databases import database_on

POOL = PoolState(PoolSettings(mode=PoolMode.EXCLUSIVE, policy="exclusive"), {"eaco": AirflowPool(None)})
RESTART_EVERY = 7


def waiting_jobs() -> list[Job]:
    """Thirty jobs of equal weight, as they have to run."""
    draw = random.Random(40)
    # Their ids say nothing of the order, as Airflow's do not.
    keys = [
        OrderKey(START_S + run, dag, task, index, draw.randbytes(8).hex())
        for run in range(3)
        for dag in "ab"
        for task, index in (("s", 0), ("s", 2), ("s", 10), ("t", -1), ("u", -1))
    ]
    return [replace(make_job(key.job_id), order=key) for key in keys]


class Scheduler:
    """What a scheduler that was just started knows: nothing but the database."""

    def __init__(self, engine: Engine, clock: ManualClock, number: int) -> None:
        database = database_on(engine, clock)
        self.ledger = SqlLedger(database)
        self.loop = AdmissionLoop(
            self.ledger,
            SqlProfileStore(database, ProfileBook()),
            SqlDecisionLog(database),
            SqlPlannerLock(database),
            pools=lambda: (POOL,),
            owner=f"scheduler-{number}",
            report_timeout_s=None,
        )

    def run_next(self) -> str:
        """Admit one more job, run it to its end, and return which it was."""
        self.loop.run_once(())
        [lease] = self.ledger.view().leases
        assert self.ledger.set_running(lease.token, "process")
        assert self.ledger.release(lease.token, JobPhase.FINISHED)
        return lease.job_id


def order_of_starts(engine: Engine, arrival: list[Job]) -> list[str]:
    clock = ManualClock()
    scheduler = Scheduler(engine, clock, 0)
    scheduler.ledger.save_nodes([make_node(gpus=1)])
    for job in arrival:
        scheduler.ledger.add_waiting(job, "executor")
    started = []
    for number in range(len(arrival)):
        if number % RESTART_EVERY == 0:
            clock.advance(3600.0)  # the lock of the one before has run out
            scheduler = Scheduler(engine, clock, number)
        started.append(scheduler.run_next())
    return started


def test_c04_equal_weights_keep_their_order_over_restarts(engine: Engine) -> None:
    """Oldest run first, then DAG, task and map index, though they arrive shuffled and schedulers change."""
    jobs = waiting_jobs()
    shuffled = random.Random(4).sample(jobs, len(jobs))
    assert order_of_starts(engine, shuffled) == [job.job_id for job in jobs]
