"""The provider's tables in Airflow's hands: ``airflow db migrate`` makes them, ``db reset`` drops them.

Airflow has no command that takes the tables of a provider back; ``airflow eaco db remove`` does.
"""

from __future__ import annotations

from typing import Any

from airflow import settings
from airflow.utils.db_manager import BaseDBManager
from alembic import command
from sqlalchemy import inspect

from airflow_provider_eaco.store.migrate import ALEMBIC_FILE, MIGRATION_DIR
from airflow_provider_eaco.store.schema import VERSION_TABLE, metadata
from airflow_provider_eaco.store.session import SUPPORTED


class EacoDBManager(BaseDBManager):
    """What Airflow needs to know to keep the provider's tables beside its own."""

    metadata = metadata
    version_table_name = VERSION_TABLE
    migration_dir = str(MIGRATION_DIR)
    alembic_file = str(ALEMBIC_FILE)
    supports_table_dropping = True
    revision_heads_map = {"0.1.0": "0001"}  # noqa: RUF012 # the name and its mutable type are Airflow's

    def get_alembic_config(self) -> Any:
        """Return Alembic's configuration, on Airflow's own engine: a URL has lost its connect arguments."""
        config = super().get_alembic_config()  # type: ignore[no-untyped-call] # Airflow gives no annotations
        config.attributes["engine"] = settings.get_engine()  # type: ignore[no-untyped-call] # the same
        return config

    def initdb(self, use_migration_files: bool = False) -> None:
        """Make the tables, or upgrade those that are there."""
        if self._is_supported():
            super().initdb(use_migration_files=use_migration_files)  # type: ignore[no-untyped-call] # the same

    def upgradedb(
        self,
        to_revision: str | None = None,
        from_revision: str | None = None,
        show_sql_only: bool = False,
        use_migration_files: bool = False,
    ) -> None:
        """Upgrade the tables, or make them where there are none.

        At the newest revision no table is missing afterwards: one that was dropped is there again, empty.
        """
        if not self._is_supported():
            return
        super().upgradedb(to_revision, from_revision, show_sql_only, use_migration_files)  # type: ignore[no-untyped-call] # the same
        # An older revision has other tables.
        if not show_sql_only and self.get_current_revision() == self.get_script_object().get_current_head():  # type: ignore[no-untyped-call] # the same
            self._make_missing_tables()

    def _make_missing_tables(self) -> None:
        # Alembic knows the revision only; to it, a table that somebody dropped is there.
        engine = self.session.get_bind().engine
        missing = self.metadata.tables.keys() - set(inspect(engine).get_table_names())
        if missing:
            self.log.warning("Making tables that were dropped, without rows: %s", ", ".join(sorted(missing)))
            self.metadata.create_all(engine)

    def check_migration(self) -> bool:
        """Tell whether nothing is left to migrate."""
        return not self._is_supported() or super().check_migration()  # type: ignore[no-untyped-call] # the same

    def _is_supported(self) -> bool:
        # On another database Airflow's own migration must not fail because of us; the store says why.
        name = self.session.get_bind().dialect.name
        if name not in SUPPORTED:
            self.log.warning("GPU tasks will wait: no tables on %s, only on %s", name, " or ".join(SUPPORTED))
        return name in SUPPORTED

    def downgrade(
        self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False
    ) -> None:
        """Take the tables back to a revision; ``base`` leaves none. With ``show_sql_only`` print the SQL."""
        span = to_revision
        if show_sql_only:
            span = f"{from_revision or self.get_current_revision()}:{to_revision}"  # type: ignore[no-untyped-call] # the same
        # A reading transaction left open would keep PostgreSQL from changing the tables.
        self.session.rollback()
        command.downgrade(self.get_alembic_config(), span, sql=show_sql_only)
