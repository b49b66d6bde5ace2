"""The ledger port on SQL: each call is one short transaction of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.lifecycle import JobPhase
from airflow_provider_eaco.core.model.errors import LeaseConflictError
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job, Progress
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord, LedgerView, PastLease
from airflow_provider_eaco.store import bookings, inventory, jobs, leases
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.session import ConcurrentChangeError, Database


class SqlLedger:
    """Jobs, inventory and leases in the database; several processes may use it at once.

    Every method raises :class:`~airflow_provider_eaco.core.model.errors.StoreUnavailableError` when the
    database or the tables are out of reach; then nothing has changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def view(self) -> LedgerView:
        """Return all nodes, all leases, and every job that is not in a final phase."""
        with self._database.reading() as connection:
            return view_of(connection, self._database)

    def past_leases(self, after_s: float, until_s: float) -> Sequence[PastLease]:
        """Return the leases that ended after the one instant and not after the other, in any order."""
        with self._database.reading() as connection:
            return leases.past_leases(connection, after_s, until_s)

    def record_of(self, job_id: str) -> JobRecord | None:
        """Return the stored job, also an ended one."""
        with self._database.reading() as connection:
            query = jobs.select_records().where(job_table.c.job_id == job_id)
            return next(iter(jobs.records_of(connection.execute(query))), None)

    def add_waiting(self, job: Job, owner: str) -> None:
        """Store ``job`` as waiting, or bring it back to waiting; progress and first queue time are kept."""
        with self._database.writing() as connection:
            jobs.add_waiting(connection, job, owner)

    def save_nodes(self, nodes: Sequence[Node]) -> None:
        """Upsert these nodes with their GPUs and the time of the report; drain marks set by users stay."""
        with self._database.writing() as connection:
            inventory.save_nodes(connection, nodes, self._database.now_s(connection))

    def forget_node(self, name: str) -> None:
        """Remove a node that has no lease; one with leases becomes unavailable and goes when they end."""
        with self._database.writing() as connection:
            inventory.forget_node(connection, name)

    def set_draining(self, node: str, draining: bool) -> bool:
        """Mark the node; return whether it exists."""
        with self._database.writing() as connection:
            return inventory.set_draining(connection, node, draining)

    def set_hold(self, job_id: str, on_hold: bool) -> bool:
        """Hold or release a waiting job; return whether there is one."""
        with self._database.writing() as connection:
            return jobs.set_hold(connection, job_id, on_hold)

    def grant(self, launch: Launch, state: LeaseState, gpu_versions: Mapping[str, int], owner: str) -> Lease:
        """Store the lease, move the job to leased and its co-residents to trial, all or nothing.

        :raises LeaseConflictError: if one of the GPUs changed since ``gpu_versions`` were read, or the job is
            no longer waiting or on hold.
        """
        try:
            with self._database.writing() as connection:
                now_s = self._database.now_s(connection)
                return leases.grant(connection, launch, state, gpu_versions, owner=owner, now_s=now_s)
        except ConcurrentChangeError as error:
            raise LeaseConflictError(str(error)) from error

    def set_lease_state(self, placement: Placement, set_version: int, state: LeaseState) -> int:
        """Move the set's leases if it still has this version, except yielding ones; return how many."""
        with self._database.writing() as connection:
            return leases.set_lease_state(connection, placement, set_version, state)

    def ask_to_yield(self, job_id: str, set_version: int) -> bool:
        """Mark the job's lease as yielding if its set still has this version; return whether it did."""
        with self._database.writing() as connection:
            return leases.ask_to_yield(connection, job_id, set_version)

    def set_running(self, token: int, process: str) -> bool:
        """Record the process of a leased job; return ``False`` when the token is no longer valid."""
        with self._database.writing() as connection:
            return leases.set_running(connection, token, process, self._database.now_s(connection))

    def release(self, token: int, phase: JobPhase) -> bool:
        """End the lease and move its job to ``phase``; the set's version grows for those who stay.

        Return whether there was a lease with this token. Calling it again changes nothing.

        :raises ValueError: if the lifecycle does not allow ``phase`` now; then nothing has changed.
        """
        with self._database.writing() as connection:
            return leases.release(connection, token, phase, self._database.now_s(connection))

    def finish_waiting(self, job_id: str, phase: JobPhase) -> bool:
        """End a job that holds no lease (rejected, removed, failed); return whether anything changed."""
        with self._database.writing() as connection:
            return jobs.finish_waiting(connection, job_id, phase, self._database.now_s(connection))

    def tell_of_booking(self, booking_id: int, token: int) -> bool:
        """Remember that the holder of this lease is told of the booking; return whether it was not before."""
        with self._database.writing() as connection:
            return bookings.tell_of_booking(connection, booking_id, token)

    def save_progress(self, job_id: str, progress: Progress, observation: Observation | None) -> None:
        """Record how far the job has come and what was seen under its present set."""
        with self._database.writing() as connection:
            jobs.save_progress(connection, job_id, progress, observation)


def view_of(connection: Connection, database: Database) -> LedgerView:
    """Return the ledger as this connection's transaction sees it."""
    nodes, versions = inventory.nodes_of(connection)
    now_s = database.now_s(connection)
    return LedgerView(
        now_s=now_s,
        nodes=nodes,
        jobs=tuple(jobs.unfinished(connection)),
        leases=tuple(leases.held_leases(connection)),
        gpu_versions=versions,
        bookings=bookings.bookings_of(connection, database, now_s),
    )
