"""A real executor on a real Airflow database: a full simulated node, and tasks that wait for it.

Runs in a process of its own, since Airflow reads its configuration when it is imported; started by
:mod:`bench.bench_heartbeat`. Residents are real process groups without a task inside, taken over by the
executor as after a scheduler's death; the waiting tasks are queued task instances, handed over as the
scheduler does.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.executors.workloads import ExecuteTask
from airflow.models.dagbag import DBDagBag
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import event, select
from sqlalchemy.engine import Engine

from airflow_provider_eaco.core.model.instruction import Launch
from airflow_provider_eaco.core.model.job import Job, OrderKey
from airflow_provider_eaco.core.model.placement import LeaseState, Placement
from airflow_provider_eaco.core.ports import LaunchOrder
from airflow_provider_eaco.dispatch.local import DEFAULT_READY_TIMEOUT_S, LocalDispatcher
from airflow_provider_eaco.provider.executor import EacoExecutor
from airflow_provider_eaco.provider.request import parse_executor_config
from airflow_provider_eaco.provider.wiring import Store, open_store

DAG_ID, RUN_ID, RESIDENT = "bench_heartbeat", "bench", "resident"
# Between two loops of a scheduler with nothing to do; [scheduler] scheduler_idle_sleep_time is 1 s.
IDLE_SLEEP_S = 1.0


def sync_dags(folder: Path) -> None:
    """Bring the DAG file's tasks into the database, as the DAG processor does."""
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]  # Airflow's
    bag = BundleDagBag(folder / f"{DAG_ID}.py", bundle_path=folder, bundle_name="dags-folder")
    if bag.import_errors:
        raise RuntimeError(f"the benchmark's DAG cannot be read: {bag.import_errors}")
    sync_bag_to_db(bag, "dags-folder", None)


