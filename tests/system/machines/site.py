"""A site of several machines on one: how its parts are started, hurt, and brought back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Airflow, AirflowSettings
from tests.servers import Postgres, Redis
from tests.system.rig import Rig

NODES = ("gpu-1", "gpu-2")
NODE_TIMEOUT_S = 10
# Two schedulers that start at once would race for the same migrations.
SCHEDULERS = ("scheduler", "scheduler-2")
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
            options={
                "core.parallelism": "8",
                "celery.broker_url": redis.url,
                "scheduler.job_heartbeat_sec": "2",
                "scheduler.scheduler_health_check_threshold": "10",
                "scheduler.orphaned_tasks_check_interval": "3",
                "scheduler.task_instance_heartbeat_timeout": "40",
                "scheduler.max_tis_per_query": "64",
                "eaco.dispatch": "celery",
                "eaco.node_timeout": str(NODE_TIMEOUT_S),
                "eaco.planner_ttl": "5",
                "eaco.kill_grace": "3",
                "eaco.pools": json.dumps({"eaco": {"mode": "share", "max_residents": 2}}),
            },
        )
        told = folder / "told"
        told.mkdir()
        with Airflow(settings) as airflow:
            rig = Rig(airflow, told)
            site = cls(airflow, redis, postgres, rig, folder)
            for name in SCHEDULERS[1:]:
                airflow.start_scheduler(name)
            for node in NODES:
                site.add_node(node)
                site.start_worker(node)
            site.wait_nodes()
            yield site
            rig.close()

    def add_node(self, node: str) -> str:
        """Make a credential for the node, put it into a file as a person would, and return it."""
        [made] = self.airflow.cli_json("eaco", "nodes", "add", node)
        self.credentials[node] = self.folder / f"{node}.credential"
        self.credentials[node].touch(mode=0o600)
        self.credentials[node].write_text(made["credential"])
        return str(made["credential"])

    def start_worker(self, node: str) -> None:
        """Start the node's worker, on a machine that knows neither Airflow's database nor its secrets."""
        home = self.folder / node
        home.mkdir(exist_ok=True)
        self.airflow.start_component(
            node,
            "eaco",
            "worker",
            "--node",
            node,
            "--credential-file",
            str(self.credentials[node]),
            environment={
                "AIRFLOW_HOME": str(home),
                "AIRFLOW__EACO__DISPATCH": "local",
                "AIRFLOW__EACO__SIMULATED_NODES": json.dumps([{"name": node, "gpus": 2}]),
                "AIRFLOW__EACO__SIMULATED_TRUTH": json.dumps(TRUTH),
                "AIRFLOW__EACO__SIMULATED_TIME_SCALE": "1200",
            },
            without=SECRETS,
        )

    def wait_nodes(self, *nodes: str) -> None:
        """Return when these nodes, by default all, have reported and take work."""
        wanted = set(nodes or NODES)
        query = "SELECT name FROM eaco_node WHERE available"
        self.rig.wait_for(
            lambda: wanted <= {row["name"] for row in self.airflow.query(query)}, f"nodes {sorted(wanted)}"
        )

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs that were sent to nodes."""
        return self.airflow.query("SELECT * FROM eaco_node_run ORDER BY token")
