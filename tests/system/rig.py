"""A real Airflow with the provider, asked as a test asks: who holds what, who waits why, who has started."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_eaco.dispatch.process_group import read_processes
from airflow_provider_eaco.provider.cli.facts import explain_story
from airflow_provider_eaco.provider.explain import Explanation
from airflow_provider_eaco.store.read_model import JobStory, ReadModel
from airflow_provider_eaco.store.session import Database, DatabaseClock
from harness import Airflow, HarnessError
from harness.airflow import SCHEDULER

# Generous, since other tests may keep the machine busy; nothing is ever this slow on a free one.
DEADLINE_S = 200.0
# A scheduler without work that looks five times a second takes a fifth of a core from the tests beside it.
QUIET_LOOP = {"scheduler.scheduler_idle_sleep_time": "0.5"}
USER_PACKAGE = Path(__file__).parent / "user_package"

_Result = TypeVar("_Result")
_TRACEBACK = "Traceback (most recent call last)"
# Every record of a component's log begins with its instant.
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\dT)", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of a DAG, with the folder that its tasks were told."""

    rig: Rig
    dag_id: str
    run_id: str
    folder: Path

    def end(self, task_id: str | None = None, map_index: int | None = None) -> None:
        """Let its told tasks end, or this one alone, of a mapped one this index alone."""
        named = (str(name) for name in ("end", task_id, map_index) if name is not None)
        (self.folder / "-".join(named)).touch()

    @property
    def started(self) -> list[dict[str, Any]]:
        """What its tasks have noted when their code started, one entry a start."""
        lines = self.folder / "started.jsonl"
        return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []

    def wait_started(self, count: int = 1) -> list[dict[str, Any]]:
        """Return what was noted as soon as there were ``count`` starts."""
        return self.rig.wait_for(
            lambda: found if len(found := self.started) >= count else None,
            lambda: f"{count} starts of {self.dag_id}; {self._states()}",
        )

    def wait_done(self, state: str = "success") -> None:
        """Return when the run has ended, which has to be in this state."""
        found = self.rig.airflow.wait_run(self.dag_id, self.run_id, deadline_s=DEADLINE_S)
        assert found == state, f"{self.dag_id} ended as {found}: {self._states()}"

    def instance(self, task_id: str = "work", map_index: int = -1) -> dict[str, Any]:
        """Return the task instance as Airflow's database has it."""
        return self.rig.airflow.task_instance(self.dag_id, self.run_id, task_id, map_index)

    def wait_state(self, *states: str, task_id: str = "work") -> dict[str, Any]:
        """Return the task instance as soon as it is in one of the states."""
        return self.rig.airflow.wait_task(self.dag_id, self.run_id, task_id, states, deadline_s=DEADLINE_S)

    def job_id(self, task_id: str = "work", map_index: int = -1) -> str:
        """Return the id of its job now; a clear changes it."""
        return str(UUID(str(self.instance(task_id, map_index)["id"])))

    def explanation(self, task_id: str = "work", map_index: int = -1) -> Explanation | None:
        """Return what every surface says about its job, ``None`` before it is stored."""
        return self.rig.explanation(self.job_id(task_id, map_index))

    def wait_reason(self, code: str, task_id: str = "work", map_index: int = -1) -> Explanation:
        """Return the explanation as soon as the job waits for this reason."""

        def waits() -> Explanation | None:
            told = self.explanation(task_id, map_index)
            return told if told and told.reason and told.reason.code == code else None

        return self.rig.wait_for(
            waits, lambda: f"reason {code} of {self.dag_id}; now {self.explanation(task_id, map_index)}"
        )

    def lease(self, task_id: str = "work") -> dict[str, Any] | None:
        """Return the lease that its job holds now."""
        job_id = self.job_id(task_id)
        return next((lease for lease in self.rig.leases() if lease["job_id"] == job_id), None)

    def audit(self, task_id: str = "work") -> list[tuple[str, str]]:
        """Return our lines about the task in Airflow's audit log, oldest first."""
        rows = self.rig.airflow.query(
            "SELECT event, extra FROM log WHERE dag_id = :dag AND run_id = :run AND task_id = :task "
            "AND event LIKE 'eaco %' ORDER BY id",
            dag=self.dag_id,
            run=self.run_id,
            task=task_id,
        )
        return [(row["event"], row["extra"]) for row in rows]

    def why(self, task_id: str = "work") -> dict[str, Any]:
        """Return what ``airflow eaco why`` prints about it."""
        [told] = self.rig.airflow.cli_json("eaco", "why", self.dag_id, self.run_id, task_id)
        return told

    def log(self, try_number: int = 1, task_id: str = "work") -> str:
        """Return the log of a try."""
        return self.rig.airflow.api.logs(self.dag_id, self.run_id, task_id, try_number)

    def _states(self) -> dict[str, str]:
        instances = self.rig.airflow.api.task_instances(self.dag_id, self.run_id)
        return {f"{each['task_id']}[{each['map_index']}]": each["state"] for each in instances}


