"""What the page's benchmark stores: a large cluster, a long queue, and two DAG runs with a story to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import NAMESPACE_OID, uuid5

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.decision import (
    AdmissionDecision,
    Finding,
    Reason,
    SetPrediction,
    Verdict,
    hold,
)
from airflow_provider_eaco.core.model.instruction import KindDecision, Launch, Plan
from airflow_provider_eaco.core.model.job import GpuRequest, Job, OrderKey
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart
from airflow_provider_eaco.store.decisions import SqlDecisionLog
from airflow_provider_eaco.store.energy import SqlEnergyLog
from airflow_provider_eaco.store.energy_curve import MOST_POINTS
from airflow_provider_eaco.store.energy_tables import energy_run
from airflow_provider_eaco.store.ledger import SqlLedger
from bench.bench_store import GPUS_PER_NODE, QUEUED_S, fill, make_job
from tests.databases import database_on

DAG_ID = "bench_stories"
WAITING_RUN, LONG_RUN = "waiting", "long"
IN_RUN = 20
LONG_JOBS = 2
PAST_LEASES = 500
# Of each job that has run for long: who came and left, and how often it was told another reason before.
VISITORS = 20
ANSWERS = 60
_OWNER = "executor"
_POOL = "eaco"
_WAITS = (
    Finding(Reason.WAITING_FOR_GPU, {"wanted": 4, "free": 2, "sharing": "it takes GPUs of its own"}),
    Finding(Reason.PROFILE_MISSING, {"family": "any", "gpu_model": "V100", "consequence": "alone only"}),
)


def fill_page(engine: Engine, waiting: int, gpus: int) -> None:
    """Store so many waiting jobs and GPUs, ended leases with their energy, and the jobs of two DAG runs.

    The last :data:`IN_RUN` queued of the waiting jobs are one run; :data:`LONG_JOBS` that share GPUs are the
    other. Airflow's table has a task instance of each of these.
    """
    ledger = fill(engine, waiting - IN_RUN, gpus)
    waits = [_job_of_run(WAITING_RUN, number) for number in range(IN_RUN)]
    for job in waits:
        ledger.add_waiting(job, _OWNER)
    _end_leases(engine, ledger)
    long = _run_for_long(engine, ledger)
    _decide(engine, ledger)
    _add_instances(engine, WAITING_RUN, waits)
    _add_instances(engine, LONG_RUN, long)
    engine.dispose()


def _job_of_run(run_id: str, number: int) -> Job:
    job_id = str(uuid5(NAMESPACE_OID, f"{run_id} {number}"))
    job = make_job(2_000_000 + number)
    return replace(job, job_id=job_id, order=OrderKey(QUEUED_S, DAG_ID, run_id, number, job_id))


def _node(number: int) -> Placement:
    """Return a node of which :func:`~bench.bench_store.fill` keeps every GPU free."""
    name = f"{2 * number + 1:04}"
    return Placement(f"node{name}", tuple(f"GPU-{name}-{index}" for index in range(GPUS_PER_NODE)))


def _hold(ledger: SqlLedger, job: Job, place: Placement, state: LeaseState) -> Lease:
    ledger.add_waiting(job, _OWNER)
    return ledger.grant(Launch(job, place, ()), state, ledger.view().gpu_versions, _OWNER)


def _end_leases(engine: Engine, ledger: SqlLedger) -> None:
    energy, place = SqlEnergyLog(database_on(engine)), _node(0)
    versions = dict(ledger.view().gpu_versions)
    for number in range(PAST_LEASES):
        job = make_job(1_000_000 + number)
        ledger.add_waiting(job, _OWNER)
        lease = ledger.grant(Launch(job, place, ()), LeaseState.EXCLUSIVE, versions, _OWNER)
        energy.add(EnergyPart(job.job_id, lease.token, place.gpu_uuids[0], 1e6, 600.0, EnergyMethod.COUNTER))
        ledger.release(lease.token, JobPhase.FAILED)
        for uuid in place.gpu_uuids:
            versions[uuid] += 2


def _run_for_long(engine: Engine, ledger: SqlLedger) -> list[Job]:
    """Let the jobs of one run share a node, each after a long wait, and with visitors while it ran."""
    log, place = SqlDecisionLog(database_on(engine)), _node(1)
    jobs = [
        replace(_job_of_run(LONG_RUN, number), request=GpuRequest(GPUS_PER_NODE, f"long{number}"))
        for number in range(LONG_JOBS)
    ]
    for number, job in enumerate(jobs):
        for answer in range(ANSWERS):
            held = hold(*(_WAITS if answer % 2 else _WAITS[:1]))
            item = KindDecision(job.kind, (job.job_id,), held)
            log.record(Plan(_POOL, job.queued_s + answer, decisions=(item,)))
        lease = _hold(ledger, job, place, LeaseState.TRIAL)
        log.record(Plan(_POOL, lease.granted_s, decisions=(_admission(job, place, jobs[:number]),)))
        ledger.set_running(lease.token, f"process-{number}")
        _use(engine, job, lease)
    for number in range(VISITORS):
        visitor = make_job(3_000_000 + number)
        lease = _hold(ledger, visitor, place, LeaseState.TRIAL)
        for job in jobs:
            log.record_event(job.job_id, "trial", f"{visitor.label} came", lease.granted_s)
            log.record_event(job.job_id, "undone", f"{visitor.label} left", lease.granted_s)
        ledger.release(lease.token, JobPhase.FAILED)
    return jobs


def _admission(job: Job, place: Placement, others: Sequence[Job]) -> KindDecision:
    beside = tuple(other.job_id for other in others)
    expected = SetPrediction(
        {each.request.family: 1.1 for each in (job, *others)}, 250.0, 90.0, measured=True
    )
    return KindDecision(
        job.kind,
        (job.job_id,),
        AdmissionDecision(Verdict.ADMIT, (), place, beside, expected, "fewest joules"),
    )


def _use(engine: Engine, job: Job, lease: Lease) -> None:
    energy = SqlEnergyLog(database_on(engine))
    for uuid in lease.placement.gpu_uuids:
        energy.add(EnergyPart(job.job_id, lease.token, uuid, 1e6, 600.0, EnergyMethod.COUNTER))
    curve = [[lease.granted_s + 60 * step, 1e4 * step, 60.0 * step] for step in range(1, MOST_POINTS + 1)]
    row = {"token": lease.token, "job_id": job.job_id, "dag_id": DAG_ID, "peak_w": 2000.0, "rules": []}
    with engine.begin() as connection:
        connection.execute(sa.insert(energy_run).values(**row, curve=curve, updated_at=lease.granted_s))


def _decide(engine: Engine, ledger: SqlLedger) -> None:
    """Give every kind of waiting job an answer with two reasons."""
    waiting = [record.job for record in ledger.view().jobs if record.phase is JobPhase.WAITING]
    by_kind: dict[object, list[Job]] = {}
    for job in waiting:
        by_kind.setdefault(job.kind, []).append(job)
    items = tuple(
        KindDecision(jobs[0].kind, tuple(job.job_id for job in jobs), hold(*_WAITS))
        for jobs in by_kind.values()
    )
    order = tuple(job.job_id for job in waiting)
    SqlDecisionLog(database_on(engine)).record(Plan(_POOL, QUEUED_S, decisions=items, order=order))


def _add_instances(engine: Engine, run_id: str, jobs: Sequence[Job]) -> None:
    """Let Airflow have a task instance of each; neither DAG nor run of them is asked for here."""
    table = sa.Table("task_instance", sa.MetaData(), autoload_with=engine, resolve_fks=False)
    rows = [
        {
            "id": job.job_id.replace("-", ""),
            "dag_id": DAG_ID,
            "task_id": run_id,
            "run_id": run_id,
            "map_index": job.order.map_index,
            "try_number": 1,
            "pool": _POOL,
            "pool_slots": 1,
        }
        for job in jobs
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(table), rows)
