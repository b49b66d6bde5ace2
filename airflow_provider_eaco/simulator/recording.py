"""What a run leaves behind while it goes on: intervals of jobs and nodes, and decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True)
class RunInterval:
    """A job in an unchanged place with unchanged residents; ``rate`` is its progress per second."""

    job_id: str
    start_s: float
    end_s: float
    node: str
    gpus: tuple[int, ...]
    residents: tuple[str, ...]
    rate: float


@quick_init
@dataclass(frozen=True, slots=True)
class NodeInterval:
    """A node in one state at one power."""

    node: str
    start_s: float
    end_s: float
    state: NodePower
    power_w: float

    @property
    def energy_j(self) -> float:
        return self.power_w * (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class LimitInterval:
    """GPUs of a node that were held to a power limit."""

    node: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    limit_w: float


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided about one job, when it was news. Unknown values are ``None``."""

    time_s: float
    job_id: str
    verdict: str
    reason: str
    node: str = ""
    gpus: tuple[int, ...] = ()
    predicted_rate: float | None = None
    predicted_energy_j: float | None = None


@dataclass(slots=True)
class Recording:
    """Everything that the files of a run are made of, in the order in which it ended."""

    runs: list[RunInterval] = field(default_factory=list)
    nodes: list[NodeInterval] = field(default_factory=list)
    limits: list[LimitInterval] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    trials: int = 0
    confirmed: int = 0
    undone: int = 0
    out_of_memory: int = 0
    decision_s: list[float] = field(default_factory=list)

    def end_at(self, end_s: float) -> None:
        """Drop what was written of the time after the last end, in which others were still waited for."""
        self.nodes = [
            replace(node, end_s=min(node.end_s, end_s)) if node.end_s > end_s else node
            for node in self.nodes
            if node.start_s < end_s
        ]
        while self.decisions and self.decisions[-1].time_s > end_s:
            self.decisions.pop()
