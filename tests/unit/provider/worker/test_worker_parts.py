"""What a worker is made of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitRequest
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.provider import wiring, worker
from airflow_provider_eaco.provider.settings import EacoSettings
from tests.nvml.machine import fake_machine


def test_scheduler_and_workers_of_a_machine_keep_their_limits_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lifts what nobody of its own holds, and that must never be a limit of another one's."""
    boards = fake_machine(tmp_path, monkeypatch)
    first, second = (boards.gpus[index]["uuid"] for index in range(2))
    monkeypatch.setattr(wiring, "make_dispatcher", lambda: SimpleNamespace(warm_up=lambda: None))
    monkeypatch.setattr(wiring, "make_meters", lambda settings, beliefs: ())
    settings = EacoSettings(home=tmp_path)
    one, two = (worker._machine(node, settings).limiter for node in ("n1", "n2"))
    for limiter, node, uuid in ((one, "n1", first), (two, "n2", second)):
        held = Placement(node, (uuid,))
        limiter.finish(LimitRequest((held,), (SetPowerLimit(held, 200.0),)), 30.0)
    assert (boards.limit_w(0), boards.limit_w(1)) == (200, 200)
    two.finish(LimitRequest(), 30.0)
    wiring.make_limiter(settings).finish(LimitRequest(), 30.0)
    assert (boards.limit_w(0), boards.limit_w(1)) == (200, 300)
    one.finish(LimitRequest(), 30.0)
    assert boards.limit_w(0) == 300
