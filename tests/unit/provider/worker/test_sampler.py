"""A sampler whose parts fail: it goes on, and tells what it has once they work."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.node_runs import NodeReport
from airflow_provider_eaco.core.observed import ObservedReport
from airflow_provider_eaco.core.ports import Occupant
from airflow_provider_eaco.provider import sampler as module
from airflow_provider_eaco.provider.sampler import Sampler, Site
from airflow_provider_eaco.provider.sampler_tasks import TaskTable
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_api import NodeApiError
from tests.nvml.rig import ListedProcesses
from tests.unit.provider.worker.test_sampler_tasks import Finder, Found


class Machine:
    """A meter that fails as often as the test says."""

    def __init__(self) -> None:
        self.failures = 0

    def inventory(self) -> Sequence[Node]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the meter fails")
        return ()

    def read(self) -> Sequence[GpuReading]:
        return ()

    def occupy(self, occupants: Sequence[Occupant]) -> None: ...


class Api:
    """Keeps what it was told, and refuses as often as the test says."""

    interval_s = 0.0

    def __init__(self) -> None:
        self.refusals = 0
        self.machines: list[NodeReport] = []
        self.tasks: list[ObservedReport] = []
        self.told = threading.Event()

    def report(self, report: NodeReport) -> None:
        if self.refusals:
            self.refusals -= 1
            raise NodeApiError("away", is_refusal=False)
        self.machines.append(report)

    def observe(self, report: ObservedReport) -> frozenset[str]:
        self.tasks.append(report)
        self.told.set()
        return frozenset()


def make(machine: Machine, api: Api) -> tuple[Sampler, TaskTable]:
    table = TaskTable("n1", Finder({10: Found("a")}), ListedProcesses(), settle_s=0.0)
    return Sampler(Site("n1", "host"), NodeMeter(machine), table, api), table


def test_it_goes_on_whatever_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A meter that raises and an API that is away end nothing, and are told of once in a while; when it is
    stopped it tells once more.
    """
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    machine, api = Machine(), Api()
    machine.failures, api.refusals = 2, 2
    sampler, table = make(machine, api)
    table.look({"g0": (10,)})
    thread = threading.Thread(target=sampler.run)
    thread.start()
    assert api.told.wait(60)
    sampler.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert [task.job_id for task in api.tasks[0].tasks] == ["a"]
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "What runs on the GPUs was not looked at or told",
        "Not reported: away",
    ]
    # Nothing may be started on a machine that is only sampled.
    assert {report.node.available for report in api.machines} == {False}
    machine.failures = 1
    sampler.run()
    assert len(api.tasks) >= 1


def test_no_more_tasks_are_told_at_once_than_the_api_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is told when others are forgotten."""
    monkeypatch.setattr(module, "MAX_TASKS", 2)
    machine, api = Machine(), Api()
    sampler, table = make(machine, api)
    table._finder = Finder({pid: Found(f"t{pid}", (pid,)) for pid in range(10, 14)})
    table.look({"g0": (10, 11, 12, 13)})
    sampler.step()
    assert len(api.tasks[-1].tasks) == 2
