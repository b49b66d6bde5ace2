"""Expected starts for requests: those of a long queue are found beside the requests, not in them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache

from airflow_provider_eaco.provider.cli.facts import Facts, starts_of
from airflow_provider_eaco.provider.whatif.expected import ExpectedStart

log = logging.getLogger(__name__)

# So old may an answer be before it is found anew, and so old at most.
FRESH_S = 10.0
OLDEST_S = 60.0
# So many jobs are placed within a request; the time grows with the queue.
FEW_JOBS = 50

Find = Callable[[Facts], Mapping[str, ExpectedStart]]
Spawn = Callable[[Callable[[], None]], None]


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="eaco-expected-starts", daemon=True).start()


class StartsBoard:
    """The last expected starts. Nobody waits for those of a long queue: at first there are none."""

    def __init__(
        self,
        find: Find = starts_of,
        *,
        spawn: Spawn = _in_a_thread,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._spawn = spawn
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._found: Mapping[str, ExpectedStart] = {}
        self._found_at_s = float("-inf")
        self._finding = False

    def starts(self, facts: Facts) -> Mapping[str, ExpectedStart]:
        """Return what is known by job id, of at most a minute ago; never raises."""
        if len(facts.queue) <= FEW_JOBS:
            return self._now(facts)
        with self._mutex:
            age_s = self._monotonic() - self._found_at_s
            begin = age_s >= FRESH_S and not self._finding
            self._finding = self._finding or begin
            found = self._found if age_s < OLDEST_S else {}
        if begin:
            self._spawn(lambda: self._keep(facts))
        # An instant that has passed since is no start to be expected.
        return {job_id: start for job_id, start in found.items() if start.at_s > facts.view.now_s}

    def _keep(self, facts: Facts) -> None:
        found = self._now(facts)
        with self._mutex:
            self._found, self._found_at_s, self._finding = found, self._monotonic(), False

    def _now(self, facts: Facts) -> Mapping[str, ExpectedStart]:
        try:
            return self._find(facts)
        except Exception:
            # A user's ordering may raise anything; the queue itself can be shown all the same.
            log.exception("Expected starts cannot be told")
            return {}


@cache
def the_board() -> StartsBoard:
    """Return the board of this server process."""
    return StartsBoard()
