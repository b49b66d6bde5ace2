"""Profiles as rows over the built-in book, which is never written to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from hashlib import sha256
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection

from airflow_provider_eaco.core.model.profile import (
    CoallocationProfile,
    FamilySet,
    PowerLevel,
    PowerScope,
    ProfileBook,
    ProfileKey,
    ProfileSource,
    SoloProfile,
)
from airflow_provider_eaco.store.columns import canonical_json
from airflow_provider_eaco.store.schema import profile_coallocation, profile_revision, profile_solo
from airflow_provider_eaco.store.session import Database, upsert

_REVISION_ID = 1
_COLUMN_OF = {"updated_s": "updated_at"}


class SqlProfileStore:
    """What is believed about families: the built-in book, overlaid by the rows of the database.

    The book is read again only when its revision in the database has changed.

    :param built_in: the book under the rows; normally ``airflow_provider_eaco.data.built_in_book()``.
    """

    def __init__(self, database: Database, built_in: ProfileBook) -> None:
        self._database = database
        self._built_in = built_in
        self._book: ProfileBook | None = None

    def book(self) -> ProfileBook:
        """Return the present beliefs as one view; equal revisions mean equal content."""
        with self._database.reading() as connection:
            revision = connection.scalar(select(profile_revision.c.revision)) or 0
            if self._book is None or self._book.revision != revision:
                self._book = self._read(connection, revision)
            return self._book

    def save_solo(self, profile: SoloProfile) -> None:
        """Store the profile in place of what was stored for its key."""
        self.save_all([profile])

    def save_coallocation(self, profile: CoallocationProfile) -> None:
        """Store the profile in place of what was stored for its key."""
        self.save_all([profile])

    def save_all(self, profiles: Iterable[SoloProfile | CoallocationProfile]) -> None:
        """Store all of these profiles or, if one cannot be stored, none; the last one of a key wins."""
        with self._database.writing() as connection:
            for profile in profiles:
                _save(connection, profile)
            self._count_revision(connection)

    def delete(self, key: ProfileKey) -> bool:
        """Forget what was stored for the key (a built-in profile shows again); return whether there was."""
        table = profile_solo if len(key.families) == 1 else profile_coallocation
        with self._database.writing() as connection:
            gone = delete(table).where(table.c.profile_id == _profile_id(key))
            if connection.execute(gone).rowcount == 0:
                return False
            self._count_revision(connection)
            return True

    def _count_revision(self, connection: Connection) -> None:
        # Begins at the clock's milliseconds, so that a table made anew never repeats a revision that somebody
        # still has a book of.
        first = int(self._database.now_s(connection) * 1000)
        statement = upsert(connection, profile_revision).values(revision_id=_REVISION_ID, revision=first)
        grown = {"revision": profile_revision.c.revision + 1}
        connection.execute(statement.on_conflict_do_update(index_elements=["revision_id"], set_=grown))

    def _read(self, connection: Connection, revision: int) -> ProfileBook:
        solo = [_solo(row) for row in connection.execute(select(profile_solo)).mappings()]
        sets = [_coallocation(row) for row in connection.execute(select(profile_coallocation)).mappings()]
        return ProfileBook(
            solo={**self._built_in.solo, **{profile.key: profile for profile in solo}},
            coallocation={**self._built_in.coallocation, **{profile.key: profile for profile in sets}},
            revision=revision,
        )


def _profile_id(key: ProfileKey) -> str:
    return sha256(canonical_json([key.families, key.gpu_model, key.gpu_count]).encode()).hexdigest()


def _save(connection: Connection, profile: SoloProfile | CoallocationProfile) -> None:
    table, values = profile_solo, _values(profile)
    if isinstance(profile, CoallocationProfile):
        table = profile_coallocation
        values |= {"families": list(profile.families), "slowdowns": dict(profile.slowdowns)}
    statement = upsert(connection, table).values(profile_id=_profile_id(profile.key), **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["profile_id"], set_=values))


def _values(profile: SoloProfile | CoallocationProfile) -> dict[str, Any]:
    values = {field.name: getattr(profile, field.name) for field in fields(profile)}
    values = {_COLUMN_OF.get(name, name): value for name, value in values.items()}
    levels = [asdict(level) for level in profile.levels]
    return {**values, "scope": profile.scope.value, "source": profile.source.value, "levels": levels}


def _solo(row: Any) -> SoloProfile:
    return SoloProfile(**_arguments(row))


def _coallocation(row: Any) -> CoallocationProfile:
    arguments = _arguments(row)
    return CoallocationProfile(**{**arguments, "families": FamilySet(tuple(arguments["families"]))})


def _arguments(row: Any) -> dict[str, Any]:
    stored = dict(row)
    del stored["profile_id"]
    stored["updated_s"] = stored.pop("updated_at")
    levels = tuple(PowerLevel(**level) for level in stored["levels"])
    scope, source = PowerScope(stored["scope"]), ProfileSource(stored["source"])
    return {**stored, "scope": scope, "source": source, "levels": levels}
