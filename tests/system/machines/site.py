"""A site of several machines on one: how its parts are started, hurt, and brought back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_eaco.core.model.profile import SoloProfile
from airflow_provider_eaco.data import built_in_book
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.profiles import SqlProfileStore
from harness import Airflow, AirflowSettings
from harness.airflow import API_SERVER, DAG_PROCESSOR, SCHEDULER
from tests.nvml.machine import MIB, FakeMachine, gpu_values
from tests.servers import Postgres, Redis
from tests.system.rig import DEADLINE_S, Rig, Run

DAGS = Path(__file__).parent / "dags"
NODES = ("gpu-1", "gpu-2")
GPUS_PER_NODE = 2
# Memory is what limits a GPU to two trainings of 4 GiB, beside the pool's margin.
GPU_MEMORY_MIB = 10 * 1024
MARGIN_MIB = 512
MAX_RESIDENTS = 3
NODE_TIMEOUT_S = 8
SECOND = "scheduler-2"
SCHEDULERS = (SCHEDULER, SECOND)
FAMILY = "small"
# Each board draws so much, whoever is on it; its energy counter goes on by itself.
BOARD_W = 60
# Without it each GPU's first training would be alone.
PROFILE = SoloProfile(
    FAMILY, "V100", 1, unit_s=1.0, samples=5, power_w=60.0, utilisation_pct=30.0, memory_peak_mib=4000
)
# How long after a restart of the database a scheduler may end by itself.
ENDS_OF_POSTGRES_S = 60.0
# What no machine with GPUs may hold.
SECRETS = (
    "database.sql_alchemy_conn",
    "api_auth.jwt_secret",
    "api.secret_key",
    "core.simple_auth_manager_passwords_file",
)
OPTIONS = {
    "core.parallelism": "8",
    "scheduler.job_heartbeat_sec": "2",
    "scheduler.scheduler_health_check_threshold": "15",
    "scheduler.orphaned_tasks_check_interval": "3",
    "scheduler.max_tis_per_query": "64",
    # One file that nobody changes, and loops that leave the cores to the trainings.
    "scheduler.scheduler_idle_sleep_time": "1",
    "dag_processor.min_file_process_interval": "3600",
    "eaco.dispatch": "celery",
    "eaco.node_timeout": str(NODE_TIMEOUT_S),
    "eaco.planner_ttl": "5",
    "eaco.kill_grace": "3",
    "eaco.pools": json.dumps(
        {"eaco": {"mode": "share", "max_residents": MAX_RESIDENTS, "memory_margin_mib": MARGIN_MIB}}
    ),
}


@dataclass
class Site:
    """The parts and what is known of them; the nodes' GPUs are V100 of 300 W from NVML's test library."""

    airflow: Airflow
    redis: Redis
    postgres: Postgres
    rig: Rig
    folder: Path
    credentials: dict[str, Path] = field(default_factory=dict)
    boards: dict[str, FakeMachine] = field(default_factory=dict)
    kills: list[str] = field(default_factory=list)
    _kill_every_s: float | None = None
    _killed_s: float = float("-inf")
    _postgres_s: float = float("-inf")

    @classmethod
    @contextmanager
    def make(cls, folder: Path, redis: Redis, postgres: Postgres) -> Iterator[Site]:
        """Give a site with every part up; everything has ended afterwards."""
        settings = AirflowSettings(
            folder / "airflow",
            DAGS,
            executor="airflow_provider_eaco.EacoExecutor",
            database_url=postgres.url,
            options={**OPTIONS, **cls.more_options(), "celery.broker_url": redis.url},
        )
        told = folder / "told"
        told.mkdir(parents=True)
        with Airflow(settings) as airflow:
            site = cls(airflow, redis, postgres, Rig(airflow, told), folder)
            airflow.start_scheduler(SECOND)
            SqlProfileStore(site.rig.database, built_in_book()).save_solo(PROFILE)
            for node in NODES:
                # As the command does, without a start of Airflow.
                site.keep_credential(node, SqlNodeCredentials(site.rig.database).add(node))
            for node in NODES:
                site.start_worker(node)
            site.wait_nodes()
            yield site
            site.rig.close()

    @staticmethod
    def more_options() -> dict[str, str]:
        """Options of Airflow that another kind of site has besides."""
        return {}

    def gpus_of(self, node: str) -> dict[str, str]:
        """Return the variables by which the node's worker finds its GPUs."""
        if node not in self.boards:
            board = {"total": GPU_MEMORY_MIB * MIB, "reserved": 0, "power_mw": BOARD_W * 1000, "counts": 1}
            gpus = {
                each: gpu_values(each, uuid=f"GPU-{node}-{each}", **board) for each in range(GPUS_PER_NODE)
            }
            self.boards[node] = FakeMachine(self.folder / f"{node}.nvml", gpus)
            self.boards[node].write()
        return {"AIRFLOW__EACO__TELEMETRY": "nvml", **self.boards[node].environment()}

    @property
    def uuids(self) -> dict[str, set[str]]:
        """The UUIDs of each node's GPUs."""
        return {node: {gpu["uuid"] for gpu in machine.gpus.values()} for node, machine in self.boards.items()}

    def keep_credential(self, node: str, credential: str) -> None:
        """Put the node's credential into a file, as a person would."""
        self.credentials[node] = self.folder / f"{node}.credential"
        self.credentials[node].touch(mode=0o600)
        self.credentials[node].write_text(credential)

    def start_worker(self, node: str) -> None:
        """Start the node's worker, on a machine that knows neither Airflow's database nor its secrets."""
        home = self.folder / node
        home.mkdir(exist_ok=True)
        self.airflow.start_component(
            node,
            *("eaco", "worker", "--node", node, "--credential-file", str(self.credentials[node])),
            environment={
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__EACO__DISPATCH": "local",
                **self.gpus_of(node),
            },
            without=SECRETS,
        )

    def restart(self, name: str) -> None:
        """Kill a scheduler or worker and start it anew, as a service manager does."""
        self.airflow.kill_component(name)
        self._start(name)

    def restart_postgres(self) -> None:
        """Cut everybody off from the database, and return when it takes connections again."""
        self.postgres.restart()
        self._postgres_s = time.monotonic()

    @contextmanager
    def schedulers_dying(self, every_s: float) -> Iterator[None]:
        """Kill a scheduler every so many seconds meanwhile, whenever somebody waits here, and start it anew.

        They take turns, and the next one has to wait for the last one to be at work again: without any, it is
        not the ledger that would be tested.
        """
        self._kill_every_s, self._killed_s = every_s, time.monotonic()
        try:
            yield
        finally:
            self._kill_every_s = None

    @contextmanager
    def stopped(self, node: str) -> Iterator[None]:
        """Have the node's worker stand still meanwhile, as a machine that is cut off."""
        self.airflow.component(node).signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.airflow.component(node).signal(signal.SIGCONT)

    def revive(self) -> list[str]:
        """Start what has ended by itself anew, as a service manager does, and return its names."""
        ended = self.airflow.ended()
        for name in ended:
            blamed = time.monotonic() - self._postgres_s < ENDS_OF_POSTGRES_S
            assert blamed, f"{name} has ended by itself\n{self.airflow.component(name).last_lines()}"
            self._start(name)
        return ended

    def wait(
        self,
        condition: Callable[[], object],
        what: str | Callable[[], str],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Return as soon as the condition holds; what ends meanwhile is started anew.

        :param what: what is waited for, or what tells that when it is over.
        """
        deadline = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > deadline:
                said = what if isinstance(what, str) else what()
                raise AssertionError(f"{said}: not within {deadline_s:g} s")
            self.revive()
            self._let_die()
            time.sleep(0.5)

    def wait_end(self, run: Run) -> None:
        """Return when the run has ended, whatever has to be started anew meanwhile."""
        states = "SELECT state FROM dag_run WHERE dag_id = :dag AND run_id = :run"

        def is_over() -> bool:
            [row] = self.airflow.query(states, dag=run.dag_id, run=run.run_id)
            return row["state"] in {"success", "failed"}

        self.wait(is_over, f"the end of {run.dag_id}", 2 * DEADLINE_S)

    def wait_nodes(self) -> None:
        """Return when all nodes have reported and take work."""
        query = "SELECT name FROM eaco_node WHERE available"
        self.wait(lambda: set(NODES) <= {row["name"] for row in self.airflow.query(query)}, "all nodes")

    def node_is_silent(self, node: str) -> bool:
        """Tell whether the node has not been heard for longer than the time-out."""
        query = "SELECT extract(epoch FROM now() - last_report_at) AS s FROM eaco_node WHERE name = :node"
        [row] = self.airflow.query(query, node=node)
        return row["s"] > NODE_TIMEOUT_S

    def _let_die(self) -> None:
        """Kill the scheduler whose turn it is, if it is time and both are at work."""
        if self._kill_every_s is None or time.monotonic() - self._killed_s < self._kill_every_s:
            return
        # No longer than a scheduler lives here: the last one that was killed does not count any more.
        beats = (
            "SELECT id FROM job WHERE job_type = 'SchedulerJob' AND state = 'running' "
            f"AND latest_heartbeat > now() - interval '{self._kill_every_s:g} seconds'"
        )
        if len(self.airflow.query(beats)) < len(SCHEDULERS):
            return
        self.kills.append(SCHEDULERS[len(self.kills) % len(SCHEDULERS)])
        self.restart(self.kills[-1])
        self._killed_s = time.monotonic()

    def _start(self, name: str) -> None:
        if name in NODES:
            self.start_worker(name)
        elif name in SCHEDULERS:
            self.airflow.start_scheduler(name)
        elif name == DAG_PROCESSOR:
            self.airflow.start_component(name, "dag-processor")
        else:
            raise AssertionError(f"{name} has ended\n{self.airflow.last_lines()}; {API_SERVER} has to stay")
