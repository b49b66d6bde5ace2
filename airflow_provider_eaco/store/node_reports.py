"""What nodes with a worker report, taken in as one transaction: all of a report or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeRefusedError, NodeReport, RunClaim
from airflow_provider_eaco.store import machine_energy
from airflow_provider_eaco.store.energy import bring_to, note_run
from airflow_provider_eaco.store.energy_tables import energy_counter as counter_table
from airflow_provider_eaco.store.inventory import readings_of, save_nodes, save_readings
from airflow_provider_eaco.store.node_credentials import take_turn
from airflow_provider_eaco.store.node_limits import limit_of, note_limits, wanted_of
from airflow_provider_eaco.store.node_runs import claim, nodes_of_runs, note_news, note_peaks, valid_runs
from airflow_provider_eaco.store.node_tables import node_credential as credential_table
from airflow_provider_eaco.store.node_tables import node_limit as limit_table
from airflow_provider_eaco.store.node_tables import node_run as run_table
from airflow_provider_eaco.store.schema import gpu as gpu_table
from airflow_provider_eaco.store.schema import node as node_table
from airflow_provider_eaco.store.session import Database


class SqlNodeReports:
    """The ledger's door for nodes. Whoever calls has checked the node's credential.

    :param silent_s: seconds without a report after which another machine may report for the same node, and
        what was read of its GPUs says nothing about now.
    """

    def __init__(self, database: Database, silent_s: float) -> None:
        self._database = database
        self._silent_s = silent_s

    def claim(self, node: str, machine: str, token: int, job_id: str) -> RunClaim | None:
        """Let the node begin the run of this lease, or return ``None`` if it may not.

        :raises NodeRefusedError: if another machine reports for this node.
        """
        with self._database.writing() as connection:
            self._check_turn(connection, node, machine)
            claimed = claim(connection, node, token, job_id)
            if claimed is None or not self._database.has(connection, limit_table):
                return claimed
            return replace(claimed, power_limit_w=limit_of(connection, claimed.placement))

    def take(self, report: NodeReport) -> NodeAnswer:
        """Write the report down and return the runs that the node may have from now on, and to what its
        boards are to be held.

        While a run lives there that is not one of those, nothing new is placed on the node.

        :raises NodeRefusedError: for a report of what belongs to another node; then nothing was taken.
        """
        node = report.node
        with self._database.writing() as connection:
            self._check_turn(connection, node.name, report.machine)
            _check_runs(connection, report)
            _check_gpus(connection, report)
            now_s = self._database.now_s(connection)
            note_news(connection, node.name, report.news, now_s)
            note_peaks(connection, node.name, report.peaks_mib)
            valid = valid_runs(connection, node.name)
            strays = set(report.living) - {(run.job_id, run.token) for run in valid}
            save_nodes(connection, [replace(node, available=node.available and not strays)], now_s)
            _add_energy(connection, report, now_s)
            save_readings(connection, [replace(reading, at_s=now_s) for reading in report.readings])
            return NodeAnswer(valid, self._limits(connection, report))

    def readings(self) -> Sequence[GpuReading]:
        """Return what nodes with a worker read last; nothing is known of what is too old."""
        with self._database.reading() as connection:
            now_s = self._database.now_s(connection)
            query = (
                select(gpu_table.c.uuid)
                .join(credential_table, credential_table.c.node == gpu_table.c.node)
                .where(gpu_table.c.present)
            )
            known = readings_of(connection)
            uuids = connection.scalars(query).all()
        return [
            reading
            if (reading := known.get(uuid)) is not None and now_s - reading.at_s <= self._silent_s
            else GpuReading(uuid, now_s)
            for uuid in uuids
        ]

    def _limits(self, connection: Connection, report: NodeReport) -> dict[Placement, float]:
        if not self._database.has(connection, limit_table):
            return {}
        note_limits(connection, report.node.name, report.limits)
        return wanted_of(connection, report.node.name)

    def _check_turn(self, connection: Connection, node: str, machine: str) -> None:
        now_s = self._database.now_s(connection)
        if not take_turn(connection, node, machine, now_s, self._silent_s):
            raise NodeRefusedError(
                f"another machine reports as {node!r}, or its credential was revoked; one machine at a time "
                f"may use a credential, another one {self._silent_s:g} s after the last report of the first"
            )


def _add_energy(connection: Connection, report: NodeReport, now_s: float) -> None:
    """Bring the records of the node's runs to what it tells; one whose row was cleaned away is left out."""
    query = select(run_table.c.token, run_table.c.job_id).where(run_table.c.node == report.node.name)
    tokens = {part.token for part in report.energy} | {note.token for note in report.notes}
    job_of: dict[int, str] = {
        row.token: row.job_id for row in connection.execute(query.where(run_table.c.token.in_(tokens)))
    }
    origin = None if report.counters is None else report.counters.origin
    for part in report.energy:
        if part.token in job_of:
            bring_to(connection, replace(part, job_id=job_of[part.token]), now_s, origin)
    for note in report.notes:
        if note.token in job_of:
            note_run(connection, replace(note, job_id=job_of[note.token]), now_s)
    if report.counters is not None:
        machine_energy.add(connection, report.counters, now_s)


