"""The package's public names: what users import, and what a type checker tells them about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_eaco

USE = Path(__file__).parents[1] / "typing" / "api.py"


@pytest.mark.parametrize("name", airflow_provider_eaco.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    """Each name in ``__all__`` resolves on first use, and to the same object afterwards."""
    assert getattr(airflow_provider_eaco, name) is getattr(airflow_provider_eaco, name)
    assert name in dir(airflow_provider_eaco)


def test_other_names_are_refused() -> None:
    """A misspelt name is an AttributeError that names the package."""
    with pytest.raises(AttributeError, match=r"airflow_provider_eaco.*gpu_requests"):
        airflow_provider_eaco.gpu_requests  # noqa: B018 - reading it is the test


def test_users_code_is_type_checked(tmp_path: Path) -> None:
    """Mypy accepts the right uses of the public names, and finds each of the wrong ones."""
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--follow-imports=silent"]
    command += ["--cache-dir", str(tmp_path), str(USE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout
