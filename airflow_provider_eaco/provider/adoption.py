"""After another scheduler died: which of its task instances are taken over, and from where.

A lease row and the process itself decide, never memory. A killed scheduler may have stopped between the start
of a process and the note of it; the claim that each process holds on its lease finds it all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.utils.state import TaskInstanceState

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.placement import Lease
from airflow_provider_eaco.core.ports import Dispatcher, JobRecord
from airflow_provider_eaco.dispatch.celery import NodeReference
from airflow_provider_eaco.dispatch.claim import claimant
from airflow_provider_eaco.dispatch.process_group import ProcessReference, read_process
from airflow_provider_eaco.provider.plain_lane import NO_LEASE
from airflow_provider_eaco.provider.running import RunningGroup
from airflow_provider_eaco.provider.services import NoWorkers, Workers

Reference = ProcessReference | NodeReference


@dataclass(frozen=True, slots=True)
class Adoption:
    """What becomes of one task instance: ``group`` is its process, ``hold`` that it has to wait (again).

    With both, its node has not said yet whether it has begun, or it has come to nothing and its lease has to
    fall first; with neither, it is not ours to take, and Airflow starts it anew.
    """

    group: RunningGroup | None = None
    hold: bool = False


def adoption_of(
    ti: Any,
    records: Mapping[str, JobRecord],
    leases: Mapping[str, Lease],
    dispatcher: Dispatcher,
    workers: Workers | None = None,
) -> Adoption:
    """Return what becomes of a task instance whose scheduler is gone.

    :param ti: Airflow's row; its state is queued, running or restarting.
    :param records: the unfinished jobs by id.
    :param leases: the leases by job id.
    :param workers: the nodes with a worker, by default none.
    """
    job_id = str(ti.id)
    record, lease = records.get(job_id), leases.get(job_id)
    reference = _reference_of(ti, job_id, record, lease, workers or NoWorkers())
    if ti.state == TaskInstanceState.QUEUED:
        state = None if reference is None else dispatcher.poll(str(reference))
        if reference is None or state is None:
            return Adoption(hold=True)
        if state.begun and state.alive:
            return Adoption(_group(ti, reference, record))
        if state.begun and (lease is None or lease.token != reference.token):
            return Adoption(hold=True)
        # One that came to nothing, or died before Airflow heard of its start, is taken as well: its lease has
        # to fall before it can wait again.
        group = _group(ti, reference, record)
        if not state.begun:
            group.begun = group.announced = False
        return Adoption(group, hold=True)
    if reference is None or not reference.is_in_reach:
        return Adoption()
    # A process that is gone is taken over as well: the next heartbeat reports its end, as its own scheduler
    # would have, and Airflow's retries decide.
    return Adoption(_group(ti, reference, record))


def find_process(job_id: str, token: int) -> ProcessReference | None:
    """Return the living process of this lease on this machine, whoever started it."""
    pid = claimant(job_id, token)
    process = None if pid is None else read_process(pid)
    if process is None:
        return None
    return ProcessReference.here(process.pid, process.start_ticks, token, job_id)


def parse_reference(text: str) -> Reference:
    """Read a reference of any dispatcher.

    :raises ValueError: for any other text.
    """
    return NodeReference.parse(text) if NodeReference.is_one(text) else ProcessReference.parse(text)


def _reference_of(
    ti: Any, job_id: str, record: JobRecord | None, lease: Lease | None, workers: Workers
) -> Reference | None:
    token = NO_LEASE if lease is None else lease.token
    return (
        _parsed(None if record is None else record.process)
        or _parsed(None if lease is None else workers.reference_of(lease))
        or find_process(job_id, token)
        # Kept by Airflow through a clear, when the task instance has a new id already.
        or _parsed(ti.external_executor_id)
    )


def _parsed(text: str | None) -> Reference | None:
    if text is None:
        return None
    try:
        return parse_reference(text)
    except ValueError:  # another executor's id, from before this one was configured
        return None


def _group(ti: Any, reference: Reference, record: JobRecord | None) -> RunningGroup:
    recorded = record is None or record.phase is JobPhase.RUNNING
    return RunningGroup(ti.key, reference.job_id, str(reference), reference.token, recorded=recorded)
