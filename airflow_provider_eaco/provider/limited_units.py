"""Which reported units of work ran under a power limit for some time: they teach nothing about full power."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.placement import Lease, Placement
from airflow_provider_eaco.engine.progress import Report


@dataclass(slots=True)
class _Run:
    """What is known of one lease, in instants of the steady clock.

    ``limited_s``: when a limit was there last. ``began_s``: an instant before which the present unit has not
    begun. ``limited`` are the indices of units that ran under one.
    """

    limited_s: float
    began_s: float
    looked_s: float
    units_done: int = 0
    limited: set[int] = field(default_factory=set)


class LimitedUnits:
    """Follows limits and reports from heartbeat to heartbeat. Where it cannot tell, a unit was limited."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._runs: dict[int, _Run] = {}
        self._is_first = True

    def look(self, leases: Iterable[Lease], touched: Collection[Placement]) -> None:
        """Take in who holds which GPUs now.

        :param touched: the placements on which a limit is, or may have been since the last look.
        """
        now_s = self._monotonic()
        runs: dict[int, _Run] = {}
        for lease in leases:
            run = self._runs.get(lease.token)
            if run is None:
                # Nobody knows what was in force before this process began.
                limited_s = now_s if self._is_first else float("-inf")
                run = _Run(limited_s, began_s=now_s, looked_s=now_s)
            if lease.placement in touched:
                run.limited_s = now_s
            runs[lease.token] = run
        self._runs, self._is_first = runs, False

    def marked(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports with the units marked that ran under a limit, or may have."""
        return [self._marked(report) for report in reports]

    def _marked(self, report: Report) -> Report:
        run = None if report.token is None else self._runs.get(report.token)
        if run is None:
            # It was never looked at, so all that is known is that limits are in use.
            return replace(report, recent=tuple(replace(unit, limited=True) for unit in report.recent))
        now_s = self._monotonic()
        new = [unit.index for unit in report.recent if unit.index >= run.units_done]
        if new:
            if run.limited_s >= run.began_s:
                run.limited.update(new)
            # The next unit has begun after the last look, which did not see this one's end.
            run.began_s, run.units_done = run.looked_s, max(new) + 1
        run.looked_s = now_s
        recent = tuple(
            replace(unit, limited=True) if unit.index in run.limited else unit for unit in report.recent
        )
        return report if recent == report.recent else replace(report, recent=recent)
