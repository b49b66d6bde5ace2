"""The part of the first revision that makes the tables of energy beside that of parts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def create_energy_tables() -> None:
    """Create the tables."""
    _create(
        "eaco_energy_run",
        ("token",),
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("dag_id", sa.Text()),
        sa.Column("peak_w", sa.Double()),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("curve", sa.Text(), nullable=False),
    )
    op.create_index("ix_eaco_energy_run_job_id", "eaco_energy_run", ["job_id"])
    _create(
        "eaco_energy_told",
        ("token", "gpu_uuid", "origin"),
        sa.Column("token", sa.BigInteger(), autoincrement=False, nullable=False),
        *_texts("gpu_uuid", "origin"),
        sa.Column("dag_id", sa.Text()),
        sa.Column("energy_j", sa.Double()),
        *_sums("seconds"),
    )
    _create(
        "eaco_energy_device",
        ("uuid", "month"),
        *_texts("uuid", "month", "node"),
        *_sums("energy_j", "runs_j", "idle_j", "strangers_j", "unknown_s"),
    )
    _create(
        "eaco_energy_node",
        ("node", "month"),
        *_texts("node", "month"),
        *_sums("node_j", "gpus_j", "seconds"),
    )
    op.create_table(
        "eaco_energy_counter",
        *_texts("node", "origin"),
        sa.Column("until_at", sa.TIMESTAMP(timezone=True), nullable=False),
        *_texts("counters"),
        sa.PrimaryKeyConstraint("node", name="pk_eaco_energy_counter"),
    )


def drop_energy_tables() -> None:
    """Drop them, the newest first."""
    for table in ("counter", "node", "device", "told", "run"):
        op.drop_table(f"eaco_energy_{table}")


def _create(name: str, key: tuple[str, ...], *columns: sa.Column[Any]) -> None:
    updated = sa.Column("updated_at", sa.TIMESTAMP(timezone=True), nullable=False)
    op.create_table(name, *columns, updated, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"))
    op.create_index(f"ix_{name}_updated_at", name, ["updated_at"])


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _sums(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Double(), nullable=False) for name in names]
