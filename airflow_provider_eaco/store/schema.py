"""The provider's tables, in a MetaData of their own beside Airflow's.

Every table that grows has a column with the instant from which a row is history; Airflow's ``db clean`` goes
by it (see :data:`HISTORY`). Text columns carry no length: SQLite ignores it, PostgreSQL gains nothing by it.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    Table,
    Text,
)

from airflow_provider_eaco.store.columns import BigSerial, GpuUuids, Instant, JsonText
from airflow_provider_eaco.store.energy_tables import energy_run, energy_told
from airflow_provider_eaco.store.metadata import metadata as metadata  # noqa: PLC0414 - with all its tables
from airflow_provider_eaco.store.node_tables import node_run
from airflow_provider_eaco.store.observed_tables import node_sample as node_sample  # noqa: PLC0414 - with it

VERSION_TABLE = "alembic_version_eaco"

node = Table(
    "eaco_node",
    metadata,
    Column("name", Text, primary_key=True),
    Column("host_memory_mib", BigInteger),
    Column("draining", Boolean, nullable=False),
    Column("available", Boolean, nullable=False),
    # Taken out of the inventory while it still has leases; goes with the last of them.
    Column("forgotten", Boolean, nullable=False),
    Column("time_scale", Double, nullable=False),
    Column("last_report_at", Instant),
)

gpu = Table(
    "eaco_gpu",
    metadata,
    Column("uuid", Text, primary_key=True),
    Column("node", Text, nullable=False, index=True),
    Column("gpu_index", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("memory_total_mib", BigInteger),
    Column("memory_reserved_mib", BigInteger, nullable=False),
    Column("health", Text, nullable=False),
    # False once its node no longer reports it: the row stays, so that its counters never start again.
    Column("present", Boolean, nullable=False),
    # Grows by one with every grant and release; a grant names the version it was planned on.
    Column("ledger_version", BigInteger, nullable=False),
    # The version of the resident set that is here now, or was here last.
    Column("set_version", BigInteger, nullable=False),
)

# Apart from eaco_gpu, so that a meter's writes never wait for a grant's row locks.
gpu_reading = Table(
    "eaco_gpu_reading",
    metadata,
    Column("uuid", Text, primary_key=True),
    Column("read_at", Instant, nullable=False),
    Column("utilisation_pct", Double),
    Column("memory_used_mib", BigInteger),
    Column("power_w", Double),
    Column("energy_j", Double),
    Column("foreign_memory_mib", BigInteger),
    Column("foreign_processes", Integer),
    # [[pid, user or null], ...]; NULL where none is told.
    Column("foreign_by", JsonText),
)

job = Table(
    "eaco_job",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("dag_id", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("run_after_at", Instant, nullable=False),
    Column("pool", Text, nullable=False),
    # The DAG bundle that the DAG came from; NULL where Airflow did not say.
    Column("bundle", Text),
    Column("pool_slots", Integer, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("queued_at", Instant, nullable=False),
    Column("on_hold", Boolean, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("family", Text, nullable=False),
    Column("gpu_memory_mib", BigInteger),
    Column("gpu_models", JsonText, nullable=False),
    Column("host_memory_mib", BigInteger),
    Column("max_stretch", Double),
    Column("deadline_s", Double),
    Column("share", Text, nullable=False),
    Column("shiftable", Boolean, nullable=False),
    Column("phase", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("process", Text),
    # Handed over again while its old process was still dying: the executor that then holds its workload.
    Column("requeued_by", Text),
    Column("started_at", Instant),
    Column("ended_at", Instant, index=True),
    Column("units_done", BigInteger, nullable=False),
    Column("units_total", BigInteger),
    Column("run_s", Double, nullable=False),
    Column("can_yield", Boolean, nullable=False),
    Column("solo_unit_s", Double),
    Column("solo_units", BigInteger, nullable=False),
    Column("solo_spread_s", Double),
    Column("reported_s", Double),
    Column("lost_s", Double),
    Column("out_of_memory", Integer, nullable=False),
    Column("seen_set_version", BigInteger),
    Column("seen_units", BigInteger),
    Column("seen_unit_s", Double),
    Column("seen_elapsed_s", Double),
    Column("seen_spread_s", Double),
    Column("seen_limited", Boolean),
    Index(None, "dag_id", "task_id"),
    Index(None, "phase"),
)

lease = Table(
    "eaco_lease",
    metadata,
    # The fencing token: SQLite's AUTOINCREMENT and PostgreSQL's sequence never give a number twice.
    Column("token", BigSerial, primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    Column("dag_id", Text),
    Column("node", Text, nullable=False),
    Column("gpu_uuids", GpuUuids, nullable=False),
    Column("state", Text, nullable=False),
    Column("set_version", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("granted_at", Instant, nullable=False),
    Column("trial_since_at", Instant),
    # Seconds that count as its own: time divided by those who held the GPUs, up to the set's last change.
    Column("charged_s", Double, nullable=False),
    Column("charged_until_at", Instant, nullable=False),
    Column("released_at", Instant, index=True),
    sqlite_autoincrement=True,
)
# A job holds one placement at a time, whatever the planners do.
Index(
    "uq_eaco_lease_job_id_held",
    lease.c.job_id,
    unique=True,
    sqlite_where=lease.c.released_at.is_(None),
    postgresql_where=lease.c.released_at.is_(None),
)

profile_solo = Table(
    "eaco_profile_solo",
    metadata,
    # A digest of the key: names of 250 characters may not fit into an index.
    Column("profile_id", Text, primary_key=True),
    Column("family", Text, nullable=False),
    Column("gpu_model", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("unit_s", Double),
    Column("spread_s", Double),
    Column("samples", BigInteger, nullable=False),
    Column("power_w", Double),
    Column("utilisation_pct", Double),
    Column("utilisation_max_pct", Double),
    Column("memory_utilisation_pct", Double),
    Column("memory_peak_mib", BigInteger),
    Column("units_total", BigInteger),
    Column("checkpoints", Boolean),
    Column("scope", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("updated_at", Instant),
    Column("reference", Text, nullable=False),
    Column("stale", Boolean, nullable=False),
    Column("levels", JsonText, nullable=False),
)

profile_coallocation = Table(
    "eaco_profile_coallocation",
    metadata,
    Column("profile_id", Text, primary_key=True),
    Column("families", JsonText, nullable=False),
    Column("gpu_model", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("slowdowns", JsonText, nullable=False),
    Column("power_w", Double),
    Column("utilisation_pct", Double),
    Column("utilisation_max_pct", Double),
    Column("memory_utilisation_pct", Double),
    Column("samples", BigInteger, nullable=False),
    Column("spread", Double),
    Column("undone", BigInteger, nullable=False),
    Column("scope", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("updated_at", Instant),
    Column("reference", Text, nullable=False),
    Column("stale", Boolean, nullable=False),
    Column("levels", JsonText, nullable=False),
)

# One row: the revision of the two tables above, so that a reader knows in one look whether its book is old.
profile_revision = Table(
    "eaco_profile_revision",
    metadata,
    Column("revision_id", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
)

decision = Table(
    "eaco_decision",
    metadata,
    Column("decision_id", BigSerial, primary_key=True),
    Column("pool", Text, nullable=False),
    # The kind of job and its answer; the job where one was admitted.
    Column("subject", Text, nullable=False),
    Column("kind_id", Text, nullable=False, index=True),
    Column("job_id", Text, index=True),
    Column("dag_id", Text),
    # What the job, or every job of the kind, asks for: the kind itself is stored as a digest only.
    Column("family", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("reason", Text),
    Column("findings", JsonText, nullable=False),
    Column("node", Text),
    Column("gpu_uuids", GpuUuids),
    Column("co_residents", JsonText, nullable=False),
    Column("prediction", JsonText),
    # Why this placement before others; empty unless admitted.
    Column("choice", Text, nullable=False),
    # What is to be known of an admission all the same.
    Column("notes", JsonText, nullable=False),
    # Other ways for the jobs to run, as they were when the answer was first given.
    Column("alternatives", JsonText, nullable=False),
    Column("decided_at", Instant, nullable=False),
    # NULL while it is the answer that stands.
    Column("ended_at", Instant, index=True),
    sqlite_autoincrement=True,
)
Index(
    "uq_eaco_decision_pool_subject_standing",
    decision.c.pool,
    decision.c.subject,
    unique=True,
    sqlite_where=decision.c.ended_at.is_(None),
    postgresql_where=decision.c.ended_at.is_(None),
)

event = Table(
    "eaco_event",
    metadata,
    Column("event_id", BigSerial, primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    Column("dag_id", Text),
    Column("event", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("happened_at", Instant, nullable=False, index=True),
    sqlite_autoincrement=True,
)

energy = Table(
    "eaco_energy",
    metadata,
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    Column("gpu_uuid", Text, primary_key=True),
    # When it was stored, in UTC: 2026-12.
    Column("month", Text, primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    Column("dag_id", Text),
    # NULL: nothing was ever measured, which is not zero joules.
    Column("energy_j", Double),
    Column("seconds", Double, nullable=False),
    # Those of them in which the energy was measured.
    Column("known_s", Double, nullable=False),
    Column("method", Text, nullable=False),
    # True once a part is missing: the sum is then a lower bound.
    Column("partial", Boolean, nullable=False),
    Column("updated_at", Instant, nullable=False, index=True),
)

planner = Table(
    "eaco_planner",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("expires_at", Instant, nullable=False),
)

queue = Table(
    "eaco_queue",
    metadata,
    Column("pool", Text, primary_key=True),
    # Waiting job ids as the pool's ordering ranked them last.
    Column("job_ids", JsonText, nullable=False),
    # By subject, the jobs to which another answer was given than to most of their kind.
    Column("apart", JsonText, nullable=False),
)

booking = Table(
    "eaco_booking",
    metadata,
    Column("booking_id", BigSerial, primary_key=True),
    Column("node", Text, nullable=False),
    Column("gpu_uuids", GpuUuids, nullable=False),
    # For whom or what, as the booker gave it.
    Column("name", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("starts_at", Instant, nullable=False),
    Column("ends_at", Instant, nullable=False, index=True),
    # Tokens of the leases whose jobs were told of it.
    Column("told", JsonText, nullable=False),
    sqlite_autoincrement=True,
)


class History(NamedTuple):
    """How old rows of a table are known; rows whose ``since`` is NULL are not history yet."""

    table: Table
    since: str
    dag_id: str | None


HISTORY = (
    History(job, "ended_at", "dag_id"),
    History(lease, "released_at", "dag_id"),
    History(decision, "ended_at", "dag_id"),
    History(event, "happened_at", "dag_id"),
    History(energy, "updated_at", "dag_id"),
    History(node_run, "ended_at", "dag_id"),
    History(energy_run, "updated_at", "dag_id"),
    History(energy_told, "updated_at", "dag_id"),
    History(booking, "ends_at", None),
    History(node_run, "ended_at", "dag_id"),
)
