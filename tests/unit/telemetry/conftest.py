from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.parts import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "eaco" / "simulated.json"
