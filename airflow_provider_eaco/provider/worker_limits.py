"""Power limits on the boards of a machine with a worker: brought to what the provider's API wants there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_provider_eaco.core.model.board_limits import LimitRequest, NodeLimits
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.node_runs import RunClaim
from airflow_provider_eaco.provider.limit_permits import ADVISE_S
from airflow_provider_eaco.provider.limit_requests import Limiter, LimitRequests, Outcome


class WorkerLimits:
    """The limits of one node, for its agent's thread; the limiter's process does what may take long."""

    def __init__(self, limiter: Limiter, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limiter = limiter
        self._requests = LimitRequests(limiter, monotonic)
        self._monotonic = monotonic
        self._are_applied = False
        self._wanted: dict[Placement, float] = {}
        self._refused: dict[Placement, tuple[float, str]] = {}
        self._permits: dict[str, str | None] = {}
        self._forget_s = float("inf")

    def want(self, limits_w: Mapping[Placement, float] | None) -> None:
        """Take in to what boards are to be held, all others to nothing; ``None``: no pool applies limits."""
        self._are_applied = limits_w is not None
        self._wanted = dict(limits_w or {})
        self._forget_refusals()

    def want_for(self, claim: RunClaim) -> None:
        """Take in to what the boards of a run are to be held that is about to begin."""
        if claim.power_limit_w is None:
            self._wanted.pop(claim.placement, None)
        else:
            self._are_applied, self._wanted[claim.placement] = True, claim.power_limit_w
        self._forget_refusals()

    def is_settled(self, placement: Placement) -> bool:
        """Tell whether nothing is wanted of these boards that is not so, but for what they have refused."""
        limit_w = self._wanted.get(placement)
        if limit_w is None or placement in self._refused:
            return True
        present = self._limiter.in_force().get(placement)
        return present is not None and present.limit_w == limit_w

    def step(self, uuids: Callable[[], Sequence[str]], held: Collection[Placement] | None) -> None:
        """Go on: take in what was done, and begin with what is to be done next.

        :param uuids: returns the machine's GPUs.
        :param held: the placements of runs that live or are about to begin; ``None``: they are not known yet,
            and no limit is lifted.
        """
        self._learn(self._requests.outcome())
        if self._monotonic() >= self._forget_s:
            self._permits = {uuid: cause for uuid, cause in self._permits.items() if cause is None}
            self._forget_s = float("inf")
        if held is None or self._requests.is_busy:
            return
        keep = [placement for placement in self._wanted if placement in held]
        changes = [
            SetPowerLimit(placement, self._wanted[placement])
            for placement in keep
            if not self.is_settled(placement)
        ]
        asked = [uuid for uuid in uuids() if uuid not in self._permits] if self._are_applied else ()
        self._learn(self._requests.ask(LimitRequest(tuple(keep), tuple(changes), tuple(asked))))

    def told(self) -> NodeLimits:
        """Return what is known of the boards now."""
        return NodeLimits(
            permits=dict(self._permits) if self._are_applied else {},
            in_force=dict(self._limiter.in_force()),
            noted=self._limiter.noted(),
            refused={placement: cause for placement, (_, cause) in self._refused.items()},
        )

    def close(self, timeout_s: float) -> None:
        """Lift every limit; runs go on at full power. What takes longer goes on without this process."""
        self._wanted.clear()
        self._requests.close(timeout_s)

    def _learn(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        self._permits.update({uuid: outcome.unable.get(uuid) for uuid in outcome.request.asked})
        if outcome.unable:
            self._forget_s = self._monotonic() + ADVISE_S
        for change in outcome.request.changes:
            cause = outcome.refused.get(change.placement)
            if cause is not None and change.limit_w is not None:
                self._refused[change.placement] = change.limit_w, cause
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        """Keep the refusals of limits that are still wanted: whoever wants another one may get it."""
        self._refused = {
            placement: refusal
            for placement, refusal in self._refused.items()
            if self._wanted.get(placement) == refusal[0]
        }