def make_run(waiting: int, residents: int) -> None:
    """Create a DAG run whose tasks are repeated until there are as many instances as asked for."""
    now = datetime.now(tz=UTC)
    with create_session(scoped=False) as session:
        dag = DBDagBag().get_latest_version_of_dag(DAG_ID, session=session)
        if dag is None:
            raise RuntimeError("the benchmark's DAG did not reach the database")
        run = dag.create_dagrun(
            run_id=RUN_ID,
            run_after=now,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        session.flush()
        made = {ti.task_id: ti for ti in run.get_task_instances(session=session)}
        kinds = sorted(set(made) - {RESIDENT})
        wanted = [(RESIDENT, index) for index in range(residents)]
        wanted += [(kinds[number % len(kinds)], number // len(kinds)) for number in range(waiting)]
        for ti in made.values():
            session.delete(ti)
        session.flush()
        for task_id, map_index in wanted:
            ti = TaskInstance(
                dag.get_task(task_id),
                dag_version_id=made[task_id].dag_version_id,
                run_id=RUN_ID,
                map_index=map_index,
                state=TaskInstanceState.RUNNING if task_id == RESIDENT else TaskInstanceState.QUEUED,
            )
            ti.queued_dttm, ti.try_number = now, 1
            session.add(ti)


def settle_residents(executor: EacoExecutor, store: Store) -> list[tuple[LocalDispatcher, str]]:
    """Start a process group on each GPU under a lease, and let the executor adopt all of them."""
    dispatcher = LocalDispatcher()
    if not dispatcher.warm_up(DEFAULT_READY_TIMEOUT_S):
        raise RuntimeError("the residents' forkserver did not get ready")
    view = store.ledger.view()
    gpus = [(node.name, gpu.uuid) for node in view.nodes for gpu in node.gpus]
    started = []
    with create_session(scoped=False) as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.task_id == RESIDENT)).all()
        for (node, uuid), ti in zip(gpus, found, strict=True):
            job = _job_of(ti)
            store.ledger.add_waiting(job, executor.owner)
            launch = Launch(job, Placement(node, (uuid,)), ())
            lease = store.ledger.grant(launch, LeaseState.EXCLUSIVE, view.gpu_versions, executor.owner)
            order = LaunchOrder(job.job_id, lease.token, "bench.resident:stay", "", {})
            reference = dispatcher.start(order)
            started.append((dispatcher, reference))
            store.ledger.set_running(lease.token, reference)
            ti.external_executor_id = reference
        left = executor.try_adopt_task_instances(found)
        if left:
            raise RuntimeError(f"{len(left)} of {len(gpus)} residents were not adopted")
    return started


def _job_of(ti: TaskInstance) -> Job:
    request = parse_executor_config(ti.executor_config, default_family=RESIDENT, default_max_stretch=None)
    if request is None:
        raise RuntimeError("a resident of the benchmark has no request")
    order = OrderKey(time.time(), ti.dag_id, ti.task_id, ti.map_index, str(ti.id))
    return Job(str(ti.id), request, ti.pool, time.time(), order)


def hand_over(executor: EacoExecutor) -> None:
    """Queue every waiting task in the executor, as the scheduler does in its critical section."""
    with create_session(scoped=False) as session:
        query = select(TaskInstance).where(TaskInstance.task_id != RESIDENT)
        for ti in session.scalars(query):
            executor.queue_workload(ExecuteTask.make(ti, generator=executor.jwt_generator), session)


class StepClock:
    """Adds up the time and the SQL statements of every step of the executor's heartbeat."""

    def __init__(self, lanes: Any) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.statements: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self._lanes, self._steps = lanes, lanes.steps
        lanes.steps = self._timed
        event.listen(Engine, "before_cursor_execute", self._counted)

    def close(self) -> None:
        """Leave the steps as they were."""
        self._lanes.steps = self._steps
        event.remove(Engine, "before_cursor_execute", self._counted)

    def _counted(self, *_arguments: Any) -> None:
        self.count += 1

    def _timed(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for name, step in self._steps():
            yield name, self._wrapped(name, step)

    def _wrapped(self, name: str, step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            begin, count = time.perf_counter(), self.count
            try:
                step()
            finally:
                self.seconds[name].append(time.perf_counter() - begin)
                self.statements[name].append(self.count - count)

        return run


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what one executor did: seconds of each beat and of each step."""
    sync_dags(arguments.dags)
    make_run(arguments.waiting, arguments.gpus)
    executor = EacoExecutor(parallelism=32)
    executor.job_id = "1"
    executor.start()
    executor.heartbeat()  # reports the nodes and makes the pool
    store = open_store()
    residents = settle_residents(executor, store)
    lanes = executor._lanes  # noqa: SLF001 - steps are not public, and a benchmark has to see into them
    try:
        hand_over(executor)
        first_clock = StepClock(lanes)
        first = _seconds_of(executor.heartbeat)
        first_clock.close()
        for _ in range(3):  # what only the first beats do is not the steady state
            executor.heartbeat()
        clock = StepClock(lanes)
        steady = _steady(executor, clock, arguments)
        _check(executor, store, arguments)
    finally:
        for dispatcher, reference in residents:
            dispatcher.kill(reference, 0.0)
            dispatcher.poll(reference)
        executor.terminate()
    return {
        "first_s": first,
        "first_steps_s": {name: sum(seconds) for name, seconds in first_clock.seconds.items()},
        **steady,
        "steps_s": dict(clock.seconds),
        "step_statements": dict(clock.statements),
    }


def _steady(
    executor: EacoExecutor, clock: StepClock, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return wall and CPU seconds and the statements of each beat of the steady state."""
    beats_s: list[float] = []
    cpu_s: list[float] = []
    statements: list[float] = []
    profiler = cProfile.Profile() if arguments.profile else None
    for _ in range(arguments.beats):
        time.sleep(arguments.pause)
        before, cpu_before_s = clock.count, time.process_time()
        beats_s.append(_seconds_of(executor.heartbeat, profiler))
        cpu_s.append(time.process_time() - cpu_before_s)
        statements.append(clock.count - before)
    if profiler is not None:
        profiler.dump_stats(arguments.profile)
    return {"beats_s": beats_s, "cpu_s": cpu_s, "statements": statements}


def _seconds_of(call: Callable[[], object], profiler: cProfile.Profile | None = None) -> float:
    begin = time.perf_counter()
    if profiler is None:
        call()
    else:
        profiler.runcall(call)
    return time.perf_counter() - begin


def _check(executor: EacoExecutor, store: Store, arguments: argparse.Namespace) -> None:
    """Refuse figures of a state that was not what they claim."""
    view = store.ledger.view()
    phases = sorted(record.phase.value for record in view.jobs)
    wanted = ["running"] * arguments.gpus + ["waiting"] * arguments.waiting
    if phases != wanted or len(executor.queued_tasks) != arguments.waiting:
        counts = {phase: phases.count(phase) for phase in set(phases)}
        raise RuntimeError(
            f"held {len(executor.queued_tasks)} of {arguments.waiting} tasks; jobs by phase: {counts}"
        )


def main() -> None:
    """Measure and write the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dags", type=Path, required=True)
    parser.add_argument("--waiting", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--beats", type=int, required=True)
    parser.add_argument("--pause", type=float, default=IDLE_SLEEP_S)
    parser.add_argument("--profile", help="write a cProfile of the beats to this file")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(measure(arguments)), encoding="utf-8")


if __name__ == "__main__":
    main()
