"""The part of the first revision that makes the table about nodes whose GPUs are only sampled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def create_observed_tables() -> None:
    """Create the table."""
    op.create_table(
        "eaco_node_sample",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("sampled_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_eaco_node_sample"),
    )


def drop_observed_tables() -> None:
    """Drop the table."""
    op.drop_table("eaco_node_sample")
