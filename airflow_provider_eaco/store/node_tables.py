"""The tables about nodes with a worker: who may report for them, and what became of the runs sent there."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, Table, Text

from airflow_provider_eaco.store.columns import GpuUuids, Instant, JsonText
from airflow_provider_eaco.store.metadata import metadata

node_credential = Table(
    "eaco_node_credential",
    metadata,
    Column("node", Text, primary_key=True),
    # SHA-256 of the credential, which itself is shown once and kept nowhere.
    Column("digest", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    # The machine that reports under it now.
    Column("machine", Text),
    Column("reported_at", Instant),
)

node_run = Table(
    "eaco_node_run",
    metadata,
    # The lease's token.
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    Column("job_id", Text, nullable=False, index=True),
    Column("dag_id", Text),
    Column("node", Text, nullable=False, index=True),
    Column("state", Text, nullable=False),
    # Whether its processes have ever been reported.
    Column("begun", Boolean, nullable=False),
    # The node's own name for them, with the pid.
    Column("process", Text),
    Column("exit_code", Integer),
    Column("cause", Text),
    Column("grace_s", Double),
    Column("meter", JsonText),
    # The most that it was seen to use of one of its GPUs while it lived; only grows.
    Column("memory_peak_mib", BigInteger),
    Column("ordered_at", Instant, nullable=False),
    Column("stop_asked_at", Instant),
    # NULL until the run is over, or was never begun.
    Column("ended_at", Instant, index=True),
)

# To what the boards of nodes with a worker are to be held while somebody holds them.
node_limit = Table(
    "eaco_node_limit",
    metadata,
    Column("node", Text, primary_key=True),
    Column("gpu_uuids", GpuUuids, primary_key=True),
    Column("limit_w", Double, nullable=False),
)

# What a node's worker has told last of the limits on its boards; none of a worker that knows no limits.
node_limit_report = Table(
    "eaco_node_limit_report",
    metadata,
    Column("node", Text, primary_key=True),
    Column("told", JsonText, nullable=False),
)

# Nodes that were put to sleep, and those that wake up from it; one without a row is up, as far as we know.
node_sleep = Table(
    "eaco_node_sleep",
    metadata,
    Column("node", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since_at", Instant, nullable=False),
)
