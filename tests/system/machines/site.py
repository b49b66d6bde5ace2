"""A site of several machines on one: how its parts are started, hurt, and brought back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Airflow, AirflowSettings
from harness.airflow import API_SERVER, DAG_PROCESSOR, SCHEDULER
from tests.servers import Postgres, Redis
from tests.system.rig import DEADLINE_S, Rig, Run

NODES = ("gpu-1", "gpu-2")
GPUS_PER_NODE = 2
MAX_RESIDENTS = 2
NODE_TIMEOUT_S = 8
SECOND = "scheduler-2"
FAMILY = "small"
TRUTH = [
    {
        "families": [FAMILY],
        "gpu_model": "V100",
        "gpu_count": 1,
        "unit_s": 600,
        "power_w": 150,
        "utilisation_pct": 30,
        "memory_mib": 4000,
    },
    {
        "families": [FAMILY, FAMILY],
        "gpu_model": "V100",
        "gpu_count": 1,
        "slowdowns": [1.05, 1.05],
        "power_w": 200,
        "utilisation_pct": 60,
        "memory_mib": 8000,
    },
]
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
    "eaco.dispatch": "celery",
    "eaco.node_timeout": str(NODE_TIMEOUT_S),
    "eaco.planner_ttl": "5",
    "eaco.kill_grace": "3",
    "eaco.pools": json.dumps({"eaco": {"mode": "share", "max_residents": MAX_RESIDENTS}}),
}


@dataclass
class Site:
    """The parts and what is known of them."""

    airflow: Airflow
    redis: Redis
    postgres: Postgres
    rig: Rig
    folder: Path
    credentials: dict[str, Path] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def make(cls, folder: Path, dags: Path, redis: Redis, postgres: Postgres) -> Iterator[Site]:
        """Give a site with every part up; everything has ended afterwards."""
        settings = AirflowSettings(
            folder / "airflow",
            dags,
            executor="airflow_provider_eaco.EacoExecutor",
            database_url=postgres.url,
            options={**OPTIONS, "celery.broker_url": redis.url},
        )
        told = folder / "told"
        told.mkdir()
        with Airflow(settings) as airflow:
            site = cls(airflow, redis, postgres, Rig(airflow, told), folder)
            airflow.start_scheduler(SECOND)
            for node in NODES:
                site.add_node(node)
                site.start_worker(node)
            site.wait_nodes()
            yield site
            site.rig.close()

    def add_node(self, node: str) -> None:
        """Make a credential for the node and put it into a file, as a person would."""
        [made] = self.airflow.cli_json("eaco", "nodes", "add", node)
        self.credentials[node] = self.folder / f"{node}.credential"
        self.credentials[node].touch(mode=0o600)
        self.credentials[node].write_text(made["credential"])

    def start_worker(self, node: str) -> None:
        """Start the node's worker, on a machine that knows neither Airflow's database nor its secrets."""
        home = self.folder / node
        home.mkdir(exist_ok=True)
        gpus = [{"name": node, "gpus": GPUS_PER_NODE}]
        self.airflow.start_component(
            node,
            *("eaco", "worker", "--node", node, "--credential-file", str(self.credentials[node])),
            environment={
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__EACO__DISPATCH": "local",
                "AIRFLOW__EACO__SIMULATED_NODES": json.dumps(gpus),
                "AIRFLOW__EACO__SIMULATED_TRUTH": json.dumps(TRUTH),
                "AIRFLOW__EACO__SIMULATED_TIME_SCALE": "1200",
            },
            without=SECRETS,
        )

    def restart(self, name: str) -> None:
        """Kill a scheduler or worker and start it anew, as a service manager does."""
        self.airflow.kill_component(name)
        self._start(name)

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
            self._start(name)
        return ended

    def wait(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Return as soon as the condition holds; what ends meanwhile is started anew."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {deadline_s:g} s"
            self.revive()
            time.sleep(0.2)

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

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs that were sent to nodes."""
        return self.airflow.query("SELECT * FROM eaco_node_run ORDER BY token")

    def _start(self, name: str) -> None:
        if name in NODES:
            self.start_worker(name)
        elif name in {SCHEDULER, SECOND}:
            self.airflow.start_scheduler(name)
        elif name == DAG_PROCESSOR:
            self.airflow.start_component(name, "dag-processor")
        else:
            raise AssertionError(f"{name} has ended\n{self.airflow.last_lines()}; {API_SERVER} has to stay")
