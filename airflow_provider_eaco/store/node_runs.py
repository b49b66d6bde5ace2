"""Runs on nodes with a worker, as rows; every step is one compare-and-set on the database's clock.

Whoever begins a run and whoever gives it up change the same row: of two at once one is too late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.placement import LeaseState
from airflow_provider_eaco.core.model.profile import PowerScope
from airflow_provider_eaco.core.node_runs import (
    FINAL_STATES,
    NodeRun,
    RunClaim,
    RunNews,
    RunState,
    ValidRun,
)
from airflow_provider_eaco.core.ports import RunMeter
from airflow_provider_eaco.store.leases import leases_of
from airflow_provider_eaco.store.node_tables import node_run as run_table
from airflow_provider_eaco.store.schema import job as job_table
from airflow_provider_eaco.store.schema import lease as lease_table
from airflow_provider_eaco.store.schema import node as node_table
from airflow_provider_eaco.store.session import Database, upsert

# What a node may say of a run, by the states in which it may say so.
_MAY_BECOME: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.CLAIMED}),
    RunState.ENDED: frozenset({RunState.CLAIMED, RunState.RUNNING}),
    RunState.REFUSED: frozenset({RunState.CLAIMED}),
}


class SqlNodeRuns:
    """The book of runs on nodes; several processes may use it at once.

    Every method raises :class:`~airflow_provider_eaco.core.model.errors.StoreUnavailableError` when the
    database or the tables are out of reach; then nothing has changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def order(self, token: int, job_id: str, node: str) -> None:
        """Note that the lease is about to be sent to its node; a second call changes nothing."""
        with self._database.writing() as connection:
            dag_id = select(job_table.c.dag_id).where(job_table.c.job_id == job_id).scalar_subquery()
            first = upsert(connection, run_table).values(
                token=token,
                job_id=job_id,
                dag_id=dag_id,
                node=node,
                state=RunState.ORDERED.value,
                begun=False,
                ordered_at=self._database.now_s(connection),
            )
            connection.execute(first.on_conflict_do_nothing())

    def runs(self, tokens: Collection[int]) -> Mapping[int, NodeRun]:
        """Return what is known of these runs, by token."""
        if not tokens:
            return {}
        with self._database.reading() as connection:
            now_s = self._database.now_s(connection)
            query = (
                select(run_table, node_table.c.last_report_at)
                .outerjoin(node_table, node_table.c.name == run_table.c.node)
                .where(run_table.c.token.in_(sorted(tokens)))
            )
            return {row.token: _run(row, now_s) for row in connection.execute(query)}

    def take_back(self, token: int, older_than_s: float) -> bool:
        """Take an order back that is this old and has not been claimed; return whether it was."""
        with self._database.writing() as connection:
            now_s = self._database.now_s(connection)
            old = run_table.c.ordered_at <= now_s - older_than_s
            return _close(connection, token, {RunState.ORDERED}, RunState.TAKEN_BACK, now_s, old)

    def abandon(self, token: int, silent_s: float) -> bool:
        """Give a run up whose node has been silent for so long; return whether it was."""
        with self._database.writing() as connection:
            now_s = self._database.now_s(connection)
            heard = (
                select(node_table.c.name)
                .where(node_table.c.name == run_table.c.node, node_table.c.last_report_at > now_s - silent_s)
                .exists()
            )
            begun = {RunState.CLAIMED, RunState.RUNNING}
            return _close(connection, token, begun, RunState.ABANDONED, now_s, ~heard)

    def ask_to_stop(self, token: int, grace_s: float) -> None:
        """Have the node end the run; one that has not been claimed is taken back at once."""
        with self._database.writing() as connection:
            now_s = self._database.now_s(connection)
            if _close(connection, token, {RunState.ORDERED}, RunState.TAKEN_BACK, now_s):
                return
            asked = update(run_table).where(run_table.c.token == token, run_table.c.stop_asked_at.is_(None))
            connection.execute(asked.values(stop_asked_at=now_s, grace_s=grace_s))

    def withdraw(self, token: int, job_id: str, node: str) -> bool:
        """Keep a lease from ever beginning on its node; return whether it has not begun and never will.

        Whoever is about to send it is too late.
        """
        self.order(token, job_id, node)
        return self.take_back(token, 0.0)

    def is_known(self, token: int) -> bool:
        """Tell whether the lease was ever sent to a node."""
        with self._database.reading() as connection:
            return bool(nodes_of_runs(connection, [token]))

    def meter(self, token: int) -> RunMeter | None:
        """Return what the node saw of the run until its end, ``None`` if it saw nothing.

        Its memory peak is that of the whole run, whichever worker has seen it.
        """
        with self._database.reading() as connection:
            query = select(run_table.c.meter, run_table.c.memory_peak_mib).where(run_table.c.token == token)
            row = connection.execute(query).one_or_none()
        if row is None or row.meter is None:
            return None
        seen = RunMeter(**{**row.meter, "scope": PowerScope(row.meter["scope"])})
        peaks = [each for each in (seen.memory_peak_mib, row.memory_peak_mib) if each is not None]
        return replace(seen, memory_peak_mib=max(peaks, default=None))

    def peaks_mib(self) -> Mapping[int, int]:
        """Return the most memory that each living run was seen to use on one of its GPUs, by token; a run of
        which that is not known is left out.
        """
        query = select(run_table.c.token, run_table.c.memory_peak_mib).where(
            run_table.c.state == RunState.RUNNING.value, run_table.c.memory_peak_mib.is_not(None)
        )
        with self._database.reading() as connection:
            return {row.token: row.memory_peak_mib for row in connection.execute(query)}


