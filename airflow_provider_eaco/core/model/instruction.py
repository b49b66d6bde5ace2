"""Instructions: what a plan asks the engine to do, and what is recorded about it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_eaco.core.model.decision import AdmissionDecision, Reason, Verdict
from airflow_provider_eaco.core.model.job import Job, JobKind
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.quick_init import quick_init


@dataclass(frozen=True, slots=True)
class Launch:
    """Give ``placement`` to ``job`` and start it; ``co_residents`` are the job ids already there."""

    job: Job
    placement: Placement
    co_residents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """The co-allocation on ``placement`` has stood its trial (or its review)."""

    placement: Placement
    set_version: int


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The trial ended without evidence: the set stays, takes nobody more and teaches nothing."""

    placement: Placement
    set_version: int


@dataclass(frozen=True, slots=True)
class Yield:
    """Ask ``job_id`` to give its GPUs up at its next unit boundary; ``why`` is shown in its decision log.

    ``undo``: because the set did not stand its trial or its review, which is remembered of the set. Else the
    job is asked to move to a better place.
    """

    job_id: str
    placement: Placement
    set_version: int
    why: str
    undo: bool = True


@dataclass(frozen=True, slots=True)
class SetPowerLimit:
    """Hold each GPU of ``placement`` to ``limit_w`` watts of board power; ``None`` lifts the limit.

    A limit stays while somebody holds the placement, whoever comes and goes, and falls with the last of them.
    """

    placement: Placement
    limit_w: float | None


@dataclass(frozen=True, slots=True)
class SleepNode:
    """Put a node to sleep that nobody holds GPUs of. One that wakes up just now stays up."""

    node: str


@dataclass(frozen=True, slots=True)
class WakeNode:
    """Wake a sleeping node before anybody is placed there; a placement wakes it by itself."""

    node: str


Steer = SetPowerLimit | SleepNode | WakeNode
Instruction = Launch | Confirm | Unconfirmed | Yield | Steer


@dataclass(frozen=True, slots=True)
class KindDecision:
    """One decision for all waiting jobs of one kind, in queue order; admitted ones have their own."""

    kind: JobKind
    job_ids: tuple[str, ...]
    decision: AdmissionDecision

    @property
    def answer(self) -> tuple[Verdict, Reason | None, Placement | None, str | None]:
        """What has to change for a decision to be news: verdict, first reason, placement, and the team meant.

        Jobs of one kind may get several answers in one plan.
        """
        decision = self.decision
        team = decision.findings[0].numbers.get("team") if decision.findings else None
        return decision.verdict, decision.reason, decision.placement, None if team is None else str(team)


@quick_init
@dataclass(frozen=True, slots=True)
class Plan:
    """All that one cycle decided for one pool: what to do, and why, also for the jobs that wait.

    ``order`` lists the waiting job ids as the ordering ranked them. ``look_again_s`` is the instant at which
    the plan is to be made anew even if nothing happens until then, ``None`` if there is none; whoever plans
    at every heartbeat does so anyway.
    """

    pool: str
    now_s: float
    instructions: tuple[Instruction, ...] = ()
    decisions: tuple[KindDecision, ...] = ()
    order: tuple[str, ...] = ()
    look_again_s: float | None = None