@dataclass
class Rig:
    """An Airflow with EacoExecutor. ``runs`` are those of the present test."""

    airflow: Airflow
    folder: Path
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._engine = sa.create_engine(self.airflow.database_url, pool_pre_ping=True)
        sessions = sessionmaker(self._engine, class_=Session)
        self.database = Database(sessions)
        self._reads = ReadModel(self.database)
        self._clock = DatabaseClock(sessions)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def run(self, dag_id: str, **conf: Any) -> Run:
        """Trigger the DAG with a fresh folder."""
        folder = self.folder / f"{len(list(self.folder.iterdir()))}-{dag_id}"
        folder.mkdir()
        run_id = self.airflow.trigger(dag_id, {"folder": str(folder), **conf})
        run = Run(self, dag_id, run_id, folder)
        self.runs.append(run)
        return run

    def end_runs(self) -> None:
        """Let everything end that the present test has started, and wait until it has."""
        for run in self.runs:
            run.end()
        self.runs.clear()
        self.wait_for(lambda: not self.leases(), lambda: f"no lease is held; {self.leases()}")

    def wait_for(self, condition: Callable[[], _Result | None], what: str | Callable[[], str]) -> _Result:
        """Return what the condition returns as soon as that is true; ``what`` may look at the end."""
        try:
            return self.airflow.wait_for(condition, "what the test waits for", DEADLINE_S)
        except HarnessError as error:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"{said}: {str(error).splitlines()[0]}") from None

    def explanation(self, job_id: str) -> Explanation | None:
        """Return what every surface says about a job."""
        story = self._reads.story(job_id)
        return None if story is None else explain_story(story, self._clock.now_s())

    def story(self, job_id: str) -> JobStory:
        """Return all that is stored about a job, which has to be known."""
        story = self._reads.story(job_id)
        assert story is not None, f"job {job_id} is not stored"
        return story

    def wait_idle(self) -> None:
        """Return when no job waits, no job runs and no lease is held."""
        phases = "('waiting', 'leased', 'running')"
        unfinished = f"SELECT job_id, dag_id, phase FROM eaco_job WHERE phase IN {phases}"
        self.wait_for(
            lambda: not self.airflow.query(unfinished) and not self.leases(),
            lambda: f"no job waits or runs; {self.airflow.query(unfinished)}, leases {self.leases()}",
        )

    def leases(self) -> list[dict[str, Any]]:
        """Return the leases that are held now."""
        return self.airflow.query("SELECT * FROM eaco_lease WHERE released_at IS NULL ORDER BY token")

    def lease_history(self) -> list[dict[str, Any]]:
        """Return every lease there ever was."""
        return self.airflow.query("SELECT * FROM eaco_lease ORDER BY token")

    def scheduler_log(self) -> str:
        """Return what the schedulers have said."""
        return self.airflow.component(SCHEDULER).log_file.read_text(errors="replace")

    def wait_cycles(self, count: int = 2) -> None:
        """Return when a scheduler has told Airflow that it lives this often and once more.

        From one time to the next it has asked its executor at least once, and so has the engine decided.
        """
        query = "SELECT max(latest_heartbeat) AS at FROM job WHERE job_type = 'SchedulerJob'"
        seen: set[object] = set()

        def enough() -> bool:
            seen.add(self.airflow.query(query)[0]["at"])
            return len(seen) > count + 1

        self.wait_for(enough, f"{count} rounds of a scheduler")

    def wait_reports(self, count: int = 2) -> None:
        """Return when the nodes have been reported, and the pools been sized, this often."""
        query = "SELECT max(last_report_at) AS at FROM eaco_node"
        seen: set[object] = set()

        def enough() -> bool:
            seen.add(self.airflow.query(query)[0]["at"])
            return len(seen) > count

        self.wait_for(enough, f"{count} reports of the nodes")


