"""Orders of a node that have not begun, and what the provider's API has said of each.

An answer that lets a run begin holds only as long as nothing has changed since. Between it and the start may
lie seconds of waiting, or minutes in which the whole worker stood still; so it has an age, counted on a clock
that goes on while a process is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_eaco.core.model.errors import NotReadyError
from airflow_provider_eaco.core.node_runs import RunClaim, RunNews, RunState, ValidRun
from airflow_provider_eaco.provider.worker_limits import WorkerLimits

log = logging.getLogger(__name__)

# A run that may begin waits so long for the limit of its boards, and then begins without.
_LIMIT_WAIT_S = 10.0


class Starts(Protocol):
    """The part of the provider's API that is asked before a start; ``interval_s``: how often it is told."""

    @property
    def interval_s(self) -> float: ...

    def claim(self, job_id: str, token: int) -> RunClaim | None: ...


@dataclass(slots=True)
class Ordered:
    """A message that was not carried out yet; ``claim`` once the API has allowed it.

    ``claimed_s`` is when that was the first time, ``asked_s`` when the last question with an answer was sent.
    """

    job_id: str
    token: int
    payload: str
    came_s: float
    claim: RunClaim | None = None
    claimed_s: float = float("-inf")
    asked_s: float = float("-inf")
    try_again_s: float = float("-inf")


class Claims:
    """The orders of one node, for its agent's thread.

    :param tell: takes what the API is to be told of an order that it had allowed and that will not begin.
    :param monotonic: in seconds.
    """

    def __init__(
        self,
        api: Starts,
        limits: WorkerLimits,
        tell: Callable[[RunNews], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._limits = limits
        self._tell = tell
        self._monotonic = monotonic
        self.ordered: list[Ordered] = []

    def take(self, job_id: str, token: int, payload: str) -> None:
        """Take in an order, unless it is there already."""
        if not any(order.token == token for order in self.ordered):
            self.ordered.append(Ordered(job_id, token, payload, self._monotonic()))

    def may_begin(self, order: Ordered) -> RunClaim | None:
        """Return what to begin with, if the order may begin now; ``None`` if it waits for the limit of its
        boards, or was taken back and is left out from now on.

        The API has said so a moment ago: what it said before a wait, or before this process was stopped for a
        while, is asked again.

        :raises NodeApiError: if there is no answer.
        :raises NotReadyError: if the answer took so long that it may be out of date.
        """
        if order.claim is None:
            self._ask(order)
        if self._waits_for_limit(order):
            return None
        if order.claim is not None and not self._is_fresh(order):
            self._ask(order)
            if self._waits_for_limit(order):
                return None
            if order.claim is not None and not self._is_fresh(order):
                raise NotReadyError("the provider's API took too long to answer")
        return order.claim

    def withdraw(self, valid: Sequence[ValidRun]) -> None:
        """Leave out the orders that were allowed and that the answer to a report does not list, or marks to
        be ended, and tell so.
        """
        by_token = {run.token: run for run in valid}
        for order in [each for each in self.ordered if each.claim is not None]:
            allowed = by_token.get(order.token)
            if allowed is None or allowed.job_id != order.job_id or allowed.stop:
                self._leave_out(order)

    def _ask(self, order: Ordered) -> None:
        # The answer's age counts from before the question: the process may be stopped while it waits.
        asked_s = self._monotonic()
        claim = self._api.claim(order.job_id, order.token)
        if claim is None:
            self._leave_out(order)
            return
        if order.claim is None:
            order.claimed_s = self._monotonic()
        order.claim, order.asked_s = claim, asked_s
        self._limits.want_for(claim)

    def _is_fresh(self, order: Ordered) -> bool:
        return self._monotonic() - order.asked_s <= self._api.interval_s

    def _waits_for_limit(self, order: Ordered) -> bool:
        if order.claim is None or self._limits.is_settled(order.claim.placement):
            return False
        return self._monotonic() - order.claimed_s < _LIMIT_WAIT_S

    def _leave_out(self, order: Ordered) -> None:
        log.info("Not begun, it was taken back: job_id=%s token=%s", order.job_id, order.token)
        if order.claim is not None:
            cause = "it was taken back before it had begun"
            self._tell(RunNews(order.token, RunState.REFUSED, cause=cause))
        order.claim = None
        self.ordered.remove(order)
