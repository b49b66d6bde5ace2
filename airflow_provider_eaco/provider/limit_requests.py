"""Requests about this machine's power limits, one after the other: when one is due, and what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_provider_eaco.core.model.board_limits import LimitAnswer, LimitInForce, LimitRequest
from airflow_provider_eaco.core.model.placement import Placement

log = logging.getLogger(__name__)

# How often limits in force are compared with what the boards say, and lifting is tried again that failed.
LOOK_S = 60.0


class Limiter(Protocol):
    """Sets limits on the boards of this machine; but for ``finish`` nothing here waits."""

    @property
    def is_busy(self) -> bool: ...

    def begin(self, request: LimitRequest) -> None: ...

    def poll(self) -> LimitAnswer | None: ...

    def finish(self, request: LimitRequest, timeout_s: float) -> LimitAnswer | None: ...

    def in_force(self) -> Mapping[Placement, LimitInForce]: ...

    def noted(self) -> frozenset[Placement]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request: why each of its changes was refused and each GPU that was asked about takes
    no limit. Of one that is in neither, it was done, and it takes one.
    """

    request: LimitRequest
    refused: Mapping[Placement, str]
    unable: Mapping[str, str]


class LimitRequests:
    """Hands requests to a limiter and tells the log what became of boards."""

    def __init__(self, limiter: Limiter, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limiter = limiter
        self._monotonic = monotonic
        self._request = LimitRequest()
        self._looked_s = float("-inf")
        self._stuck: Mapping[str, str] = {}
        self._problem: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being carried out, or its outcome was not fetched."""
        return self._limiter.is_busy

    @property
    def touched(self) -> set[Placement]:
        """The placements on whose boards a limit of ours is, or may be soon."""
        return {*self._limiter.noted(), *(change.placement for change in self._request.changes)}

    def outcome(self) -> Outcome | None:
        """Return what became of the last request, once, as soon as it is known."""
        answer = self._limiter.poll()
        return None if answer is None else self._learn(answer)

    def ask(self, request: LimitRequest) -> Outcome | None:
        """Begin with the request if it, or the time, asks for anything; call it while nothing is busy.

        Return what became of it if that is known at once: that it cannot be begun with.
        """
        self._request = LimitRequest()
        noted = self._limiter.noted()
        left = [
            placement
            for placement in noted - {*request.held}
            if self._problem is None and self._stuck.keys().isdisjoint(placement.gpu_uuids)
        ]
        is_due = bool(noted) and self._monotonic() - self._looked_s >= LOOK_S
        if not (request.asked or request.changes or left or is_due):
            return None
        self._looked_s, self._request = self._monotonic(), request
        try:
            self._limiter.begin(request)
        except OSError as error:
            return self._learn(LimitAnswer(problem=str(error)))
        return None

    def close(self, timeout_s: float) -> None:
        """Lift every limit; what takes longer than ``timeout_s`` goes on without this process."""
        if self._limiter.is_busy or self._limiter.noted():
            answer = self._limiter.finish(LimitRequest(), timeout_s)
            log.info("Power limits are lifted: answer=%s", "still under way" if answer is None else answer)

    def _learn(self, answer: LimitAnswer) -> Outcome:
        request = self._request
        if answer.problem is not None:
            if answer.problem != self._problem:
                log.warning("Power limits cannot be set now: cause=%s", answer.problem)
            refused = {change.placement: answer.problem for change in request.changes}
            answer = replace(answer, refused=refused, unable=dict.fromkeys(request.asked, answer.problem))
        self._problem = answer.problem
        for uuid, limit_w in answer.restored.items():
            log.info("A board has its own power limit again: gpu=%s limit_w=%g", uuid, limit_w)
        for uuid, limit_w in answer.taken.items():
            log.warning("A power limit was changed by somebody else: gpu=%s limit_w=%g", uuid, limit_w)
        for uuid, cause in answer.stuck.items():
            if self._stuck.get(uuid) != cause:
                log.warning("A power limit cannot be lifted now: gpu=%s cause=%s", uuid, cause)
        self._stuck = answer.stuck
        return Outcome(request, answer.refused, answer.unable)
