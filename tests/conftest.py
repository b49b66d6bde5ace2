"""Keeps the tests apart from the user's own Airflow: its home is a folder that goes with the session."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Any

import pytest

# Airflow reads its environment when it is imported, which collecting the tests already does.
_HOME = tempfile.mkdtemp(prefix="eaco-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith("AIRFLOW__")]:
    del os.environ[_name]
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests that share one Airflow to one worker: those below the same folder of ``tests/system``.

    The mark ``xdist_group`` cannot do it: pytest 9.2 keeps out of a test's id what pytest-xdist 3.8 writes
    there for its scheduler.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByAirflow(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folders = nodeid.partition("::")[0].split("/")
            return "/".join(folders[:3]) if folders[:2] == ["tests", "system"] else nodeid

    return ByAirflow(config, log)
