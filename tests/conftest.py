"""Keeps the tests apart from the user's own Airflow: its home is a folder that goes with the session."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

# Airflow reads its environment when it is imported, which collecting the tests already does.
_HOME = tempfile.mkdtemp(prefix="eaco-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith("AIRFLOW__")]:
    del os.environ[_name]
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Small matrices in many processes on two cores: threads of numpy's would mostly wait for each other.
os.environ["OPENBLAS_NUM_THREADS"] = "1"


_SYSTEM = ("tests", "system")
_HOUSE = "test_house.py::test_the_tree"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have those with a real Airflow begin, then the check of types: they take longest, and no worker should
    end with one.
    """
    items.sort(key=lambda item: (tuple(item.nodeid.split("/")[:2]) != _SYSTEM, _HOUSE not in item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of a file to one worker, and all that share an Airflow: a folder below ``tests/system``.

    What such tests share is then made once. The mark ``xdist_group`` cannot do it: pytest 9.2 keeps out of a
    test's id what pytest-xdist 3.8 writes there for its scheduler.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByAirflow(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folders = nodeid.partition("::")[0].split("/")
            return "/".join(folders[:3] if tuple(folders[:2]) == _SYSTEM else folders)

    # In the order of collection, not by the number of tests, which says nothing of how long they take.
    config.option.loadscopereorder = False
    return ByAirflow(config, log)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file as ``airflow db migrate`` leaves it, made once for all processes of the run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "migrated.db"
    with (folder / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            from harness import Airflow, AirflowSettings

            home = tmp_path_factory.mktemp("migrated")
            Airflow(AirflowSettings(home, home)).migrate()
            (home / "airflow.db").rename(made)
    return made
