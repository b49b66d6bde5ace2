"""A GPU lane without Airflow's database and without processes; engine and ledger are the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from airflow.models.taskinstancekey import TaskInstanceKey

from airflow_provider_eaco.core.model.errors import LaunchError, NotReadyError
from airflow_provider_eaco.core.model.gpu import Gpu, Node
from airflow_provider_eaco.core.model.job import GpuRequest, Share
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings
from airflow_provider_eaco.core.model.profile import ProfileBook
from airflow_provider_eaco.core.model.snapshot import AirflowPool, PoolState
from airflow_provider_eaco.core.ports import ProcessState
from airflow_provider_eaco.engine.admission_loop import AdmissionLoop
from airflow_provider_eaco.engine.pool_manager import Inventory
from airflow_provider_eaco.provider import gpu_lane
from airflow_provider_eaco.provider.gpu_lane import GpuLane
from airflow_provider_eaco.provider.plain_lane import PlainLane
from airflow_provider_eaco.provider.services import NodeMeter, Services
from airflow_provider_eaco.provider.settings import EacoSettings
from airflow_provider_eaco.provider.task_instances import TaskFacts
from airflow_provider_eaco.simulator.memory_decisions import MemoryDecisionLog
from airflow_provider_eaco.simulator.memory_profiles import MemoryProfileStore
from airflow_provider_eaco.simulator.memory_store import MemoryLedger, MemoryPlannerLock
from tests.contract.metering_suite import KeptParts

START_S = 1_800_000_000.0


class FakeDispatcher:
    """Process groups that live until the test ends them."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.states: dict[str, ProcessState] = {}
        self.killed: list[str] = []
        self.refuse: str | None = None
        self.is_ready = True

    def start(self, order: Any) -> str:
        if not self.is_ready:
            raise NotReadyError("still preparing")
        if self.refuse:
            raise LaunchError(self.refuse)
        self.orders.append(order)
        reference = f"{len(self.orders)}:1:host:boot:{order.token}:{order.job_id}"
        self.states[reference] = ProcessState(alive=True)
        return reference

    def poll(self, reference: str) -> ProcessState:
        return self.states[reference]

    def kill(self, reference: str, grace_s: float) -> None:
        self.killed.append(reference)

    def close(self, timeout_s: float) -> None:
        pass

    def end(self, job_id: str, exit_code: int = 0) -> None:
        for reference in self.states:
            if reference.endswith(job_id):
                self.states[reference] = ProcessState(alive=False, exit_code=exit_code)


