"""What one job has told so far, while its reports are taken in one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_eaco.core.model.job import Progress
from airflow_provider_eaco.core.model.snapshot import Observation
from airflow_provider_eaco.core.ports import JobRecord
from airflow_provider_eaco.engine.running_mean import RunningMean

if TYPE_CHECKING:
    from airflow_provider_eaco.engine.progress import Report


class Tally:
    """How far a job is and what it has seen under its present set, while its reports are taken in.

    :param version: of the set.
    :param usual_unit_s: returns the time of a unit of which nothing is seen, ``None`` if it is not known.
    """

    def __init__(self, record: JobRecord, version: int, usual_unit_s: Callable[[], float | None]) -> None:
        stored, seen = record.job.progress, record.observation
        self._usual_unit_s = usual_unit_s
        self._version = version
        self._began_s = record.started_s
        # A lease starts without an observation, and a process reports only its own units: all of its first
        # report are new, also those that repeat what was lost between the last checkpoint and the end of an
        # earlier one.
        self._is_first = seen is None
        self._units_done, self._units_total = stored.units_done, stored.units_total
        self._run_s, self._can_yield = stored.run_s, stored.can_yield
        self._reported_s, self._lost_s = stored.reported_s, stored.lost_s
        self._out_of_memory = stored.out_of_memory
        self._solo = RunningMean(stored.solo_units, stored.solo_unit_s, stored.solo_spread_s)
        if seen is None or seen.set_version != version:
            seen = Observation(version)
        self._seen = RunningMean(seen.units, seen.unit_s, seen.spread_s)
        self._elapsed_s, self._limited = seen.elapsed_s, seen.limited

    def take(self, report: Report, now_s: float, *, alone: bool) -> None:
        """Take one more report in; ``alone``: nobody else holds the GPUs."""
        version = self._version
        new: list[float] = []
        ended: list[float] = []
        under: list[float] = []
        # Of these the ones at full power.
        fresh: list[float] = []
        for unit in report.recent:
            if unit.index < self._units_done and not self._is_first:
                continue
            new.append(unit.elapsed_s)
            if unit.version_at_end == version:
                ended.append(unit.elapsed_s)
                if unit.version_at_begin == version:
                    under.append(unit.elapsed_s)
                    if not unit.limited:
                        fresh.append(unit.elapsed_s)
        self._is_first = False
        self._limited = self._limited or len(fresh) < len(under)
        self._elapsed_s += math.fsum(ended)
        before, self._seen = self._seen, _extended(self._seen, under)
        if alone:
            # Who was alone all the time has seen the same in this run as under its present set.
            same = self._solo == before and len(fresh) == len(under)
            self._solo = self._seen if same else _extended(self._solo, fresh)
        self._run_s += self._spent_s(report.units_done - self._units_done, new)
        if report.units_done != self._units_done:
            began_s = self._began_s
            self._reported_s = now_s
            self._lost_s = None if began_s is None else max(0.0, now_s - began_s - self._run_s)
        self._units_done, self._can_yield = report.units_done, report.can_yield
        if report.units_total is not None:
            self._units_total = report.units_total
        self._out_of_memory = max(self._out_of_memory, report.out_of_memory)

    def progress(self) -> Progress:
        """Return how far the job is."""
        return Progress(
            units_done=self._units_done,
            units_total=self._units_total,
            run_s=self._run_s,
            can_yield=self._can_yield,
            solo_unit_s=self._solo.mean,
            solo_units=self._solo.samples,
            solo_spread_s=self._solo.spread,
            reported_s=self._reported_s,
            lost_s=self._lost_s,
            out_of_memory=self._out_of_memory,
        )

    def observation(self) -> Observation:
        """Return what it has seen under the present set."""
        seen = self._seen
        return Observation(
            self._version, seen.samples, seen.mean, self._elapsed_s, seen.spread, limited=self._limited
        )

    def _spent_s(self, units: int, new: Sequence[float]) -> float:
        """Return the device time of so many units more, of which the new ones were seen.

        Units whose time nobody saw (done by an earlier try from which this one resumed, or more than a report
        lists between two looks) count with the mean of those seen, else with the usual time.
        """
        seen_s = math.fsum(new)
        unseen = units - len(new)
        if unseen <= 0:
            return seen_s
        each_s = seen_s / len(new) if new else self._usual_unit_s() or 0.0
        return seen_s + unseen * each_s


def _extended(mean: RunningMean, values: Sequence[float]) -> RunningMean:
    return mean.with_one(values[0]) if len(values) == 1 else mean.merged(RunningMean.of(values))
