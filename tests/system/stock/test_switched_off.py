"""The same DAG files without the executor, and the executor on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import Airflow
from tests.system.rig import Rig, tracebacks

pytestmark = [pytest.mark.airflow]


@pytest.fixture
def rig(stock_airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig over the stock Airflow."""
    rig = Rig(stock_airflow, tmp_path_factory.mktemp("told"))
    yield rig
    rig.close()


def test_gpu_tasks_run_as_ordinary_ones_where_the_executor_is_not_configured(rig: Rig) -> None:
    """All DAG files parse, and GPU tasks of every kind run under LocalExecutor in the default pool."""
    assert rig.airflow.api.call("GET", "/importErrors")["total_entries"] == 0
    run = rig.run("requests_kept")
    told = rig.run("told")
    told.wait_started()
    told.end()
    for each in (run, told):
        each.wait_done()
    assert {entry["gpus"] for entry in run.started + told.started} == {None}
    rows = rig.airflow.query("SELECT DISTINCT executor, pool FROM task_instance WHERE dag_id = 'told'")
    assert rows == [{"executor": None, "pool": "default_pool"}]
    assert rig.airflow.query("SELECT * FROM eaco_job WHERE owner <> 'observed'") == []


def every_view_answers(airflow: Airflow) -> None:
    """Fail unless the page answers, and whatever it asks for to fill its views."""
    routes = airflow.api.shown("/eaco/api/v1/openapi.json")["paths"]
    # What asks for a name (a job, a node, a task) is no view.
    views = [
        path
        for path, methods in routes.items()
        if "get" in methods and not any(each["required"] for each in methods["get"].get("parameters", ()))
    ]
    assert len(views) >= 8
    assert [path for path in ("/", *views) if not airflow.api.answers(f"/eaco{path}")] == []


def test_c66_without_gpu_or_driver_cpu_tasks_run_and_gpu_tasks_wait_for_a_worker(rig: Rig) -> None:
    """With the executor but no node CPU tasks run, and a GPU task waits because no worker is registered."""
    rig.airflow.kill_scheduler()
    before = len(rig.scheduler_log())
    rig.airflow.start_scheduler(
        environment={
            "AIRFLOW__CORE__EXECUTOR": "airflow_provider_eaco.EacoExecutor",
            "AIRFLOW__EACO__SIMULATED_NODES": "none",
            "AIRFLOW__EACO__POOLS": '{"eaco": {"mode": "share"}}',
        }
    )
    cpu, waiting = rig.run("cpu"), rig.run("told")
    cpu.wait_done()
    told = waiting.wait_reason("no_worker")
    assert "no GPU worker is registered" in told.reason.sentence
    assert waiting.started == []
    every_view_answers(rig.airflow)
    rig.airflow.api.set_state("told", waiting.run_id, "work", "failed")
    waiting.wait_done("failed")
    assert tracebacks(rig.scheduler_log()[before:]) == []