def claim(connection: Connection, node: str, token: int, job_id: str) -> RunClaim | None:
    """Let the node begin the run, if it was ordered there and its lease still holds; else return ``None``.

    Whoever asks again, because an answer was lost, gets the same answer until the run has begun.
    """
    # The lease first: a release that runs at the same time has to wait, or has been before.
    held = (lease_table.c.token == token, lease_table.c.node == node, lease_table.c.released_at.is_(None))
    connection.execute(select(lease_table.c.token).where(*held).with_for_update()).all()
    lease = next(iter(leases_of(connection, *held, lease_table.c.job_id == job_id)), None)
    if lease is None:
        return None
    open_states = (RunState.ORDERED.value, RunState.CLAIMED.value)
    begins = (
        update(run_table)
        .where(run_table.c.token == token, run_table.c.node == node, run_table.c.job_id == job_id)
        .where(run_table.c.state.in_(open_states), run_table.c.stop_asked_at.is_(None))
        .values(state=RunState.CLAIMED.value)
    )
    if connection.execute(begins).rowcount != 1:
        return None
    job = connection.execute(
        select(job_table.c.family, job_table.c.pool).where(job_table.c.job_id == job_id)
    ).one()
    alone = lease.state is LeaseState.EXCLUSIVE
    return RunClaim(job_id, token, job.family, lease.placement, job.pool, alone)


def note_news(connection: Connection, node: str, news: Sequence[RunNews], now_s: float) -> None:
    """Write down what the node tells of its runs; what is known already, or was closed before, stays."""
    for each in news:
        values: dict[str, Any] = {"state": each.state.value, "exit_code": each.exit_code, "cause": each.cause}
        if each.process is not None:
            values["process"] = each.process
        if each.meter is not None:
            values["meter"] = asdict(each.meter)
        if each.state is RunState.RUNNING or each.process is not None:
            values["begun"] = True
        if each.state in FINAL_STATES:
            values["ended_at"] = now_s
        before = [state.value for state in _MAY_BECOME[each.state]]
        told = update(run_table).where(run_table.c.token == each.token, run_table.c.node == node)
        connection.execute(told.where(run_table.c.state.in_(before)).values(**values))


def note_peaks(connection: Connection, node: str, peaks_mib: Sequence[tuple[int, int]]) -> None:
    """Remember the most memory that each run of the node was seen to use; a peak never becomes less."""
    for token, peak_mib in peaks_mib:
        known_mib = run_table.c.memory_peak_mib
        told = update(run_table).where(run_table.c.token == token, run_table.c.node == node)
        grown = told.where(or_(known_mib.is_(None), known_mib < peak_mib))
        connection.execute(grown.values(memory_peak_mib=peak_mib))


def nodes_of_runs(connection: Connection, tokens: Collection[int]) -> dict[int, str]:
    """Return to which node each of these runs was sent; one that was never sent is left out."""
    query = select(run_table.c.token, run_table.c.node).where(run_table.c.token.in_(sorted(tokens)))
    return {row.token: row.node for row in connection.execute(query)}


def valid_runs(connection: Connection, node: str) -> tuple[ValidRun, ...]:
    """Return the runs that the node may have now: allowed to begin, and under a lease that holds."""
    living = (RunState.CLAIMED.value, RunState.RUNNING.value)
    query = (
        select(
            run_table.c.token,
            run_table.c.job_id,
            run_table.c.state,
            run_table.c.stop_asked_at,
            run_table.c.grace_s,
            job_table.c.family,
            job_table.c.gpu_memory_mib,
        )
        .join(job_table, job_table.c.job_id == run_table.c.job_id)
        .where(run_table.c.node == node, run_table.c.state.in_(living))
    )
    rows = {row.token: row for row in connection.execute(query)}
    held = leases_of(connection, lease_table.c.token.in_(sorted(rows)), lease_table.c.released_at.is_(None))
    return tuple(
        ValidRun(
            job_id=row.job_id,
            token=row.token,
            family=row.family,
            placement=lease.placement,
            memory_mib=row.gpu_memory_mib,
            granted_s=lease.granted_s,
            state=RunState(row.state),
            stop=row.stop_asked_at is not None,
            grace_s=row.grace_s,
        )
        for lease in held
        if (row := rows[lease.token]).job_id == lease.job_id
    )


def _close(
    connection: Connection,
    token: int,
    before: Collection[RunState],
    after: RunState,
    now_s: float,
    *conditions: Any,
) -> bool:
    states = [state.value for state in before]
    closing = update(run_table).where(run_table.c.token == token, run_table.c.state.in_(states), *conditions)
    return connection.execute(closing.values(state=after.value, ended_at=now_s)).rowcount == 1


def _run(row: Any, now_s: float) -> NodeRun:
    return NodeRun(
        state=RunState(row.state),
        begun=row.begun,
        exit_code=row.exit_code,
        age_s=now_s - row.ordered_at,
        silent_s=None if row.last_report_at is None else now_s - row.last_report_at,
        stop_asked=row.stop_asked_at is not None,
        cause=row.cause,
    )
