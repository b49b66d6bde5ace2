"""Keeps the tests apart from the user's own Airflow: its home is a folder that goes with the session."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Airflow reads its environment when it is imported, which collecting the tests already does.
_HOME = tempfile.mkdtemp(prefix="eaco-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith("AIRFLOW__")]:
    del os.environ[_name]
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
