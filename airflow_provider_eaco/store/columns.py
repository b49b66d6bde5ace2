"""Column types: how instants, JSON and GPU sets lie in SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sqlalchemy import TIMESTAMP, BigInteger, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

# SQLite gives row numbers to INTEGER keys only.
BigSerial = BigInteger().with_variant(Integer, "sqlite")


class Instant(TypeDecorator[float]):
    """Seconds since the Unix epoch in Python, a UTC time stamp with microseconds in the database.

    Airflow's clean-up compares time stamps, so a column of seconds would be out of its reach.
    """

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value, UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> float | None:
        if value is None:
            return None
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


class JsonText(TypeDecorator[Any]):
    """A JSON value as ASCII text; Python's ``None`` is SQL's NULL.

    A text column, because PostgreSQL's json types refuse NaN, Infinity and the escaped NUL, all of which may
    stand in a decision's numbers. Mappings are sorted by key, so equal values are equal texts.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else canonical_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class GpuUuids(TypeDecorator[tuple[str, ...]]):
    """A set of GPUs as one text: sorted UUIDs with commas between, so that equal sets are equal in SQL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> str | None:
        return None if value is None else ",".join(sorted(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(value.split(","))


def canonical_json(value: object) -> str:
    """Return the one text for ``value``: keys sorted, ASCII only, enums by value, foreign objects as text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
