"""One job on its GPUs: how far it is, how fast it goes, and what happens to it next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from airflow_provider_eaco.simulator.clock import instant
from airflow_provider_eaco.simulator.trace import TraceJob


class Happening(IntEnum):
    """What happens by itself. At one instant in this order: ends first, so that who waits finds room."""

    END = 0
    EPOCH = 1
    RESTARTED = 2
    NODE = 3


class Event(NamedTuple):
    """``subject`` is a job id, for ``NODE`` the name of a node; ``started`` are the jobs that it starts."""

    happening: Happening
    subject: str
    started: tuple[str, ...] = ()


class Epoch(NamedTuple):
    """A part of a run at whose end the job reports: when that was, and how long it took.

    ``work_s`` is the exclusive work of this part, ``done_s`` of the run so far. ``limited``: a power limit
    was in force during some of it.
    """

    ended_s: float
    elapsed_s: float
    work_s: float
    done_s: float
    limited: bool


@dataclass(slots=True, eq=False)
class Run:
    """One job on its GPUs, ``done_s`` of exclusive work done until ``since_s``, ``epochs`` complete ones.

    ``interval_s`` is when its present interval began, ``epoch_began_s`` its present epoch (a restart not
    counted). ``limited``: a power limit was in force during some of the present epoch. ``untold`` are the
    parts that it has completed and not reported yet. ``stamp`` marks the one event of this run that still
    holds.
    """

    job: TraceJob
    epoch_work_s: float
    done_s: float = 0.0
    epochs: int = 0
    resumed: bool = False
    since_s: float = 0.0
    interval_s: float = 0.0
    epoch_began_s: float = 0.0
    restarts_until_s: float = 0.0
    rate: float = 0.0
    full_rate: float = 0.0
    limited: bool = False
    untold: list[Epoch] = field(default_factory=list)
    stamp: int = 0

    def advance(self, now_s: float) -> None:
        self.done_s += self.rate * (now_s - self.since_s)
        self.since_s = now_s

    def complete(self, work_s: float, done_s: float, *, limited: bool) -> None:
        """End the present epoch, or whatever is reported as one, at :attr:`since_s`.

        :param limited: whether a power limit is in force now.
        """
        elapsed_s = self.since_s - self.epoch_began_s
        self.untold.append(Epoch(self.since_s, elapsed_s, work_s, done_s, self.limited))
        self.epoch_began_s = self.since_s
        self.limited = limited

    def next_point(self, epochs: bool) -> tuple[Happening, float]:
        """Return what comes next for it and at which instant, if its rate stays.

        :param epochs: whether the end of an epoch is of interest.
        """
        if self.since_s < self.restarts_until_s:
            return Happening.RESTARTED, self.restarts_until_s
        work_s = self.job.work_s
        boundary_s = (self.epochs + 1) * self.epoch_work_s
        # The last boundary is the end; the last bits of a product must not make an epoch of nothing.
        ends = not epochs or boundary_s >= work_s * (1 - 1e-9)
        left_s = max(0.0, (work_s if ends else boundary_s) - self.done_s)
        return Happening.END if ends else Happening.EPOCH, instant(self.since_s + left_s / self.rate)


@dataclass(slots=True, eq=False)
class Place:
    """GPUs of one node with those who run there, first come first."""

    gpus: tuple[int, ...]
    runs: list[Run] = field(default_factory=list)
    power_w: float = 0.0
