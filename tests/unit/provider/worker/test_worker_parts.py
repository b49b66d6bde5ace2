"""What a worker is made of."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_eaco.core.model.board_limits import LimitRequest
from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.provider import celery_app, wiring, worker
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


@pytest.mark.parametrize(
    ("executor", "warned"),
    [
        ("LocalExecutor", True),
        ("airflow_provider_eaco.EacoExecutor", False),
        ("CeleryExecutor,airflow_provider_eaco.EacoExecutor", False),
    ],
)
def test_a_worker_without_our_executor_in_its_configuration_says_so(
    executor: str,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Airflow reads no DAG file there in which a task names an executor that this machine does not know."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setattr(celery_app, "make_app", lambda: None)
    monkeypatch.setattr(worker, "RunRegister", lambda *_: None)
    monkeypatch.setattr(worker, "_machine", lambda node, settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.run_worker("gpu-1", "secret", EacoSettings(home=tmp_path, node_api_url="http://127.0.0.1:9"))
    assert ("[core] executor names no EacoExecutor" in caplog.text) is warned


def test_no_secret_is_left_to_inherit_once_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process that a worker starts is made after the secrets have left the environment."""
    variable = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
    monkeypatch.setenv(variable, "postgresql://user:password@database/airflow")
    monkeypatch.setattr(celery_app, "make_app", lambda: None)

    monkeypatch.setattr(worker, "RunRegister", lambda *_: None)
    seen: list[str | None] = []

    def start(node: str, settings: EacoSettings) -> None:
        seen.append(os.environ.get(variable))
        raise InvalidSettingError(node, "starts nothing more")

    monkeypatch.setattr(worker, "_machine", start)
    settings = EacoSettings(home=tmp_path, node_api_url="http://127.0.0.1:9")
    with pytest.raises(InvalidSettingError, match="starts nothing more"):
        worker.run_worker("gpu-1", "secret", settings)
    assert seen == [None]
