"""The provider's tables as a whole: where their migrations are, and removal without a trace."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData, Table, inspect
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store.schema import VERSION_TABLE, metadata
from airflow_provider_eaco.store.session import named_errors

_HERE = Path(__file__).parent
ALEMBIC_FILE = _HERE / "alembic.ini"
MIGRATION_DIR = _HERE / "migrations"


def remove_tables(engine: Engine) -> list[str]:
    """Drop every table of this provider, whatever its revision, and return the names of those dropped.

    Airflow's tables are not touched. Calling it again drops nothing.

    :raises StoreUnavailableError: if the database is out of reach.
    """
    with named_errors(), engine.begin() as connection:
        present = set(inspect(connection).get_table_names())
        version = Table(VERSION_TABLE, MetaData())
        ours = [table for table in (*metadata.sorted_tables, version) if table.name in present]
        for table in ours:
            table.drop(connection)
        return [table.name for table in ours]
