"""The public data sets: outside the repository, found at ``EACO_DATA``, never missed in CI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def benchmark_data(relative: str) -> Path:
    """Return the file of the data sets; the test that asks is skipped where it is missing, not in CI."""
    path = Path(os.environ.get("EACO_DATA", ROOT.parent / "shared" / "data")) / relative
    if not path.exists():
        problem = f"{relative} is not at EACO_DATA ({path})"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{problem}; CI needs it")
        pytest.skip(problem)
    return path
