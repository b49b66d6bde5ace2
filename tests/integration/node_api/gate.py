"""The API for nodes as a node meets it, and the ledger behind it as a scheduler sees it."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.placement import Lease, LeaseState, Placement
from airflow_provider_eaco.provider.node_api.app import create_app
from airflow_provider_eaco.provider.node_api.door import NodeDoor
from airflow_provider_eaco.store import schema
from airflow_provider_eaco.store.ledger import SqlLedger
from airflow_provider_eaco.store.node_credentials import SqlNodeCredentials
from airflow_provider_eaco.store.node_reports import SqlNodeReports
from airflow_provider_eaco.store.node_runs import SqlNodeRuns
from airflow_provider_eaco.store.observed import SqlObservedTasks
from tests.builders import make_job
from tests.databases import database_on

SILENT_S = 60.0


def gpu_of(node: str, index: int = 0) -> str:
    """The UUID of one of its GPUs."""
    return f"GPU-{node}-{index}"


class Gate:
    """Nodes ``one`` and ``two`` with two GPUs each; a lease of job ``job`` on the first GPU of ``one``."""

    def __init__(self, engine: Engine) -> None:
        with warnings.catch_warnings():
            # It would like another HTTP client than the one that Airflow brings.
            warnings.simplefilter("ignore")
            from fastapi.testclient import TestClient

        self.engine = engine
        self.database = database_on(engine)
        self.ledger = SqlLedger(self.database)
        self.runs = SqlNodeRuns(self.database)
        self.credentials = SqlNodeCredentials(self.database)
        self.secrets = {node: self.credentials.add(node) for node in ("one", "two")}
        self.reports = SqlNodeReports(self.database, SILENT_S)
        observed = SqlObservedTasks(self.database, SILENT_S)
        door = NodeDoor(
            self.credentials.accepts,
            self.reports.take,
            self.reports.claim,
            1.0,
            lambda report: frozenset(observed.observe(report, {}).left_out),
        )
        self._client = TestClient(create_app(door), raise_server_exceptions=False)

    def __enter__(self) -> Self:
        for node in ("one", "two"):
            assert self.report(node).status_code == 200
        self.lease = self.grant("job", "one")
        self.runs.order(self.lease.token, "job", "one")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def grant(self, job_id: str, node: str, index: int = 0) -> Lease:
        """Give the job a GPU of the node."""
        job = make_job(job_id, gpus=1)
        self.ledger.add_waiting(job, "me")
        launch = Launch(job, Placement(node, (gpu_of(node, index),)), LeaseState.EXCLUSIVE)
        return self.ledger.grant(launch, LeaseState.EXCLUSIVE, self.ledger.view().gpu_versions, "me")

    def post(self, path: str, *, credential: str | None = None, **options: Any) -> Any:
        """Send a request; without a credential it carries none."""
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        headers |= options.pop("headers", {})
        return self._client.post(path, headers=headers, **options)

    def report(self, node: str, *, credential: str | None = None, **changes: Any) -> Any:
        """Send a report of the node, under its own credential unless another is named."""
        own = credential if credential is not None else self.secrets[node]
        return self.post(f"/{node}/report", credential=own, json=report_of(node, **changes))

    def start(self, node: str, token: int, job_id: str = "job", **changes: Any) -> Any:
        """Ask whether the node may begin a run."""
        body = {"v": 2, "machine": f"host-{node}", "token": token, "job_id": job_id, **changes}
        return self.post(f"/{node}/starts", credential=self.secrets[node], json=body)

    def node(self, name: str) -> Node:
        """The node as the ledger has it."""
        return next(node for node in self.ledger.view().nodes if node.name == name)

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, but for when a node was heard last."""
        with self.engine.connect() as connection:
            return {
                table.name: sorted(
                    (tuple(row) for row in connection.execute(sa.select(*_lasting(table)))), key=repr
                )
                for table in schema.metadata.sorted_tables
            }


def _lasting(table: sa.Table) -> list[sa.Column[Any]]:
    return [column for column in table.columns if column.name not in {"reported_at", "last_report_at"}]


def report_of(node: str, /, **changes: Any) -> dict[str, Any]:
    """A report of a node that is well."""
    gpus = [
        {
            "uuid": gpu_of(node, index),
            "index": index,
            "model": "V100",
            "memory_total_mib": 32768,
            "health": "healthy",
        }
        for index in range(2)
    ]
    return {"v": 2, "machine": f"host-{node}", "gpus": gpus, **changes}


def make_gpu(node: str, index: int) -> Gpu:
    """A GPU as the ledger has it."""
    return Gpu(gpu_of(node, index), node, index, "V100", 32768)


def counters_of(uuid: str) -> dict[str, Any]:
    """Counters of a machine by which this GPU has used something."""
    used = {"energy_j": 5.0, "runs_j": 5.0, "idle_j": 0.0, "strangers_j": 0.0, "unknown_s": 0.0}
    return {"origin": "meter", "began_s": 0.0, "until_s": 5.0, "devices": [{"uuid": uuid, **used}]}
