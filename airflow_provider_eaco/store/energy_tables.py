"""The tables of energy beside that of parts: what runs were seen to draw, and what whole machines used."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Table, Text

from airflow_provider_eaco.store.columns import Instant, JsonText
from airflow_provider_eaco.store.metadata import metadata

# What was seen of one lease beside its joules.
energy_run = Table(
    "eaco_energy_run",
    metadata,
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    Column("job_id", Text, nullable=False, index=True),
    Column("dag_id", Text),
    Column("peak_w", Double),
    Column("rules", JsonText, nullable=False),
    # Instants with the joules and measured seconds up to each; at most as many as energy_curve allows.
    Column("curve", JsonText, nullable=False),
    Column("updated_at", Instant, nullable=False, index=True),
)

# What one counting of a meter has told of one lease on one GPU, in all; each counts from 0.
energy_told = Table(
    "eaco_energy_told",
    metadata,
    Column("token", BigInteger, primary_key=True, autoincrement=False),
    Column("gpu_uuid", Text, primary_key=True),
    Column("origin", Text, primary_key=True),
    Column("dag_id", Text),
    Column("energy_j", Double),
    Column("seconds", Double, nullable=False),
    Column("updated_at", Instant, nullable=False, index=True),
)

# What whole GPUs used, whoever was there: runs_j + idle_j + strangers_j = energy_j. A row for a month is kept
# for good: they are few, and a report has to match them.
energy_device = Table(
    "eaco_energy_device",
    metadata,
    Column("uuid", Text, primary_key=True),
    Column("month", Text, primary_key=True),
    Column("node", Text, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("runs_j", Double, nullable=False),
    Column("idle_j", Double, nullable=False),
    Column("strangers_j", Double, nullable=False),
    Column("unknown_s", Double, nullable=False),
    Column("updated_at", Instant, nullable=False, index=True),
)

# What machines with a power meter of their own used, and their GPUs in the same seconds.
energy_node = Table(
    "eaco_energy_node",
    metadata,
    Column("node", Text, primary_key=True),
    Column("month", Text, primary_key=True),
    Column("node_j", Double, nullable=False),
    Column("gpus_j", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("updated_at", Instant, nullable=False, index=True),
)

# The counters of a machine as they were last added to the two tables above: one meter counts at a time.
energy_counter = Table(
    "eaco_energy_counter",
    metadata,
    Column("node", Text, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("until_at", Instant, nullable=False),
    Column("counters", JsonText, nullable=False),
)
