"""A machine whose tasks another executor runs: NVML's test library, a sampler, the API, and the store."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.models.taskinstancekey import TaskInstanceKey
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.engine.progress import Report
from airflow_provider_eaco.provider.node_api.app import create_app
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.provider.observe_wiring import TappedSource, make_observer
from airflow_provider_eaco.provider.observer import AirflowSide
from airflow_provider_eaco.provider.rules import Rule
from airflow_provider_eaco.provider.sampler import Sampler, Site
from airflow_provider_eaco.provider.sampler_api import SamplerApi
from airflow_provider_eaco.provider.sampler_tasks import Finder, TaskTable
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.task_instances import StartedTask, TaskFacts
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_reports import SqlNodeReports
from airflow_provider_eaco.store.read_model import JobStory, ReadModel
from airflow_provider_eaco.telemetry.nvml import NvmlTelemetry
from tests.contract.parts import ManualClock
from tests.databases import database_on
from tests.nvml.machine import GIB, FakeMachine, fake_machine
from tests.nvml.rig import DirectSource, ListedProcesses

NODE = "gpu-1"
SILENT_S = 30.0
SETTINGS = EacoSettings(
    pools=(PoolSettings("eaco"), PoolSettings("default_pool", mode=PoolMode.OBSERVE)),
    node_timeout_s=SILENT_S,
)


def id_of(number: int) -> str:
    """An id of a task instance."""
    return f"01a23240-81cb-7f33-8356-{number:012d}"


@dataclass
class FakeTask:
    """A task's process that lives until the test ends it."""

    job_id: str
    pid: int
    clock: ManualClock
    began_s: float
    alive: bool = True

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid, 1000)

    @property
    def name(self) -> str:
        return f"{self.pid}:1:aaaa-bbbb"

    @property
    def age_s(self) -> float:
        return self.clock.now_s() - self.began_s


@dataclass
class FakeFinder:
    """Processes that the test has named; a process of a dead task is nobody's."""

    tasks: dict[int, FakeTask] = field(default_factory=dict)

    def task_of(self, pid: int) -> FakeTask | None:
        found = self.tasks.get(pid)
        return found if found is not None and found.alive else None

    def keep(self, pids: set[int]) -> None: ...


class _Posts:
    """The API without a network, as a session of requests; ``is_away``: nobody answers."""

    def __init__(self, client: Any) -> None:
        self.headers: dict[str, str] = {}
        self.client = client
        self.is_away = False

    def post(self, url: str, *, json: Any, timeout: Any, allow_redirects: bool) -> Any:
        if self.is_away:
            import requests

            raise requests.ConnectionError("away")
        return self.client.post(url, json=json, headers=self.headers)


