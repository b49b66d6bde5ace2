"""The part of the first revision that makes the tables about nodes with a worker."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def create_node_tables() -> None:
    """Create the tables."""
    op.create_table(
        "eaco_node_credential",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("machine", sa.Text()),
        sa.Column("reported_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("node", name="pk_eaco_node_credential"),
    )
    op.create_table(
        "eaco_node_sleep",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_eaco_node_sleep"),
    )
    op.create_table(
        "eaco_node_limit",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("gpu_uuids", sa.Text(), nullable=False),
        sa.Column("limit_w", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("node", "gpu_uuids", name="pk_eaco_node_limit"),
    )
    op.create_table(
        "eaco_node_limit_report",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("told", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_eaco_node_limit_report"),
    )
    op.create_table(
        "eaco_node_run",
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text()),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("begun", sa.Boolean(), nullable=False),
        sa.Column("process", sa.Text()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("cause", sa.Text()),
        sa.Column("grace_s", sa.Double()),
        sa.Column("meter", sa.Text()),
        sa.Column("memory_peak_mib", sa.BigInteger()),
        sa.Column("ordered_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("stop_asked_at", sa.TIMESTAMP(timezone=True)),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True)),
        sa.PrimaryKeyConstraint("token", name="pk_eaco_node_run"),
    )
    op.create_index("ix_eaco_node_run_job_id", "eaco_node_run", ["job_id"])
    op.create_index("ix_eaco_node_run_node", "eaco_node_run", ["node"])
    op.create_index("ix_eaco_node_run_ended_at", "eaco_node_run", ["ended_at"])


def drop_node_tables() -> None:
    """Drop the tables."""
    op.drop_table("eaco_node_run")
    op.drop_table("eaco_node_limit_report")
    op.drop_table("eaco_node_limit")
    op.drop_table("eaco_node_sleep")
    op.drop_table("eaco_node_credential")