def is_alive(pid: int) -> bool:
    """Tell whether the process lives; one that nobody has collected does not."""
    process = read_processes().get(pid)
    return process is not None and process.alive


def forkserver_pid(airflow: Airflow) -> int:
    """Return the process that tasks of this Airflow's scheduler are forked from."""
    scheduler = airflow.component(SCHEDULER).pid
    for process in read_processes().values():
        if process.parent == scheduler:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if b"dispatch.forkserver" in command:
                return process.pid
    raise AssertionError("the scheduler has no forkserver")


def task_processes(airflow: Airflow) -> dict[int, str]:
    """Return the living processes that belong to tasks, with their job ids."""
    found = {}
    for pid in airflow.processes():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"EACO_JOB_ID="):
                found[pid] = os.fsdecode(variable.partition(b"=")[2])
    return found


def tracebacks(text: str) -> list[str]:
    """Return the records of a log that carry a traceback through the provider's code."""
    records = _RECORD.split(text)
    return [each for each in records if _TRACEBACK in each and "airflow_provider_eaco" in each]


def user_path() -> str:
    """Return the module path of an Airflow that has the user's package of these tests beside ours."""
    return os.pathsep.join(filter(None, [str(USER_PACKAGE), os.environ.get("PYTHONPATH")]))


@contextmanager
def quiet_afterwards(rig: Rig, expected: tuple[str, ...] = ()) -> Iterator[Rig]:
    """Check when the tests of a module are over: nothing is held or left, everybody is well (I1 to I3, I5).

    :param expected: regular expressions of tracebacks of ours that the tests provoke.
    """
    before = len(rig.scheduler_log())
    yield rig
    check_quiet(rig)
    unexpected = [
        each
        for each in tracebacks(rig.scheduler_log()[before:])
        if not any(re.search(pattern, each) for pattern in expected)
    ]
    assert not unexpected, "tracebacks of ours:\n" + "\n\n".join(unexpected)


def check_quiet(rig: Rig) -> None:
    """Fail unless leases = running tasks = 0, no task's process is left, and the scheduler works."""
    running = "SELECT dag_id, task_id, state FROM task_instance WHERE state IN ('running', 'queued')"
    rig.wait_for(
        lambda: not rig.leases() and not rig.airflow.query(running),
        lambda: f"quiet; leases {rig.leases()}, task instances {rig.airflow.query(running)}",
    )
    rig.wait_for(
        lambda: not task_processes(rig.airflow),
        lambda: f"no process of a task is left; {task_processes(rig.airflow)}",
    )
    rig.wait_idle()
    check_leases(rig.lease_history())
    assert rig.airflow.component(SCHEDULER).exit_code is None
    assert rig.airflow.api.call("GET", "/monitor/health")["scheduler"]["status"] == "healthy"


def check_leases(history: list[Mapping[str, Any]]) -> None:
    """Fail unless no job ever held two leases at once (I2)."""
    for number, one in enumerate(history):
        for other in history[number + 1 :]:
            if one["job_id"] == other["job_id"]:
                assert one["released_at"] is not None
                assert one["released_at"] <= other["granted_at"]
