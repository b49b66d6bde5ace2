"""What a node may send, checked to the last value: whatever is not named here is refused.

Bounds keep every value inside what the database's columns take, so that no report can fail further in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from airflow_provider_eaco.core.energy.accounting import DeviceTotals, SplitRule
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals, RunNote
from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.gpu import ForeignProcess, Gpu, GpuHealth, GpuReading, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import PowerScope
from airflow_provider_eaco.core.node_runs import NodeReport, RunNews, RunState
from airflow_provider_eaco.core.ports import EnergyMethod, EnergyPart, RunMeter

MAX_GPUS = 1024
MAX_RUNS = 4096
MAX_FOREIGN = 64

# Without control characters, which a database or a log would choke on.
_TEXT = r"^[^\x00-\x1f\x7f]*$"
_Name = Annotated[str, Field(min_length=1, max_length=255, pattern=_TEXT)]
_Text = Annotated[str, Field(max_length=1000, pattern=_TEXT)]
Uuid = Annotated[str, Field(pattern=r"^(GPU|MIG)-[A-Za-z0-9/_.-]{1,120}$")]
_JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,255}$")]
_Token = Annotated[int, Field(ge=1, lt=2**63)]
_Mib = Annotated[int, Field(ge=0, le=2**40)]
Number = Annotated[float, Field(ge=0, le=1e15)]
_Instant = Annotated[float, Field(ge=0, le=1e10)]
_Percent = Annotated[float, Field(ge=0, le=100)]
_Watts = Annotated[float, Field(ge=0, le=1e6)]
_Uuids = Annotated[list[Uuid], Field(min_length=1, max_length=MAX_GPUS)]


class Strict(BaseModel):
    """Takes exactly the types that are named, and nothing that is not."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class GpuModel(Strict):
    """One GPU of the node."""

    uuid: Uuid
    index: Annotated[int, Field(ge=0, lt=MAX_GPUS)]
    model: _Name
    memory_total_mib: _Mib | None
    memory_reserved_mib: _Mib = 0
    health: Annotated[GpuHealth, Field(strict=False)]


class ReadingModel(Strict):
    """One look at a GPU; ``None`` is unknown."""

    uuid: Uuid
    utilisation_pct: _Percent | None = None
    memory_used_mib: _Mib | None = None
    power_w: Number | None = None
    energy_j: Number | None = None
    foreign_memory_mib: _Mib | None = None
    foreign_processes: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class ForeignModel(Strict):
    """A process on a GPU that is none of ours; ``user`` is ``None`` where that is not known."""

    pid: Annotated[int, Field(ge=1, lt=2**31)]
    user: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None


class Reading3Model(ReadingModel):
    """One look at a GPU in format 3."""

    foreign_by: Annotated[list[ForeignModel], Field(max_length=MAX_FOREIGN)] = []


class MeterModel(Strict):
    """What was seen of a run that has ended."""

    memory_peak_mib: _Mib | None = None
    utilisation_pct: _Percent | None = None
    utilisation_max_pct: _Percent | None = None
    memory_utilisation_pct: _Percent | None = None
    power_w: Number | None = None
    scope: Annotated[PowerScope, Field(strict=False)] = PowerScope.NODE


class NewsModel(Strict):
    """What has become of one run."""

    token: _Token
    state: Literal["running", "ended", "refused"]
    process: _Text | None = None
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    cause: _Text | None = None
    meter: MeterModel | None = None


class LivingModel(Strict):
    """A run whose processes live."""

    job_id: _JobId
    token: _Token


class GpuEnergyModel(Strict):
    """What was used in all on one GPU; ``energy_j`` is ``None`` where nothing was measured."""

    gpu_uuid: Uuid
    energy_j: Number | None
    seconds: Number
    method: Annotated[EnergyMethod, Field(strict=False)]
    partial: bool = False


class EnergyModel(GpuEnergyModel):
    """What one run has used in all on one GPU."""

    token: _Token


class NoteModel(Strict):
    """The largest draw of one run, and by what its GPUs' joules were split."""

    token: _Token
    peak_w: Number | None = None
    rules: Annotated[list[Annotated[SplitRule, Field(strict=False)]], Field(max_length=len(SplitRule))] = []


class DeviceModel(Strict):
    """What one GPU has used since the counting began."""

    uuid: Uuid
    energy_j: Number
    runs_j: Number
    idle_j: Number
    strangers_j: Number
    unknown_s: Number


class CountersModel(Strict):
    """The counters of the whole machine; instants are the node's own and only compared with each other."""

    origin: _Name
    began_s: _Instant
    until_s: _Instant
    devices: Annotated[list[DeviceModel], Field(max_length=MAX_GPUS)]
    node_j: Number = 0.0
    gpus_j: Number = 0.0
    seconds: Number = 0.0


class PeakModel(Strict):
    """The most that one living run was seen to use of one of its GPUs."""

    token: _Token
    memory_mib: _Mib


class LimitModel(Strict):
    """A limit of ours on all boards of a placement; ``limit_w`` is ``None`` where they may have it or not."""

    gpu_uuids: _Uuids
    limit_w: _Watts | None = None
    before_w: Annotated[list[_Watts], Field(max_length=MAX_GPUS)] = []

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.limit_w is not None and len(self.before_w) != len(self.gpu_uuids):
            raise ValueError("before_w: one of each board that is held")
        return self