def _check_runs(connection: Connection, report: NodeReport) -> None:
    tokens = {news.token for news in report.news} | {part.token for part in report.energy}
    tokens |= {note.token for note in report.notes} | {token for token, _ in report.peaks_mib}
    for token, node in nodes_of_runs(connection, tokens).items():
        if node != report.node.name:
            raise NodeRefusedError(f"lease {token} is not one of node {report.node.name!r}")


def _check_gpus(connection: Connection, report: NodeReport) -> None:
    node, own = report.node.name, {gpu.uuid for gpu in report.node.gpus}
    _check_not_elsewhere(connection, node, own)
    check_own_gpus(connection, node, _told_of(report) - own)
    if report.counters is not None:
        _check_counted(connection, node, report.counters.devices.keys() - own)


def _told_of(report: NodeReport) -> set[str]:
    """Return the GPUs of which the report says anything beside the counters of the machine."""
    uuids = {part.gpu_uuid for part in report.energy} | {reading.uuid for reading in report.readings}
    if report.limits is not None:
        limits = report.limits
        uuids |= limits.permits.keys()
        for placement in {*limits.in_force, *limits.noted, *limits.refused}:
            uuids.update(placement.gpu_uuids)
    return uuids


def check_own_gpus(connection: Connection, node: str, uuids: AbstractSet[str]) -> None:
    """Refuse what is told of a GPU that the stored inventory does not have as one that this node has or had.

    :raises NodeRefusedError: for any other GPU.
    """
    foreign = sorted(uuids - _stored_of(connection, node)) if uuids else []
    if foreign:
        raise NodeRefusedError(f"GPU {foreign[0]} is not one of node {node!r}")


def _check_counted(connection: Connection, node: str, uuids: AbstractSet[str]) -> None:
    """Refuse counters of GPUs that another node has, or counts.

    A board that is divided by MIG is counted as a whole and is in no inventory: the first to count it has it.
    """
    unlisted = uuids - _stored_of(connection, node) if uuids else set()
    if not unlisted:
        return
    _check_not_elsewhere(connection, node, unlisted)
    # What a node counted that was forgotten is free again, as its GPUs are.
    standing = select(node_table.c.name).where(node_table.c.name != node)
    query = select(counter_table.c.counters).where(counter_table.c.node.in_(standing))
    for counters in connection.scalars(query):
        counted = sorted(unlisted & counters["devices"].keys())
        if counted:
            raise NodeRefusedError(f"GPU {counted[0]} is one of another node")


def _check_not_elsewhere(connection: Connection, node: str, uuids: AbstractSet[str]) -> None:
    query = select(gpu_table.c.uuid).where(
        gpu_table.c.uuid.in_(sorted(uuids)), gpu_table.c.node != node, gpu_table.c.present
    )
    taken = connection.scalars(query).first()
    if taken is not None:
        raise NodeRefusedError(f"GPU {taken} is one of another node")


def _stored_of(connection: Connection, node: str) -> set[str]:
    """Return the GPUs that the node has, and those that it had and nobody else has had since."""
    return {*connection.scalars(select(gpu_table.c.uuid).where(gpu_table.c.node == node))}