class Sampled:
    """One machine with two V100, its sampler, and Airflow's task instances as the test has them."""

    def __init__(
        self, engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch, finder: Finder | None = None
    ) -> None:
        with warnings.catch_warnings():
            # It would like another HTTP client than the one that Airflow brings.
            warnings.simplefilter("ignore")
            from fastapi.testclient import TestClient

        self.engine = engine
        self.clock = ManualClock()
        self.database = database_on(engine, self.clock)
        self.ledger = SqlLedger(self.database)
        self.reads = ReadModel(self.database)
        self.airflow: dict[str, StartedTask] = {}
        self.reported: dict[str, Report] = {}
        self.rules: tuple[Rule, ...] = ()
        self.pools = tuple(
            PoolState(pool, {"default_pool": AirflowPool(128), "eaco": AirflowPool(128)})
            for pool in SETTINGS.pools
        )
        credentials = SqlNodeCredentials(self.database)
        reports = SqlNodeReports(self.database, SILENT_S)
        airflow = AirflowSide(
            self._tasks, lambda task: self.reported.get(task.facts.job_id), lambda: self.rules
        )
        observer = make_observer(SETTINGS, self.database, lambda: self.pools, airflow)
        door = NodeDoor(credentials.accepts, reports.take, reports.claim, 5.0, observer.take)
        client = TestClient(create_app(door), raise_server_exceptions=False)
        self.posts = _Posts(client)
        self.api = SamplerApi("", NODE, "host-1", "")
        self.api._session = self.posts  # type: ignore[assignment]  # what it uses of a session
        self.posts.headers["Authorization"] = f"Bearer {credentials.add(NODE)}"
        self.machine: FakeMachine = fake_machine(folder, monkeypatch)
        self.uuids = [str(values["uuid"]) for values in self.machine.gpus.values()]
        self.finder = FakeFinder()
        self._finder = finder or self.finder
        self.start_sampler()

    def start_sampler(self) -> None:
        """Begin to sample, as a sampler does that was just started."""
        now_s = self.clock.now_s
        self.tasks = TaskTable(NODE, self._finder, ListedProcesses(), clock=now_s, monotonic=now_s)
        source = TappedSource(DirectSource(self.clock), self.tasks)
        self.meter = NvmlTelemetry(NODE, source, self.tasks, clock=now_s, monotonic=now_s)
        source.meter = self.meter
        meter = NodeMeter(self.meter, self.meter, self.meter, live=self.meter)
        self.sampler = Sampler(Site(NODE, "host-1"), meter, self.tasks, self.api, now_s)
        self.meter.read()

    def task(self, number: int, pid: int, **changes: Any) -> FakeTask:
        """Have another executor start a task whose process has this pid."""
        self.airflow[id_of(number)] = started(number, pid=pid, **changes)
        self.finder.tasks[pid] = FakeTask(id_of(number), pid, self.clock, self.clock.now_s())
        return self.finder.tasks[pid]

    def state(self, number: int, state: str | None) -> None:
        """Have Airflow say so of the task."""
        task = self.airflow[id_of(number)]
        self.airflow[id_of(number)] = replace(task, facts=replace(task.facts, state=state))

    def use(self, *uses: tuple[int, int]) -> None:
        """Have these processes compute, each on a GPU: index and pid."""
        self.machine.processes = [(index, "c", pid, GIB, 50) for index, pid in uses]
        for index, values in self.machine.gpus.items():
            busy = any(on == index for on, _ in uses)
            values.update(gpu_pct=50 if busy else 0, memory_pct=20 if busy else 0, used=GIB if busy else 3)
        self.machine.write()

    def pass_s(self, seconds: int, watts: float = 100.0) -> None:
        """Let time pass while each GPU draws so much; the sampler looks once a second."""
        for _ in range(seconds):
            self.clock.advance(1)
            for values in self.machine.gpus.values():
                values["power_mw"] = round(watts * 1000)
                values["energy_mj"] += round(watts * 1000)
            self.machine.write()
            self.meter.read()
            self.sampler.step()

    def story(self, number: int) -> JobStory | None:
        """Return all that is stored about the task's job."""
        return self.reads.story(id_of(number))

    def events(self, number: int) -> dict[str, str]:
        """Return what its story says, by event."""
        story = self.story(number)
        return {} if story is None else {event.event: event.text for event in story.events}

    def rows(self, table: str) -> list[Any]:
        """Return all rows of a table."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(schema.metadata.tables[table])))

    def _tasks(self, job_ids: Collection[str]) -> Mapping[str, StartedTask]:
        return {job_id: self.airflow[job_id] for job_id in job_ids if job_id in self.airflow}


def started(
    number: int, pid: int, state: str = "running", pool: str = "default_pool", **changes: Any
) -> StartedTask:
    """A task instance that Airflow's own executor runs."""
    key = TaskInstanceKey("dag", f"task{number}", "run", 1, -1)
    facts = TaskFacts(id_of(number), key, state, pool, 1, 1, 0.0, 1)
    values = {
        "config": None,
        "queued_s": 0.0,
        "executor": None,
        "queue": "default",
        "operator": "",
        **changes,
    }
    return StartedTask(facts, pid=pid, **values)
