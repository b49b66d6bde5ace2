"""Two schedulers, an API server, Redis, PostgreSQL, and two machines with a worker: all on this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Postgres, Redis
from tests.system.machines.site import Site


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site, with every part up."""
    folder = tmp_path_factory.mktemp("machines")
    with (
        Redis(tmp_path_factory.mktemp("redis")) as redis,
        Postgres() as postgres,
        Site.make(folder, redis, postgres) as made,
    ):
        yield made
