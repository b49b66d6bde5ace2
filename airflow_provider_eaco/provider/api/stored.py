"""The store as this server process keeps it, so that what it has read of profiles is not read again."""

from __future__ import annotations

from functools import cache

from airflow_provider_eaco.provider.wiring import Store, open_store


@cache
def the_store() -> Store:
    """Return the store; it holds no connection, and any thread may use it."""
    return open_store()
