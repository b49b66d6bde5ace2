"""What a policy and an ordering have to offer; the cycle knows nothing more of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol, cast, runtime_checkable

from airflow_provider_eaco.core.model.decision import AdmissionDecision
from airflow_provider_eaco.core.model.instruction import Confirm, Steer, Unconfirmed, Yield
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet

Review = Confirm | Unconfirmed | Yield


class AdmissionPolicy(Protocol):
    """Decides who may run where. A policy is built from the ``PoolSettings`` of its pool.

    Both methods are functions of their arguments: the same snapshot gives the same answer, whatever was asked
    before. A policy may keep what it has computed for parts that successive snapshots share.
    """

    def decide(self, job: Job, snapshot: ClusterSnapshot) -> AdmissionDecision:
        """Return the answer for every waiting job of ``job.kind``.

        Only ``job.kind`` may be looked at, never the job's identity. Free GPUs of ``snapshot.kept_nodes``
        belong to earlier jobs.
        """

    def review(self, held: GpuSet, snapshot: ClusterSnapshot) -> Review | None:
        """Return what is to be done about a set of two or more residents; ``None``: nothing now."""


class WatchingPolicy(Protocol):
    """A policy that knows by itself which sets need a review: not all are looked at in every cycle."""

    def all_due(self, snapshot: ClusterSnapshot) -> Sequence[tuple[GpuSet, Review]]:
        """Return the sets that ``review`` has something to say of, with what it says.

        They stand by the names of their nodes, and on a node in its order.
        """


class Lever(StrEnum):
    """What a policy may move beside placements. A policy lists its own in an attribute ``levers``."""

    MEAN_STRETCH = "mean_stretch"
    NODE_SLEEP = "node_sleep"
    POWER_LIMITS = "power_limits"
    MOVES = "moves"


def levers_of(policy: AdmissionPolicy) -> frozenset[Lever]:
    """Return what the policy moves; one that says nothing of levers has none."""
    return frozenset(getattr(policy, "levers", ()))


@dataclass(frozen=True, slots=True)
class Steering:
    """What is to be done to nodes and GPUs, and when to look again even if nothing happens until then."""

    instructions: tuple[Steer | Yield, ...] = ()
    look_again_s: float | None = None


@runtime_checkable
class SteeringPolicy(Protocol):
    """A policy that also puts nodes to sleep, wakes them, or limits the power of GPUs."""

    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        """Return what to do at the end of a cycle, after ``snapshot`` was brought about.

        The cycle's launches are in it, and ``waiting`` has the jobs that still wait, as they stand in line,
        without those whom a rule refuses to start now.
        Like the other methods a function of its argument.
        """


def as_watching(policy: AdmissionPolicy) -> WatchingPolicy | None:
    """Return the policy if it watches its sets itself.

    Who overrides ``review`` alone is asked about every set: what was inherited says nothing of it.
    """
    return cast("WatchingPolicy", policy) if _watches(type(policy)) else None


def judges_sets_alone(policy: AdmissionPolicy) -> bool:
    """Tell whether a review looks at nothing but the set, its node, the settings, the instant, and what is
    believed of its members where they run alone.

    A policy says so with an attribute ``sets_alone`` in the class that has its ``review`` and ``all_due``: of
    one that overrides them what it inherited says nothing.
    """
    return _judges_sets(type(policy))


def as_steering(policy: AdmissionPolicy) -> SteeringPolicy | None:
    """Return the policy if it steers."""
    return cast("SteeringPolicy", policy) if _steers(type(policy)) else None


# Looking a protocol's methods up takes longer than many a cycle.
@cache
def _steers(kind: type) -> bool:
    return issubclass(kind, SteeringPolicy)


@cache
def _watches(kind: type) -> bool:
    return _from_one_class(kind, ("all_due", "review"))


@cache
def _judges_sets(kind: type) -> bool:
    return _from_one_class(kind, ("sets_alone", "all_due", "review"))


def _from_one_class(kind: type, names: Sequence[str]) -> bool:
    """Tell whether the class has all of these, and has them from one and the same class."""
    owners = {next((each for each in kind.__mro__ if name in vars(each)), None) for name in names}
    return len(owners) == 1 and None not in owners


class Ordering(Protocol):
    """Ranks the queue."""

    def order(self, jobs: Sequence[Job], snapshot: ClusterSnapshot) -> tuple[Job, ...]:
        """Return the jobs, the first to be looked at first; independent of the order they come in."""
