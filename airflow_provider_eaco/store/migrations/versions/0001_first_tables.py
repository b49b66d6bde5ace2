"""The first tables.

Revision: 0001, after nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_eaco.store.migrations.energy_tables import create_energy_tables, drop_energy_tables
from airflow_provider_eaco.store.migrations.node_tables import create_node_tables, drop_node_tables
from airflow_provider_eaco.store.migrations.observed_tables import (
    create_observed_tables,
    drop_observed_tables,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite gives row numbers to INTEGER keys only.
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _create_node()
    _create_gpu()
    _create_gpu_reading()
    _create_job()
    _create_lease()
    _create_profile_solo()
    _create_profile_coallocation()
    _create_profile_revision()
    _create_decision()
    _create_event()
    _create_energy()
    create_energy_tables()
    _create_planner()
    _create_queue()
    create_node_tables()
    create_observed_tables()
    _create_booking()


def downgrade() -> None:
    """Drop all tables, the newest first."""
    op.drop_table("eaco_booking")
    drop_observed_tables()
    drop_node_tables()
    drop_energy_tables()
    for table in (
        "eaco_queue",
        "eaco_planner",
        "eaco_energy",
        "eaco_event",
        "eaco_decision",
        "eaco_profile_revision",
        "eaco_profile_coallocation",
        "eaco_profile_solo",
        "eaco_lease",
        "eaco_job",
        "eaco_gpu_reading",
        "eaco_gpu",
        "eaco_node",
    ):
        op.drop_table(table)


def _create_node() -> None:
    op.create_table(
        "eaco_node",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host_memory_mib", sa.BigInteger()),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("forgotten", sa.Boolean(), nullable=False),
        sa.Column("time_scale", sa.Double(), nullable=False),
        sa.Column("last_report_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("name", name="pk_eaco_node"),
    )


def _create_gpu() -> None:
    op.create_table(
        "eaco_gpu",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("gpu_index", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("memory_total_mib", sa.BigInteger()),
        sa.Column("memory_reserved_mib", sa.BigInteger(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("present", sa.Boolean(), nullable=False),
        sa.Column("ledger_version", sa.BigInteger(), nullable=False),
        sa.Column("set_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_eaco_gpu"),
    )
    op.create_index("ix_eaco_gpu_node", "eaco_gpu", ["node"])


def _create_gpu_reading() -> None:
    op.create_table(
        "eaco_gpu_reading",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("read_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("utilisation_pct", sa.Double()),
        sa.Column("memory_used_mib", sa.BigInteger()),
        sa.Column("power_w", sa.Double()),
        sa.Column("energy_j", sa.Double()),
        sa.Column("foreign_memory_mib", sa.BigInteger()),
        sa.Column("foreign_processes", sa.Integer()),
        sa.Column("foreign_by", sa.Text()),
        sa.PrimaryKeyConstraint("uuid", name="pk_eaco_gpu_reading"),
    )


def _create_job() -> None:
    op.create_table(
        "eaco_job",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("run_after_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("bundle", sa.Text()),
        sa.Column("pool_slots", sa.Integer(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("on_hold", sa.Boolean(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("gpu_memory_mib", sa.BigInteger()),
        sa.Column("gpu_models", sa.Text(), nullable=False),
        sa.Column("host_memory_mib", sa.BigInteger()),
        sa.Column("max_stretch", sa.Double()),
        sa.Column("deadline_s", sa.Double()),
        sa.Column("share", sa.Text(), nullable=False),
        sa.Column("shiftable", sa.Boolean(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("process", sa.Text()),
        sa.Column("requeued_by", sa.Text()),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("units_done", sa.BigInteger(), nullable=False),
        sa.Column("units_total", sa.BigInteger()),
        sa.Column("run_s", sa.Double(), nullable=False),
        sa.Column("can_yield", sa.Boolean(), nullable=False),
        sa.Column("solo_unit_s", sa.Double()),
        sa.Column("solo_units", sa.BigInteger(), nullable=False),
        sa.Column("solo_spread_s", sa.Double()),
        sa.Column("reported_s", sa.Double()),
        sa.Column("lost_s", sa.Double()),
        sa.Column("out_of_memory", sa.Integer(), nullable=False),
        sa.Column("seen_set_version", sa.BigInteger()),
        sa.Column("seen_units", sa.BigInteger()),
        sa.Column("seen_unit_s", sa.Double()),
        sa.Column("seen_elapsed_s", sa.Double()),
        sa.Column("seen_spread_s", sa.Double()),
        sa.Column("seen_limited", sa.Boolean()),
        sa.PrimaryKeyConstraint("job_id", name="pk_eaco_job"),
    )
    op.create_index("ix_eaco_job_dag_id_task_id", "eaco_job", ["dag_id", "task_id"])
    op.create_index("ix_eaco_job_ended_at", "eaco_job", ["ended_at"])
    op.create_index("ix_eaco_job_phase", "eaco_job", ["phase"])


def _create_lease() -> None:
    op.create_table(
        "eaco_lease",
        sa.Column("token", _SERIAL, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text()),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("gpu_uuids", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("set_version", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("granted_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("trial_since_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("charged_s", sa.Double(), nullable=False),
        sa.Column("charged_until_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("released_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("token", name="pk_eaco_lease"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_eaco_lease_job_id", "eaco_lease", ["job_id"])
    op.create_index("ix_eaco_lease_released_at", "eaco_lease", ["released_at"])
    held = sa.text("released_at IS NULL")
    op.create_index(
        "uq_eaco_lease_job_id_held",
        "eaco_lease",
        ["job_id"],
        unique=True,
        sqlite_where=held,
        postgresql_where=held,
    )


def _create_profile_solo() -> None:
    op.create_table(
        "eaco_profile_solo",
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("gpu_model", sa.Text(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("unit_s", sa.Double()),
        sa.Column("spread_s", sa.Double()),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("power_w", sa.Double()),
        sa.Column("utilisation_pct", sa.Double()),
        sa.Column("utilisation_max_pct", sa.Double()),
        sa.Column("memory_utilisation_pct", sa.Double()),
        sa.Column("memory_peak_mib", sa.BigInteger()),
        sa.Column("units_total", sa.BigInteger()),
        sa.Column("checkpoints", sa.Boolean()),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.Column("levels", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("profile_id", name="pk_eaco_profile_solo"),
    )


def _create_profile_coallocation() -> None:
    op.create_table(
        "eaco_profile_coallocation",
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.Column("families", sa.Text(), nullable=False),
        sa.Column("gpu_model", sa.Text(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("slowdowns", sa.Text(), nullable=False),
        sa.Column("power_w", sa.Double()),
        sa.Column("utilisation_pct", sa.Double()),
        sa.Column("utilisation_max_pct", sa.Double()),
        sa.Column("memory_utilisation_pct", sa.Double()),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("spread", sa.Double()),
        sa.Column("undone", sa.BigInteger(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.Column("levels", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("profile_id", name="pk_eaco_profile_coallocation"),
    )


def _create_profile_revision() -> None:
    op.create_table(
        "eaco_profile_revision",
        sa.Column("revision_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("revision_id", name="pk_eaco_profile_revision"),
    )


def _create_decision() -> None:
    op.create_table(
        "eaco_decision",
        sa.Column("decision_id", _SERIAL, nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("kind_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text()),
        sa.Column("dag_id", sa.Text()),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("node", sa.Text()),
        sa.Column("gpu_uuids", sa.Text()),
        sa.Column("co_residents", sa.Text(), nullable=False),
        sa.Column("prediction", sa.Text()),
        sa.Column("choice", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("alternatives", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("decision_id", name="pk_eaco_decision"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_eaco_decision_ended_at", "eaco_decision", ["ended_at"])
    op.create_index("ix_eaco_decision_job_id", "eaco_decision", ["job_id"])
    op.create_index("ix_eaco_decision_kind_id", "eaco_decision", ["kind_id"])
    standing = sa.text("ended_at IS NULL")
    op.create_index(
        "uq_eaco_decision_pool_subject_standing",
        "eaco_decision",
        ["pool", "subject"],
        unique=True,
        sqlite_where=standing,
        postgresql_where=standing,
    )


def _create_event() -> None:
    op.create_table(
        "eaco_event",
        sa.Column("event_id", _SERIAL, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text()),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("happened_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="pk_eaco_event"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_eaco_event_happened_at", "eaco_event", ["happened_at"])
    op.create_index("ix_eaco_event_job_id", "eaco_event", ["job_id"])


def _create_energy() -> None:
    op.create_table(
        "eaco_energy",
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text()),
        sa.Column("energy_j", sa.Double()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("known_s", sa.Double(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("partial", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token", "gpu_uuid", "month", name="pk_eaco_energy"),
    )
    op.create_index("ix_eaco_energy_job_id", "eaco_energy", ["job_id"])
    op.create_index("ix_eaco_energy_updated_at", "eaco_energy", ["updated_at"])


def _create_planner() -> None:
    op.create_table(
        "eaco_planner",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_eaco_planner"),
    )


def _create_queue() -> None:
    op.create_table(
        "eaco_queue",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("job_ids", sa.Text(), nullable=False),
        sa.Column("apart", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pool", name="pk_eaco_queue"),
    )


def _create_booking() -> None:
    op.create_table(
        "eaco_booking",
        sa.Column("booking_id", _SERIAL, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("gpu_uuids", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ends_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("told", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("booking_id", name="pk_eaco_booking"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_eaco_booking_ends_at", "eaco_booking", ["ends_at"])
