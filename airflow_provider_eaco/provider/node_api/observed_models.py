"""What a sampler may send of tasks, checked to the last value as in a worker's report (:mod:`.models`)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from airflow_provider_eaco.core.energy.accounting import SplitRule
from airflow_provider_eaco.core.energy.records import RunNote
from airflow_provider_eaco.core.observed import ObservedReport, ObservedTask
from airflow_provider_eaco.core.ports import EnergyPart, RunMeter
from airflow_provider_eaco.provider.node_api.models import (
    MAX_GPUS,
    GpuEnergyModel,
    MeterModel,
    Number,
    Strict,
    Uuid,
)

MAX_TASKS = 512

_Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
# Airflow's own id of a task instance.
_TaskId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_Process = Annotated[str, Field(pattern=r"^[0-9]+:[0-9]+:[0-9a-f-]+$", max_length=255)]
_Pid = Annotated[int, Field(ge=1, lt=2**31)]
_Age = Annotated[float, Field(ge=0, le=1e9)]


class TaskModel(Strict):
    """One task try that runs under another executor."""

    job_id: _TaskId
    process: _Process
    pids: Annotated[list[_Pid], Field(min_length=1, max_length=16)]
    gpu_uuids: Annotated[list[Uuid], Field(min_length=1, max_length=MAX_GPUS)]
    running_s: _Age
    from_start: bool
    alone: bool
    ended_s: _Age | None = None
    energy: list[GpuEnergyModel] = Field(default_factory=list, max_length=MAX_GPUS)
    peak_w: Number | None = None
    rules: list[Annotated[SplitRule, Field(strict=False)]] = Field(
        default_factory=list, max_length=len(SplitRule)
    )
    meter: MeterModel | None = None

    def as_task(self) -> ObservedTask:
        """Return it as the store takes it."""
        return ObservedTask(
            job_id=self.job_id,
            process=self.process,
            pids=tuple(self.pids),
            gpu_uuids=tuple(sorted(set(self.gpu_uuids))),
            running_s=self.running_s,
            from_start=self.from_start,
            alone=self.alone,
            ended_s=self.ended_s,
            energy=tuple(EnergyPart(job_id="", token=0, **each.model_dump()) for each in self.energy),
            note=RunNote("", 0, self.peak_w, frozenset(self.rules)),
            meter=None if self.meter is None else RunMeter(**self.meter.model_dump()),
        )


class ObservedModel(Strict):
    """All tasks that the sampler of one node watches."""

    v: Literal[1]
    machine: _Name
    tasks: Annotated[list[TaskModel], Field(max_length=MAX_TASKS)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({task.process for task in self.tasks}) < len(self.tasks):
            raise ValueError("tasks: each process once")
        return self

    def as_report(self, node: str) -> ObservedReport:
        """Return it as the store takes it, said by this node."""
        return ObservedReport(node, self.machine, tuple(each.as_task() for each in self.tasks))


OBSERVED: TypeAdapter[ObservedModel] = TypeAdapter(ObservedModel)
