"""The table about nodes whose GPUs are only sampled: when a sampler told of each last."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text

from airflow_provider_eaco.store.columns import Instant
from airflow_provider_eaco.store.metadata import metadata

# A task that was told of in the last report runs there; its lease ended, for the ledger, at this instant.
node_sample = Table(
    "eaco_node_sample",
    metadata,
    Column("node", Text, primary_key=True),
    Column("sampled_at", Instant, nullable=False),
)
