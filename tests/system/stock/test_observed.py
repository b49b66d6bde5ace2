"""A sampler beside the stock executor: what it sees of a task that nobody of ours has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from harness import Airflow
from tests.nvml.machine import GIB, FakeMachine
from tests.system.machines.site import SECRETS
from tests.system.rig import Rig, tracebacks

pytestmark = [pytest.mark.airflow]

NODE = "gpu-1"


@pytest.fixture
def rig(stock_airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig over the stock Airflow."""
    rig = Rig(stock_airflow, tmp_path_factory.mktemp("told"))
    yield rig
    rig.close()


@pytest.fixture
def machine(rig: Rig, tmp_path: Path) -> Iterator[FakeMachine]:
    """A machine with two GPUs and a sampler, which knows neither Airflow's database nor its secrets."""
    machine = FakeMachine(tmp_path / "nvml.txt")
    machine.add_gpus(2)
    machine.write()
    credential = tmp_path / "credential"
    credentials = SqlNodeCredentials(rig.database)
    credential.write_text(credentials.add(NODE))
    rig.airflow.start_component(
        "sampler",
        *("eaco", "sampler", "--node", NODE, "--credential-file", str(credential)),
        environment={
            **machine.environment(),
            "AIRFLOW_HOME": str(tmp_path / "home"),
            "AIRFLOW__EACO__TELEMETRY": "nvml",
        },
        without=SECRETS,
    )
    yield machine
    rig.airflow.kill_component("sampler")
    credentials.revoke(NODE)
    SqlLedger(rig.database).forget_node(NODE)


def test_a_task_of_the_stock_executor_is_metered_and_decided_about(rig: Rig, machine: FakeMachine) -> None:
    """It runs as ever; its story has what would have been decided, and at its end what it has used. A process
    that no task has started is a stranger.
    """
    run = rig.run("told")
    [note] = run.wait_started()
    machine.processes = [(0, "c", note["pid"], GIB, 60), (1, "c", 1, GIB, 60)]
    machine.set(0, used=GIB, gpu_pct=60, memory_pct=20, power_mw=200_000)
    job_id = run.job_id()
    rig.wait_for(lambda: rig.explanation(job_id) is not None, "the task in our tables")
    rig.wait_for(lambda: rig.story(job_id).events, "what would have been decided")
    [decided] = rig.story(job_id).events
    assert decided.text.startswith(
        f"it runs on 1 GPU of {NODE}, granted by nobody; it would have been admitted"
    )
    assert rig.leases() == []
    run.end()
    run.wait_done()
    del machine.processes[0]
    machine.set(0, energy_mj=machine.gpus[0]["energy_mj"] + 900_000)
    rig.wait_for(lambda: len(rig.story(job_id).events) > 1, "the end in the story")
    told = rig.explanation(job_id)
    assert told is not None
    assert told.state == "finished"
    assert told.energy_record is not None
    assert told.energy_record["method"] == "counter"
    strangers = rig.airflow.query("SELECT foreign_processes FROM eaco_gpu_reading ORDER BY uuid")
    assert [row["foreign_processes"] for row in strangers] == [0, 1]
    assert tracebacks(rig.airflow.component("sampler").log_file.read_text()) == []
