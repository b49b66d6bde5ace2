"""Jobs: one training run, which is one try of one Airflow task, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from airflow_provider_eaco.core.model.quick_init import quick_init, with_changes

MAX_GPUS = 16


class Share(StrEnum):
    """Whether a job may be co-allocated with others."""

    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a job asks for, checked and in canonical units.

    ``gpus`` are on one node. ``gpu_memory_mib`` is the peak per GPU, ``None`` when the author named none.
    ``gpu_models`` lists acceptable models in order of preference, empty for any. ``max_stretch`` bounds run
    time / exclusive run time; ``None`` means no bound. ``deadline_s`` is wall time after first queueing.
    ``shiftable``: it may wait for cheaper or cleaner energy.
    """

    gpus: int
    family: str
    gpu_memory_mib: int | None = None
    gpu_models: tuple[str, ...] = ()
    host_memory_mib: int | None = None
    max_stretch: float | None = 1.10
    deadline_s: float | None = None
    share: Share = Share.AUTO
    shiftable: bool = False


@quick_init
@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come.

    ``units_total`` is ``None`` until the job has told. ``run_s`` is the device time of all units done so far;
    ``solo_unit_s`` the mean time of the ``solo_units`` complete units that it ran alone in this run, with
    their standard deviation ``solo_spread_s``. ``can_yield`` is true once it has reported a checkpoint. Units
    are epochs, steps, trees or minutes, as the job reports them. ``reported_s`` is the instant of the last
    report that told of new units, ``lost_s`` the device time since the first start that no unit accounts for
    (pauses, moves and restarts); ``None``: not known. ``out_of_memory`` counts how often the
    memory of its GPUs did not suffice beside others: from then on it runs alone (C38).
    """

    units_done: int = 0
    units_total: int | None = None
    run_s: float = 0.0
    can_yield: bool = False
    solo_unit_s: float | None = None
    solo_units: int = 0
    solo_spread_s: float | None = None
    reported_s: float | None = None
    lost_s: float | None = None
    out_of_memory: int = 0


@dataclass(frozen=True, slots=True)
class OrderKey:
    """What decides between jobs of equal priority: oldest run first, then names (case C04)."""

    run_after_s: float
    dag_id: str
    task_id: str
    map_index: int
    job_id: str


@dataclass(frozen=True)
class Job:
    """One training run. ``queued_s`` is the instant it was first queued and never moves.

    ``bundle`` is the DAG bundle that its DAG comes from, ``None`` when that is not known.
    """

    job_id: str
    request: GpuRequest
    pool: str
    queued_s: float
    order: OrderKey
    priority: int = 0
    pool_slots: int = 1
    on_hold: bool = False
    progress: Progress = field(default_factory=Progress)
    bundle: str | None = None

    @property
    def label(self) -> str:
        """The name that people know it by: DAG, task, and the map index of a mapped one."""
        order = self.order
        index = "" if order.map_index < 0 else f"[{order.map_index}]"
        return f"{order.dag_id}.{order.task_id}{index}"

    @property
    def deadline_at_s(self) -> float | None:
        """The instant by which it has to end, ``None`` without a deadline."""
        deadline_s = self.request.deadline_s
        return None if deadline_s is None else self.queued_s + deadline_s

    def with_progress(self, progress: Progress) -> Job:
        """Return the job with another progress."""
        # Setting the fields of a frozen value one by one takes longer than all else that a report leads to.
        job = object.__new__(Job)
        job.__dict__.update(self.__dict__, progress=progress)
        job.__dict__.pop("kind", None)
        return job

    @cached_property
    def kind(self) -> JobKind:
        """What the admission decision depends on; jobs of one kind share one evaluation per cycle.

        How long a run will be matters once a part of it is done, or if it has a deadline. Before, it would
        only make a kind of its own of every job that tells.
        """
        progress = self.progress
        told = progress.units_total is not None or progress.solo_unit_s is not None
        if told and not progress.units_done and self.request.deadline_s is None:
            progress = with_changes(progress, units_total=None, solo_unit_s=None)
        return JobKind(
            self.request,
            self.pool,
            self.pool_slots,
            self.on_hold,
            progress,
            self.deadline_at_s,
            self.priority,
        )


@dataclass(frozen=True)
class JobKind:
    """The part of a job that an admission decision may look at. Its hash is taken once, like a text's."""

    request: GpuRequest
    pool: str
    pool_slots: int
    on_hold: bool
    progress: Progress
    deadline_at_s: float | None
    priority: int

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.request, self.progress, self.pool, self.priority, self.deadline_at_s))

    def __getstate__(self) -> dict[str, object]:
        # Texts have other hashes in another process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}
