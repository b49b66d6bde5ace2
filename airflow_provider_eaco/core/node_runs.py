"""Machines with a worker of their own: what they may run, what they tell, and what they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_eaco.core.energy.records import MachineEnergy, RunNote
from airflow_provider_eaco.core.model.board_limits import NodeLimits
from airflow_provider_eaco.core.model.errors import EacoError
from airflow_provider_eaco.core.model.gpu import GpuReading, Node
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.ports import EnergyPart, RunMeter

# What nodes and the provider's API say to each other has a format, oldest first. Both sides know two, so that
# schedulers and workers may differ by one version. Format 3 adds power limits: which are wanted on a node's
# boards, and what its boards have.
FORMATS = (2, 3)


class RunState(StrEnum):
    """What is known of a run on a node. The last four are final.

    ``ORDERED``: the message was sent. ``CLAIMED``: the node was allowed to begin. ``RUNNING``: it has begun.
    ``ENDED``: its processes are gone. ``REFUSED``: the node could not begin it. ``TAKEN_BACK``: it was never
    allowed to begin. ``ABANDONED``: its node fell silent; whatever lives there of it is ended before the node
    takes anything new.
    """

    ORDERED = "ordered"
    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"
    TAKEN_BACK = "taken_back"
    ABANDONED = "abandoned"


FINAL_STATES = frozenset({RunState.ENDED, RunState.REFUSED, RunState.TAKEN_BACK, RunState.ABANDONED})


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run, ages in seconds of the store's clock.

    ``begun``: whether its processes have ever been reported. ``silent_s``: since its node's last report,
    ``None`` if it never sent one. ``cause``: why it was refused, or how it ended where nobody saw it.
    """

    state: RunState
    begun: bool
    exit_code: int | None
    age_s: float
    silent_s: float | None
    stop_asked: bool
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class RunClaim:
    """A lease that its node may begin: what its process has to find in its environment.

    ``pool``: its job's Airflow pool, as the store knows it. ``alone``: nobody else holds its GPUs.
    ``memory_margin_mib``: what its pool leaves free on them; ``None`` where nobody has told.
    ``power_limit_w``: to what each of its boards is to be held before it begins; ``None``: to nothing.
    """

    job_id: str
    token: int
    family: str
    placement: Placement
    pool: str = ""
    alone: bool = False
    memory_margin_mib: int | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class RunNews:
    """What a node tells of one run: ``state`` is running, ended or refused.

    ``process`` is the node's own name for its processes, ``meter`` what was seen of a run that has ended.
    """

    token: int
    state: RunState
    process: str | None = None
    exit_code: int | None = None
    cause: str | None = None
    meter: RunMeter | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """All that a node tells at once.

    ``machine`` is the name of the machine that reports; ``living`` are the job ids and tokens of the runs
    that live there, whoever still wants them. Readings carry no instant of their own that anybody goes by.
    ``energy`` is what each run has used in all on each of its GPUs, so that a report may arrive twice;
    ``counters`` are those of the whole machine. ``peaks_mib``: the most memory that each living run, by its
    token, was seen to use on one of its GPUs; one of which that is not known is left out. ``limits`` is
    ``None`` for a worker that knows no power limits.
    """

    node: Node
    machine: str
    readings: tuple[GpuReading, ...] = ()
    news: tuple[RunNews, ...] = ()
    living: tuple[tuple[str, int], ...] = ()
    energy: tuple[EnergyPart, ...] = ()
    notes: tuple[RunNote, ...] = ()
    counters: MachineEnergy | None = None
    peaks_mib: tuple[tuple[int, int], ...] = ()
    limits: NodeLimits | None = None


@dataclass(frozen=True, slots=True)
class ValidRun:
    """A run that its node may have: ``stop`` says to end it, with ``grace_s`` seconds between the signals."""

    job_id: str
    token: int
    family: str
    placement: Placement
    memory_mib: int | None
    granted_s: float
    state: RunState
    stop: bool = False
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node learns from its report: the runs that it may have, and to what its boards are to be held.

    ``limits_w`` are the limits of all boards of each placement, in watts; what is not listed has none.
    ``None``: no pool applies limits, so that no board is even asked whether it would take one.
    """

    runs: tuple[ValidRun, ...]
    limits_w: Mapping[Placement, float] | None = None


class NodeRefusedError(EacoError):
    """A report that its node may not make; nothing of it was taken."""
