"""Alembic's way to the database: the engine that the caller hands in, else the configured URL."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from airflow_provider_eaco.store.schema import VERSION_TABLE, metadata


def _include(name: str | None, kind: str, _parents: Any) -> bool:
    # Airflow's tables live beside ours: what is not ours is nobody's business here.
    return kind != "table" or name in metadata.tables


def _migrate_offline(url: str | None) -> None:
    context.configure(
        url=url,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        literal_binds=True,
        include_name=_include,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _migrate_online(engine: Any) -> None:
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table=VERSION_TABLE,
            transaction_per_migration=True,
            include_name=_include,
            render_as_batch=True,
        )
        with context.begin_transaction():
            context.run_migrations()


_url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    _migrate_offline(_url)
else:
    _migrate_online(context.config.attributes.get("engine") or create_engine(_url or "", poolclass=NullPool))