@dataclass
class FakeHost:
    """Writes down what the executor would tell Airflow."""

    owner: str = "1@here"
    tasks: dict[Any, Any] = field(default_factory=dict)
    running: dict[Any, str] = field(default_factory=dict)
    ended: list[tuple[Any, str, str | None]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    told: list[tuple[str, str, str]] = field(default_factory=list)
    #: Task ids in the order in which tokens were minted.
    renewed: list[str] = field(default_factory=list)

    def queue(self) -> dict[Any, Any]:
        return self.tasks

    def renew_token(self, workload: Any) -> Any:
        self.renewed.append(workload.ti.task_id)
        return SimpleNamespace(model_dump_json=lambda: f"{workload.model_dump_json()} renewed")

    def note_running(self, key: Any, reference: str) -> None:
        self.running[key] = reference

    def note_ended(self, key: Any, event: Any, info: str | None = None) -> None:
        self.running.pop(key, None)
        self.ended.append((key.task_id, event.value, info))

    def fail_queued(self, workload: Any, text: str) -> None:
        self.tasks.pop(workload.key, None)
        self.failed.append((workload.ti.task_id, text))

    def fail_unstarted(self, key: Any, text: str) -> None:
        self.failed.append((key.id, text))

    def tell(self, key: Any, event: str, text: str) -> None:
        self.told.append((key.task_id, event, text))


class FakeMeter:
    """One node, of two GPUs if nothing else is said; remembers who occupies it."""

    def __init__(self, gpus: int = 2) -> None:
        self.gpus = gpus
        self.occupants: list[Any] = []

    def inventory(self) -> list[Node]:
        gpus = tuple(Gpu(f"GPU-{index}", "n1", index, "V100", 16384) for index in range(self.gpus))
        return [Node("n1", gpus, last_report_s=START_S)]

    def read(self) -> list[Any]:
        return []

    def occupy(self, occupants: list[Any]) -> None:
        self.occupants = list(occupants)


def make_workload(job_id: str, task_id: str, try_number: int = 1) -> Any:
    """Return what the lane uses of an ExecuteTask."""
    key = TaskInstanceKey("dag", task_id, "run", try_number, -1)
    ti = SimpleNamespace(
        id=job_id, dag_id="dag", task_id=task_id, run_id="run", map_index=-1, priority_weight=1, pool_slots=1
    )
    return SimpleNamespace(
        ti=ti,
        key=key,
        bundle_info=SimpleNamespace(name="dags-folder"),
        log_path=None,
        model_dump_json=lambda: f'"{job_id}"',
    )


@dataclass(frozen=True)
class Parts:
    """What the lane stores in and meters with."""

    ledger: Any
    profiles: Any
    decisions: Any
    planner: Any
    energy: Any
    meter: NodeMeter


def parts_in_memory() -> Parts:
    """Return a store that stands at one instant, and one node without a meter."""
    clock = SimpleNamespace(now_s=lambda: START_S)
    return Parts(
        ledger=MemoryLedger(clock),
        profiles=MemoryProfileStore(ProfileBook()),
        decisions=MemoryDecisionLog(),
        planner=MemoryPlannerLock(clock),
        energy=KeptParts(),
        meter=NodeMeter(FakeMeter()),
    )


class LaneRig:
    """The lane with its surroundings; ``beat`` runs the steps of one heartbeat in order."""

    def __init__(
        self,
        monkeypatch: Any,
        mode: PoolMode = PoolMode.SHARE,
        policy: str = "exclusive",
        parts: Parts | None = None,
        backfill_priority: int = 0,
    ) -> None:
        parts = parts or parts_in_memory()
        self._backfill_priority = backfill_priority
        self.host = FakeHost()
        self.dispatcher = FakeDispatcher()
        self.meter: Any = parts.meter.telemetry
        self.facts: dict[str, TaskFacts] = {}
        self.progress: dict[Any, Mapping[str, Any]] = {}
        self.instructions: list[tuple[str, Mapping[str, Any]]] = []
        self.ledger = parts.ledger
        self.decisions = parts.decisions
        self.services = self._services(parts, PoolSettings(mode=mode, policy=policy, reject_after_s=0))
        monkeypatch.setattr(gpu_lane.task_instances, "facts_of", self._facts_of)
        #: Ended tasks whose run Airflow has not looked at since.
        self.unlooked: set[str] = set()
        monkeypatch.setattr(
            gpu_lane.task_instances, "awaiting_follow_ups", lambda session, ids: self.unlooked & {*ids}
        )
        monkeypatch.setattr(gpu_lane, "read_progress", self._read_progress)
        monkeypatch.setattr(
            gpu_lane,
            "write_instruction",
            lambda session, key, value: self.instructions.append((key.task_id, value)),
        )
        monkeypatch.setattr(gpu_lane.GpuLane, "size_pools", lambda self: None)
        self.plain = PlainLane(self.host, self.dispatcher, 8, 10.0)
        self.lane = GpuLane(self.host, self.services, self.plain)

    def _services(self, parts: Parts, pool: PoolSettings) -> Services:
        return Services(
            settings=EacoSettings(pools=(pool,), backfill_priority=self._backfill_priority),
            ledger=self.ledger,
            profiles=parts.profiles,
            decisions=self.decisions,
            energy=parts.energy,
            admission=AdmissionLoop(
                self.ledger,
                parts.profiles,
                self.decisions,
                parts.planner,
                pools=lambda: (PoolState(pool, {"eaco": AirflowPool(None)}),),
                owner="1@here",
            ),
            inventory=Inventory(self.ledger, [self.meter]),
            dispatcher=self.dispatcher,
            meters=(parts.meter,),
            enqueue=lambda session, job, owner: self.ledger.add_waiting(job, owner),
            session=lambda: nullcontext(None),
            save_readings=lambda readings: None,
        )

    def queue(
        self,
        job_id: str,
        task_id: str,
        *,
        state: str = "queued",
        session: Any = None,
        try_number: int = 1,
        request: GpuRequest | None = None,
    ) -> Any:
        workload = make_workload(job_id, task_id, try_number)
        self.host.tasks[workload.key] = workload
        self.facts[job_id] = TaskFacts(job_id, workload.key, state, "eaco", 1, 1, START_S, 1)
        alone = GpuRequest(gpus=2, family=task_id, gpu_memory_mib=1000, share=Share.NEVER)
        self.lane.accept(workload, request or alone, START_S, session)
        return workload

    def become(self, job_id: str, state: str | None) -> None:
        self.facts[job_id] = replace(self.facts[job_id], state=state)

    def beat(self) -> None:
        lane = self.lane
        for step in (
            lane.end,
            lane.progress,
            lane.report_nodes,
            lane.drop_unwanted,
            lane.hold,
            lane.admit,
            lane.launch,
            lane.occupy,
            lane.instruct,
        ):
            step()

    def phase(self, job_id: str) -> str | None:
        record = self.ledger.record_of(job_id)
        return None if record is None else record.phase.value

    def _facts_of(self, session: Any, job_ids: Any) -> dict[str, TaskFacts]:
        return {job_id: self.facts[job_id] for job_id in job_ids if job_id in self.facts}

    def _read_progress(self, session: Any, keys: Any) -> dict[Any, Mapping[str, Any]]:
        return {key: self.progress[key] for key in keys if key in self.progress}
