"""The tables of the migrations are the tables of the code, there and back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine

from airflow_provider_eaco.store import migrate, schema
from airflow_provider_eaco.store.schema import VERSION_TABLE
from tests.integration.store.migrating import alembic_config, downgrade_tables, upgrade_tables

OURS = set(schema.metadata.tables)


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        return list(compare_metadata(context, schema.metadata))


def shape(engine: Engine) -> dict[str, object]:
    """Columns, keys and indexes as the database itself describes them."""
    inspector = sa.inspect(engine)
    return {
        name: (
            [
                (column["name"], str(column["type"]), column["nullable"])
                for column in inspector.get_columns(name)
            ],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(
                (index["name"] or "", tuple(index["column_names"]), bool(index["unique"]), _condition(index))
                for index in inspector.get_indexes(name)
            ),
        )
        for name in sorted(OURS)
    }


def _condition(index: object) -> str:
    options = index.get("dialect_options", {})  # type: ignore[attr-defined]  # a mapping of the inspector
    return " ".join(str(value) for key, value in sorted(options.items()) if key.endswith("_where"))


def test_migrations_make_what_the_code_declares(own_engine: Engine) -> None:
    """After an upgrade from nothing, Alembic finds no difference to the declared tables."""
    upgrade_tables(own_engine)
    assert set(sa.inspect(own_engine).get_table_names()) == OURS | {VERSION_TABLE}
    assert differences(own_engine) == []


def test_both_ways_of_making_the_tables_agree(own_engine: Engine) -> None:
    """Columns, types, keys and partial indexes are the same from migrations and from the declared tables."""
    upgrade_tables(own_engine)
    migrated = shape(own_engine)
    migrate.remove_tables(own_engine)
    schema.metadata.create_all(own_engine)
    assert shape(own_engine) == migrated


def test_there_and_back_and_there_again(own_engine: Engine) -> None:
    """A downgrade to base leaves no table of ours but the version's; an upgrade makes them anew."""
    upgrade_tables(own_engine)
    downgrade_tables(own_engine)
    assert set(sa.inspect(own_engine).get_table_names()) == {VERSION_TABLE}
    upgrade_tables(own_engine)
    assert differences(own_engine) == []


def test_removal_leaves_no_trace_and_nothing_else_is_touched(own_engine: Engine) -> None:
    """Removal drops every table of ours with the version, once, and leaves the tables of others."""
    with own_engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE dag_run (id INTEGER)"))
    upgrade_tables(own_engine)
    assert set(migrate.remove_tables(own_engine)) == OURS | {VERSION_TABLE}
    assert sa.inspect(own_engine).get_table_names() == ["dag_run"]
    assert migrate.remove_tables(own_engine) == []


def test_others_tables_are_no_difference(own_engine: Engine) -> None:
    """A migration that is generated beside Airflow's tables proposes nothing about them."""
    with own_engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE dag_run (id INTEGER)"))
    upgrade_tables(own_engine)
    command.check(alembic_config(own_engine))


def test_there_is_one_head() -> None:
    """The chain has one end, and it is the one that the manager names for this version."""
    config = Config(str(migrate.ALEMBIC_FILE))
    assert ScriptDirectory.from_config(config).get_heads() == ["0001"]
