"""EacoExecutor alone: how tasks are held, live and share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.executor_alone import rig_alone
from tests.system.rig import Rig, quiet_afterwards


@pytest.fixture(scope="package")
def alone(tmp_path_factory: pytest.TempPathFactory, system_dags: Path, migrated: Path) -> Iterator[Rig]:
    """The rig of this folder's Airflow."""
    home, told = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("told")
    with rig_alone(home, system_dags, migrated, told) as rig:
        yield rig


@pytest.fixture(scope="module")
def quiet_rig(request: pytest.FixtureRequest, alone: Rig) -> Iterator[Rig]:
    """The rig, watched: after the module everything is quiet. The module names tracebacks it provokes."""
    with quiet_afterwards(alone, getattr(request.module, "EXPECTED_TRACEBACKS", ())) as rig:
        yield rig


@pytest.fixture
def rig(quiet_rig: Rig) -> Iterator[Rig]:
    """The rig for one test; what the test has started is over before the next one."""
    yield quiet_rig
    quiet_rig.end_runs()
