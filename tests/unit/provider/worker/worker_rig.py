"""A node's agent between an API and a machine that a test holds in its hands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitInForce, LimitRequest
from airflow_provider_eaco.core.model.gpu import Gpu, GpuReading, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import NodeAnswer, NodeReport, RunClaim, RunState, ValidRun
from airflow_provider_eaco.core.ports import LaunchOrder, Occupant, ProcessState, RunMeter
from airflow_provider_eaco.provider.limit_requests import Limiter
from airflow_provider_eaco.provider.services import NodeMeter
from airflow_provider_eaco.provider.worker_agent import Machine, NodeAgent
from airflow_provider_eaco.provider.worker_api import NodeApiError
from airflow_provider_eaco.provider.worker_register import Run

PLACEMENT = Placement("gpu-1", ("GPU-1",))
CLAIM = RunClaim("job", 7, "family", PLACEMENT)
VALID = ValidRun("job", 7, "family", PLACEMENT, None, 0.0, RunState.RUNNING)
MESSAGE = {"v": 1, "job_id": "job", "token": 7, "payload": "payload"}
REFERENCE = "1:2:host:boot:7:job"


class FakeApi:
    """Answers as a test wants, and keeps what it was told."""

    interval_s = 5.0

    def __init__(self) -> None:
        self.claims: dict[int, RunClaim] = {7: CLAIM}
        self.valid: tuple[ValidRun, ...] = (VALID,)
        self.limits_w: dict[Placement, float] | None = None
        self.reports: list[NodeReport] = []
        self.asked = 0
        self.is_away = False

    def claim(self, job_id: str, token: int) -> RunClaim | None:
        self.asked += 1
        if self.is_away:
            raise NodeApiError("away", is_refusal=False)
        return self.claims.get(token)

    def report(self, report: NodeReport) -> NodeAnswer:
        if self.is_away:
            raise NodeApiError("away", is_refusal=False)
        self.reports.append(report)
        return NodeAnswer(self.valid, self.limits_w)

    @property
    def news(self) -> list[tuple[int, RunState, int | None]]:
        return [(each.token, each.state, each.exit_code) for report in self.reports for each in report.news]


class FakeMachine:
    """Processes that live until the test ends them, and GPUs that are there until it takes them."""

    def __init__(self) -> None:
        self.alive: dict[str, int | None] = {}
        self.started: list[LaunchOrder] = []
        self.killed: list[tuple[str, float]] = []
        self.occupants: Sequence[Occupant] = ()
        self.gpus: tuple[Gpu, ...] = (Gpu("GPU-1", "gpu-1", 0, "V100", 32768),)
        self.refuse: Exception | None = None
        self.readings: Sequence[GpuReading] = ()
        self.peak_mib: int | None = None
        self.is_back: bool | None = None

    def start(self, order: LaunchOrder) -> str:
        if self.refuse is not None:
            raise self.refuse
        self.started.append(order)
        self.alive[REFERENCE] = None
        return REFERENCE

    def poll(self, reference: str) -> ProcessState:
        code = self.alive.get(reference, 0)
        return ProcessState(alive=code is None, exit_code=code)

    def kill(self, reference: str, grace_s: float) -> None:
        self.killed.append((reference, grace_s))

    def close(self, timeout_s: float) -> None: ...

    def inventory(self) -> Sequence[Node]:
        return (Node("gpu-1", self.gpus),)

    def read(self) -> Sequence[GpuReading]:
        return self.readings

    def run_meter(self, job_id: str, token: int) -> RunMeter | None:
        return RunMeter(memory_peak_mib=self.peak_mib)

    def is_memory_back(self, run: Run, since_s: float) -> bool | None:
        return self.is_back

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        self.occupants = occupants

    def find(self, job_id: str, token: int) -> str | None:
        return REFERENCE if (job_id, token) == ("job", 7) and REFERENCE in self.alive else None


class NoBoards:
    """A machine on which nobody wants limits."""

    is_busy = False

    def begin(self, request: LimitRequest) -> None:
        raise AssertionError(f"nobody wants that: {request}")

    def poll(self) -> LimitAnswer | None:
        return None

    def finish(self, request: LimitRequest, timeout_s: float) -> LimitAnswer | None:
        raise AssertionError(f"nobody wants that: {request}")

    def in_force(self) -> Mapping[Placement, LimitInForce]:
        return {}

    def noted(self) -> frozenset[Placement]:
        return frozenset()


class FakeRegister:
    """A register in memory."""

    def __init__(self, *runs: Run) -> None:
        self.runs: frozenset[Run] = frozenset(runs)

    def add(self, run: Run) -> None:
        self.runs |= {run}

    def drop(self, runs: Collection[Run]) -> None:
        self.runs -= set(runs)


class Rig:
    """One agent, stepped by the test."""

    def __init__(self, *registered: Run) -> None:
        self.now_s = 0.0
        self.limiter: Limiter = NoBoards()
        self.api, self.machine, self.register = FakeApi(), FakeMachine(), FakeRegister(*registered)
        self.agent = self.make_agent()

    def make_agent(self) -> NodeAgent:
        """A worker that was just started."""

        def order(claim: RunClaim, payload: str) -> LaunchOrder:
            return LaunchOrder(claim.job_id, claim.token, "m:f", payload, {}, claim.placement)

        meter = NodeMeter(self.machine, runs=self.machine, memory=self.machine)
        machine = Machine(
            "gpu-1", "host", meter, self.machine, order, self.machine.find, limiter=self.limiter
        )
        return NodeAgent(machine, self.api, self.register, lambda: self.now_s)

    def step(self, after_s: float = 1.0, *messages: dict[str, Any]) -> None:
        self.now_s += after_s
        for message in messages:
            self.agent.take(message)
        self.agent.step()