class RefusedModel(Strict):
    """A limit that was wanted and not set."""

    gpu_uuids: _Uuids
    cause: _Text


class LimitsModel(Strict):
    """The power limits on the node's boards; ``permits`` says of a GPU why none can be set there."""

    permits: Annotated[dict[Uuid, _Text | None], Field(max_length=MAX_GPUS)] = {}
    boards: Annotated[list[LimitModel], Field(max_length=MAX_GPUS)] = []
    refused: Annotated[list[RefusedModel], Field(max_length=MAX_GPUS)] = []

    def as_limits(self, node: str) -> NodeLimits:
        """Return it as the store takes it, said by this node."""
        return NodeLimits(
            permits=self.permits,
            in_force={
                Placement(node, tuple(each.gpu_uuids)): LimitInForce(each.limit_w, tuple(each.before_w))
                for each in self.boards
                if each.limit_w is not None
            },
            noted=frozenset(Placement(node, tuple(each.gpu_uuids)) for each in self.boards),
            refused={Placement(node, tuple(each.gpu_uuids)): each.cause for each in self.refused},
        )


class ReportModel(Strict):
    """One report in format 2. ``available`` is false when the node takes nothing new."""

    v: Literal[2]
    machine: _Name
    gpus: Annotated[list[GpuModel], Field(max_length=MAX_GPUS)]
    host_memory_mib: _Mib | None = None
    time_scale: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    available: bool = True
    readings: Annotated[list[ReadingModel], Field(max_length=MAX_GPUS)] = []
    news: Annotated[list[NewsModel], Field(max_length=MAX_RUNS)] = []
    living: Annotated[list[LivingModel], Field(max_length=MAX_RUNS)] = []
    energy: Annotated[list[EnergyModel], Field(max_length=MAX_RUNS)] = []
    notes: Annotated[list[NoteModel], Field(max_length=MAX_RUNS)] = []
    counters: CountersModel | None = None
    peaks: Annotated[list[PeakModel], Field(max_length=MAX_RUNS)] = []

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        uuids = [gpu.uuid for gpu in self.gpus]
        if len(set(uuids)) < len(uuids):
            raise ValueError("gpus: each GPU once")
        read = [reading.uuid for reading in self.readings]
        if len(set(read)) < len(read) or not set(read) <= set(uuids):
            raise ValueError("readings: each one once, and of a GPU that is listed")
        return self

    def as_report(self, node: str) -> NodeReport:
        """Return it as the store takes it, said by this node."""
        gpus = tuple(
            Gpu(
                each.uuid,
                node,
                each.index,
                each.model,
                each.memory_total_mib,
                each.memory_reserved_mib,
                each.health,
            )
            for each in self.gpus
        )
        return NodeReport(
            node=Node(node, gpus, self.host_memory_mib, available=self.available, time_scale=self.time_scale),
            machine=self.machine,
            readings=tuple(map(_reading, self.readings)),
            news=tuple(_news(each) for each in self.news),
            living=tuple((each.job_id, each.token) for each in self.living),
            # Whose run it is, the store knows better than its node.
            energy=tuple(EnergyPart(job_id="", **each.model_dump()) for each in self.energy),
            notes=tuple(RunNote("", each.token, each.peak_w, frozenset(each.rules)) for each in self.notes),
            counters=None if self.counters is None else _counters(node, self.counters),
            peaks_mib=tuple((each.token, each.memory_mib) for each in self.peaks),
        )


class Report3Model(ReportModel):
    """One report in format 3."""

    v: Literal[3]  # type: ignore[assignment]  # of the format that it extends nothing else changes
    limits: LimitsModel = LimitsModel()
    readings: Annotated[list[Reading3Model], Field(max_length=MAX_GPUS)] = []  # type: ignore[assignment]  # wider

    def as_report(self, node: str) -> NodeReport:
        """Return it as the store takes it, said by this node."""
        return replace(super().as_report(node), limits=self.limits.as_limits(node))


class StartModel(Strict):
    """A node asks whether it may begin a run; the same in both formats."""

    v: Literal[2, 3]
    machine: _Name
    token: _Token
    job_id: _JobId


REPORTS: TypeAdapter[ReportModel] = TypeAdapter(
    Annotated[ReportModel | Report3Model, Field(discriminator="v")]
)
STARTS: TypeAdapter[StartModel] = TypeAdapter(StartModel)


def _counters(node: str, counters: CountersModel) -> MachineEnergy:
    devices = {each.uuid: DeviceTotals(**each.model_dump(exclude={"uuid"})) for each in counters.devices}
    totals = NodeTotals(counters.node_j, counters.gpus_j, counters.seconds)
    return MachineEnergy(node, counters.origin, counters.began_s, counters.until_s, devices, totals)


def _reading(told: ReadingModel) -> GpuReading:
    foreign = told.foreign_by if isinstance(told, Reading3Model) else []
    by = tuple(ForeignProcess(each.pid, each.user) for each in foreign)
    return GpuReading(at_s=0.0, foreign_by=by, **told.model_dump(exclude={"foreign_by"}))


def _news(news: NewsModel) -> RunNews:
    meter = None if news.meter is None else RunMeter(**news.meter.model_dump())
    return RunNews(news.token, RunState(news.state), news.process, news.exit_code, news.cause, meter)
