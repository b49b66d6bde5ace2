"""A small real Airflow: database, API server, DAG processor and schedulers as processes on loopback.

A start takes about 20 seconds and 650 MB. Everything that was started, and everything that this has started
in turn, is ended by :meth:`Airflow.stop`, killed schedulers' orphans included.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from harness.api import AirflowApi
from harness.errors import HarnessError
from harness.processes import Component, ProcessSweep
from harness.settings import OPTIONS, AirflowSettings, variable

# Where a start takes 20 s on a free machine, one that is busy with other tests gets this long.
READY_TIMEOUT_S = 180.0
DEFAULT_DEADLINE_S = 120.0
_STOP_TIMEOUT_S = 10.0
_SWEEP_TIMEOUT_S = 10.0
# Every question costs the API server some of the cores: what takes long is asked for less often.
_FIRST_POLL_S = 0.05
_LAST_POLL_S = 0.4
API_SERVER = "api-server"
DAG_PROCESSOR = "dag-processor"
SCHEDULER = "scheduler"
_PASSWORDS = "passwords.json"
_SQLITE_FILE = "airflow.db"
FINAL_RUN_STATES = frozenset({"success", "failed"})

_Result = TypeVar("_Result")


class Airflow:
    """One Airflow of our own. Use it as a context manager, or call :meth:`start` and :meth:`stop`."""

    def __init__(self, settings: AirflowSettings) -> None:
        self.settings = settings
        self.home = settings.home.resolve()
        self.database_url = settings.database_url or f"sqlite:///{self.home / _SQLITE_FILE}"
        self._port = _free_port()
        self._environment = self._make_environment()
        self._components: dict[str, Component] = {}
        self._ended_on_purpose: set[str] = set()
        self._sweep = ProcessSweep(self.home)
        # The first question after a restart of the database must not fail.
        self._engine = sa.create_engine(self.database_url, pool_pre_ping=True)
        self.api = AirflowApi(f"http://127.0.0.1:{self._port}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Life

    def migrate(self) -> None:
        """Bring the database up to date, as :meth:`start` does."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.run_cli("db", "migrate", timeout_s=READY_TIMEOUT_S)

    def start(self, *, only_api: bool = False) -> None:
        """Bring the database up to date, start all components and return when a task can run at once.

        :param only_api: start nothing but the API server: nobody schedules.
        :raises HarnessError: if one of them is not there in time; then nothing is left running.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / _PASSWORDS).write_text(json.dumps({name: name for name in self.settings.users}))
        try:
            self._make_database()
            self.start_component(API_SERVER, "api-server", "--host", "127.0.0.1", "--port", str(self._port))
            if not only_api:
                self.start_component(DAG_PROCESSOR, "dag-processor")
                self.start_scheduler()
            self._await_api()
            if not only_api:
                self._await_scheduling()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every component and every process that descends from one; may be called at any time, twice too.

        :raises HarnessError: if a process of ours cannot be ended.
        """
        self._sweep.look()
        self.api.close()
        for component in self._components.values():
            component.signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for name, component in self._components.items():
            # The API server waits long for its last clients and has nothing to lose.
            if name != API_SERVER:
                component.wait(max(deadline - time.monotonic(), 0.0))
        left = self._sweep.end(_SWEEP_TIMEOUT_S)
        for component in self._components.values():
            component.wait(_SWEEP_TIMEOUT_S)
        self._engine.dispose()
        if left:
            raise HarnessError(f"these processes could not be ended: {[process.pid for process in left]}")

    def start_component(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Start ``airflow ARGUMENTS`` as the component ``name``, with further variables of its own.

        An ``AIRFLOW_HOME`` among them is a machine of its own, as far as that goes on one.

        :param without: Airflow options, as ``section.name``, that it is not told.
        """
        left_out = {variable(option) for option in without}
        told = {key: value for key, value in self._environment.items() if key not in left_out}
        variables = {**told, **(environment or {})}
        self._sweep.add_home(Path(variables["AIRFLOW_HOME"]))
        self._ended_on_purpose.discard(name)
        self._components[name] = Component(name, _command(*arguments), variables, self.home)
        self._sweep.add(self._components[name])

    def component(self, name: str) -> Component:
        """Return a component that was started under this name."""
        return self._components[name]

    def start_scheduler(self, name: str = SCHEDULER, environment: Mapping[str, str] | None = None) -> None:
        """Start a scheduler: under another name beside the first, or anew after :meth:`kill_scheduler`."""
        # Task logs lie on this disk: the API server needs nobody to serve them.
        self.start_component(name, "scheduler", "--skip-serve-logs", environment=environment)

    def kill_scheduler(
        self,
        name: str = SCHEDULER,
        number: signal.Signals = signal.SIGKILL,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        """Signal a scheduler's own process, see :meth:`kill_component`."""
        self.kill_component(name, number, deadline_s)

    def kill_component(
        self, name: str, number: signal.Signals = signal.SIGKILL, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> None:
        """Signal a component's own process and return when it has ended; its children are left as they are.

        :raises HarnessError: if it does not end within ``deadline_s`` seconds.
        """
        self._sweep.look()
        component = self._components[name]
        self._ended_on_purpose.add(name)
        component.signal(number)
        if not component.wait(deadline_s):
            raise HarnessError(f"{name} did not end on {number.name}\n{self.last_lines()}")

    def ended(self) -> list[str]:
        """Return the names of the components that have ended, whoever ended them."""
        return sorted(name for name, component in self._components.items() if component.exit_code is not None)

    def processes(self) -> list[int]:
        """Return the pids of all living processes of this Airflow: components, jobs, orphans."""
        return [process.pid for process in self._sweep.look()]

    # Asking and telling

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Queue a run of a DAG as soon as its file has been read, and return the run's id."""
        run_id = run_id or f"run-{uuid.uuid4()}"
        self.wait_for(lambda: self.api.answers(f"/api/v2/dags/{dag_id}"), f"DAG {dag_id}")
        self.api.trigger(dag_id, run_id, conf or {})
        return run_id

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return one task instance as Airflow's database has it.

        Who waits asks this often, and an answer of the API server takes much more of the cores.

        :raises HarnessError: if there is none.
        """
        found = self.query(
            "SELECT * FROM task_instance "
            "WHERE dag_id = :dag AND run_id = :run AND task_id = :task AND map_index = :index",
            dag=dag_id,
            run=run_id,
            task=task_id,
            index=map_index,
        )
        if not found:
            raise HarnessError(f"no task instance {dag_id}/{run_id}/{task_id}[{map_index}]")
        return found[0]

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str],
        *,
        map_index: int = -1,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> dict[str, Any]:
        """Return the task instance as soon as its state is one of ``states``."""

        def reached() -> dict[str, Any] | None:
            instance = self.task_instance(dag_id, run_id, task_id, map_index)
            return instance if instance["state"] in states else None

        return self.wait_for(reached, f"{dag_id}/{task_id}[{map_index}] in {sorted(states)}", deadline_s)

    def wait_run(
        self,
        dag_id: str,
        run_id: str,
        states: Collection[str] = FINAL_RUN_STATES,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> str:
        """Return the state of the run as soon as it is one of ``states``."""
        query = "SELECT state FROM dag_run WHERE dag_id = :dag AND run_id = :run"

        def reached() -> str | None:
            found = self.query(query, dag=dag_id, run=run_id)
            return next((str(row["state"]) for row in found if row["state"] in states), None)

        return self.wait_for(reached, f"{dag_id}/{run_id} in {sorted(states)}", deadline_s)

    def wait_for(
        self, condition: Callable[[], _Result | None], what: str, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> _Result:
        """Return what ``condition`` returns as soon as that is true.

        :raises HarnessError: after ``deadline_s`` seconds, or at once when a component has ended by itself.
        """
        deadline = time.monotonic() + deadline_s
        pause_s = _FIRST_POLL_S
        while not (result := condition()):
            if ended := self._ended_by_themselves():
                raise HarnessError(f"waiting for {what}: {', '.join(ended)} ended\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise HarnessError(f"{what}: not within {deadline_s:g} s\n{self.last_lines()}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.3, _LAST_POLL_S)
        return result

    def run_cli(self, *arguments: str, timeout_s: float = DEFAULT_DEADLINE_S) -> str:
        """Run ``airflow ARGUMENTS`` and return its output.

        :raises HarnessError: if it exits with another code than 0, with what it printed.
        """
        done = subprocess.run(
            _command(*arguments),
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(
                f"airflow {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def cli_json(self, *arguments: str) -> Any:
        """Run ``airflow ARGUMENTS --output json`` and return what it printed, parsed."""
        printed = self.run_cli(*arguments, "--output", "json")
        try:
            return json.loads(printed)
        except ValueError as error:
            raise HarnessError(f"airflow {' '.join(arguments)} printed no JSON:\n{printed}") from error

    def query(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """Return the rows of a SELECT on Airflow's database."""
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(sql), parameters).mappings()]

    def execute(self, sql: str, **parameters: object) -> int:
        """Run one other statement on Airflow's database, commit it, and return how many rows it changed."""
        with self._engine.begin() as connection:
            return connection.execute(sa.text(sql), parameters).rowcount

    def last_lines(self, count: int = 30) -> str:
        """Return the end of each component's output."""
        parts = [f"--- {name}\n{each.last_lines(count)}" for name, each in self._components.items()]
        return "\n".join(parts)

    # Making

    def _make_database(self) -> None:
        if self.settings.migrated is None or self.settings.database_url is not None:
            self.migrate()
        elif not (file := self.home / _SQLITE_FILE).exists():
            shutil.copy(self.settings.migrated, file)

    def _await_api(self) -> None:
        self.wait_for(lambda: self.api.answers("/api/v2/monitor/health"), "the API server", READY_TIMEOUT_S)
        self.api.log_in(*[*self.settings.users][-1:] * 2)

    def _await_scheduling(self) -> None:
        # The first request to the execution API costs seconds; no task shall wait for it.
        self.wait_for(lambda: self.api.answers("/execution/health"), "the execution API", READY_TIMEOUT_S)
        self.wait_for(self._is_scheduling, "the scheduler's heartbeat", READY_TIMEOUT_S)

    def _ended_by_themselves(self) -> list[str]:
        ended = {name for name, component in self._components.items() if component.exit_code is not None}
        return sorted(ended - self._ended_on_purpose)

    def _is_scheduling(self) -> bool:
        health = self.api.call("GET", "/monitor/health")
        return bool(health["scheduler"]["status"] == "healthy")

    def _make_environment(self) -> dict[str, str]:
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        options = {**OPTIONS, **self.own_options(), **self.settings.options}
        variables = {variable(name): value for name, value in options.items()}
        return {
            **surroundings,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            # What is trained here has small matrices: threads would wait for each other 30 times as long.
            "OPENBLAS_NUM_THREADS": "1",
            "AIRFLOW_HOME": str(self.home),
            **variables,
            **self.settings.environment,
        }

    def own_options(self) -> dict[str, str]:
        """Return the options that this Airflow has of itself, its secrets among them."""
        address = f"http://127.0.0.1:{self._port}"
        return {
            "core.dags_folder": str(self.settings.dags_folder.resolve()),
            "core.executor": self.settings.executor,
            "core.execution_api_server_url": f"{address}/execution/",
            "database.sql_alchemy_conn": self.database_url,
            "api.base_url": address,
            "api.host": "127.0.0.1",
            "api.port": str(self._port),
            "api.secret_key": secrets.token_hex(32),
            "api_auth.jwt_secret": secrets.token_hex(64),
            "logging.base_log_folder": str(self.home / "logs"),
            "core.simple_auth_manager_all_admins": str(not self.settings.users),
            "core.simple_auth_manager_users": ",".join(map(":".join, self.settings.users.items())),
            "core.simple_auth_manager_passwords_file": str(self.home / _PASSWORDS),
        }


def _command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def _free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
