"""Placements and leases: which GPUs a job gets, and the stored right to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_eaco.core.model.quick_init import quick_init


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs of one node, named by UUID, sorted. Residents share identical sets."""

    node: str
    gpu_uuids: tuple[str, ...]

    def __hash__(self) -> int:
        # No GPU is on two nodes.
        return hash(self.gpu_uuids)


class LeaseState(StrEnum):
    """Where a lease stands.

    ``EXCLUSIVE``: alone on its GPUs. ``TRIAL``: in a co-allocation that has not been confirmed since its
    members changed. ``CONFIRMED``: in a confirmed co-allocation. ``UNCONFIRMED``: its trial ended without a
    report; the set takes nobody more. ``YIELDING``: asked to leave at its next
    unit boundary. ``OBSERVED``: never granted, and no right to anything: a task of another executor was seen
    to use the GPUs. Such a lease counts as released all the time.
    """

    EXCLUSIVE = "exclusive"
    TRIAL = "trial"
    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"
    YIELDING = "yielding"
    OBSERVED = "observed"


@quick_init
@dataclass(frozen=True, slots=True)
class Lease:
    """The stored right of one job to a placement.

    ``token`` fences: it only grows, so a late process with an older one is refused. ``set_version`` counts
    the changes of the resident set on these GPUs; a unit of work that began and ended under one version was
    measured under that set. ``granted_s`` is the instant of the grant, ``trial_since_s`` of the last change.

    ``charged_s`` are the seconds that count as its own: each second since the grant, divided by how many held
    the GPUs in it, summed up to ``charged_until_s`` (``None``: the grant), when the set changed last.
    """

    token: int
    job_id: str
    placement: Placement
    state: LeaseState
    set_version: int
    granted_s: float
    trial_since_s: float | None = None
    owner: str = ""
    charged_s: float = 0.0
    charged_until_s: float | None = None

    def charged_at(self, now_s: float, members: int) -> float:
        """Return the seconds that count as its own at ``now_s``, of a set with so many members until then."""
        since_s = self.granted_s if self.charged_until_s is None else self.charged_until_s
        return self.charged_s + max(0.0, now_s - since_s) / members
