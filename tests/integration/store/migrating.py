"""The migrations run by themselves, as Airflow's own command runs them."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store.migrate import ALEMBIC_FILE


def alembic_config(engine: Engine) -> Config:
    config = Config(str(ALEMBIC_FILE))
    config.attributes["engine"] = engine
    return config


def upgrade_tables(engine: Engine) -> None:
    """Bring the tables to the newest revision, from nothing or from any earlier one."""
    command.upgrade(alembic_config(engine), "head")


def downgrade_tables(engine: Engine) -> None:
    """Leave none of the tables."""
    command.downgrade(alembic_config(engine), "base")
