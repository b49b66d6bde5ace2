"""Power limits of pools that apply them: from the plan to the boards, and back to what the next plan sees.

What is in force here stands in a book on this machine's disk, which all schedulers here share and the next
one finds. Nodes with a worker set their own boards, and tell of them. A pool for which limits cannot be set
goes on as one that advises, so that no plan and no figure counts a limit that is not there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_provider_eaco.core.model.board_limits import (
    POWER_LIMIT_EVENT,
    LimitInForce,
    LimitRequest,
)
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import GpuReading
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Lease, Placement
from airflow_provider_eaco.core.model.pool import PoolSettings, PowerLimits
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.ports import DecisionLog, LedgerView
from airflow_provider_eaco.engine.admission_loop import CycleReport
from airflow_provider_eaco.engine.progress import Report
from airflow_provider_eaco.provider.limit_permits import LimitPermits
from airflow_provider_eaco.provider.limit_requests import Limiter, LimitRequests, Outcome
from airflow_provider_eaco.provider.limited_units import LimitedUnits
from airflow_provider_eaco.provider.node_limits import LimitsElsewhere, NoLimitStore
from airflow_provider_eaco.provider.services import Admission

log = logging.getLogger(__name__)


class AppliedLimits:
    """The limits of one scheduler's pools. For the scheduler's own thread.

    :param pool_of: returns the GPU pool of the jobs of an Airflow pool.
    """

    def __init__(
        self,
        limiter: Limiter,
        pools: Sequence[PoolSettings],
        pool_of: Callable[[str], PoolSettings],
        decisions: DecisionLog,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        elsewhere: LimitsElsewhere | None = None,
    ) -> None:
        self._limiter = limiter
        self._requests = LimitRequests(limiter, monotonic)
        self._elsewhere = elsewhere or LimitsElsewhere(NoLimitStore())
        self._pool_of = pool_of
        self._decisions = decisions
        self._permits = LimitPermits(pools, monotonic)
        self._units = LimitedUnits(monotonic)
        self._wanted: dict[Placement, SetPowerLimit] = {}
        self._told: dict[int, LimitInForce | None] = {}
        self._told_why: dict[int, str] = {}
        self._born_s: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no pool applies limits and none is left of an earlier time."""
        here = self._limiter.is_busy or self._limiter.noted()
        return not (self._permits.is_needed or here) and self._elsewhere.is_idle

    # -- What plans see and say

    def told(self, pools: Sequence[PoolState]) -> Sequence[PoolState]:
        """Return the pools as plans are to see them: with the limits in force where limits are applied, else
        advising.
        """
        return [self._seen(pool) for pool in pools]

    def _seen(self, pool: PoolState) -> PoolState:
        if self._permits.applies(pool.settings.name):
            limits = self._in_force()
            return replace(pool, power_limits_w={place: limit.limit_w for place, limit in limits.items()})
        return _advising(pool)

    def heard(self, admission: Admission, view: Callable[[], LedgerView]) -> Admission:
        """Return the admission, from whose reports limits are taken. What no step has found out yet of who
        takes limits, it looks for first, by the ledger's present ``view``.
        """
        return _Heard(admission, self, view) if self._permits.is_needed else admission

    def find_out(self, view: Callable[[], LedgerView]) -> None:
        """Have the next plan know what nodes have told by now, if it is not known who takes limits: tasks of
        a scheduler's first plan would begin without theirs.
        """
        if not self._permits.is_undecided:
            return
        try:
            self._elsewhere.look()
            self._permits.judge(view(), self._elsewhere.causes_of)
        except StoreUnavailableError as error:
            log.debug("Who takes power limits is found out later: error=%s", error)

    def take(self, report: CycleReport) -> None:
        """Take in which limits a cycle wants set or lifted; other nodes can learn of theirs at once, before
        the tasks for which they are meant are sent there.
        """
        wanted = [steer for steer in report.steers if isinstance(steer, SetPowerLimit)]
        self._elsewhere.want([each for each in wanted if self._elsewhere.has(each.placement.node)])
        here = [each for each in wanted if not self._elsewhere.has(each.placement.node)]
        self._wanted.update({each.placement: each for each in here})

    def marked(self, reports: list[Report]) -> list[Report]:
        """Return the reports with the units marked that ran under a limit for some time, or may have.

        :raises StoreUnavailableError: if it cannot be found out for the first time whether limits are used.
        """
        if not self._elsewhere.has_looked:
            self._elsewhere.look()
        return reports if self.is_idle else self._units.marked(reports)

    # -- What boards are told

    def step(self, view: LedgerView, own: Collection[int]) -> None:
        """Take an answer in, ask for what is to be done next, and tell tasks of their limits.

        :param own: the tokens of the tasks whose stories this scheduler writes.
        :raises StoreUnavailableError: if a story cannot be written, or what concerns other nodes cannot be
            read or written; that is done next time.
        """
        self._elsewhere.look()
        self._learn(self._requests.outcome(), view)
        asked = self._permits.judge(view, self._elsewhere.causes_of)
        self._units.look(view.leases, self._requests.touched | self._elsewhere.touched)
        may_stay = self._may_stay(view)
        self._elsewhere.keep(may_stay)
        in_force = self._in_force()
        if not self._requests.is_busy:
            held = tuple(placement for placement, may in may_stay.items() if may)
            outcome = self._requests.ask(LimitRequest(held, self._changes(held, in_force), asked))
            if outcome is not None:
                self._learn(outcome, view)
        self._tell(view, in_force, own)

    def close(self, timeout_s: float) -> None:
        """Lift every limit here; what takes longer than ``timeout_s`` goes on without this process. Nodes
        with a worker lift theirs when their tasks end.
        """
        self._requests.close(timeout_s)

    def _in_force(self) -> Mapping[Placement, LimitInForce]:
        return {**self._elsewhere.in_force, **self._limiter.in_force()}

    def _learn(self, outcome: Outcome | None, view: LedgerView) -> None:
        """Take in what became of a request here, and of what is wanted elsewhere."""
        refused = self._elsewhere.refused
        if outcome is not None:
            self._permits.learn(outcome.request.asked, outcome.unable)
            refused = {**refused, **outcome.refused}
        for lease, pool in self._holders(view):
            if lease.placement in refused:
                self._permits.refuse(pool, refused[lease.placement])

    def _holders(self, view: LedgerView) -> Iterator[tuple[Lease, str]]:
        """Yield the leases with the GPU pools of their jobs; of a job that nobody knows it has no name."""
        pool_of = {record.job.job_id: self._pool_of(record.job.pool).name for record in view.jobs}
        for lease in view.leases:
            yield lease, pool_of.get(lease.job_id, "")

    def _may_stay(self, view: LedgerView) -> dict[Placement, bool]:
        """Return of each held placement whether a limit may stay: if its holders' pools all keep limits."""
        keeps: dict[Placement, bool] = {}
        for lease, pool in self._holders(view):
            keeps[lease.placement] = keeps.get(lease.placement, True) and self._permits.may_keep(pool)
        return keeps

    def _changes(
        self, held: Collection[Placement], in_force: Mapping[Placement, LimitInForce]
    ) -> tuple[SetPowerLimit, ...]:
        """Return what the last plans want and is not so, as far as it still has a meaning."""
        wanted, self._wanted = self._wanted, {}
        return tuple(
            change
            for placement, change in wanted.items()
            if placement in held and change.limit_w != (_limit_w(in_force.get(placement)))
        )

    def _tell(
        self, view: LedgerView, in_force: Mapping[Placement, LimitInForce], own: Collection[int]
    ) -> None:
        """Write into the stories of own tasks under which limit they run, and why under none."""
        told = {lease.token: self._told.get(lease.token) for lease in view.leases}
        if self._born_s is None:
            # What was there before has been told by an earlier scheduler.
            self._born_s = view.now_s
            told = {lease.token: in_force.get(lease.placement) for lease in view.leases}
        why = {token: cause for token, cause in self._told_why.items() if token in told}
        self._told, self._told_why = told, why
        for lease, pool in self._holders(view):
            if lease.token not in own:
                continue
            limit, before = in_force.get(lease.placement), told[lease.token]
            if limit != before:
                self._note(lease, _in_words(limit, before), view.now_s)
                told[lease.token] = limit
            cause = self._permits.why_not(pool)
            if cause and lease.granted_s >= self._born_s and why.get(lease.token) != cause:
                self._note(lease, f"no limit is set, it is only advised: {cause}", view.now_s)
                why[lease.token] = cause

    def _note(self, lease: Lease, text: str, now_s: float) -> None:
        self._decisions.record_event(lease.job_id, POWER_LIMIT_EVENT, text, now_s)


class _Heard:
    """An admission loop whose wishes about power limits are taken."""

    def __init__(self, admission: Admission, pools: AppliedLimits, view: Callable[[], LedgerView]) -> None:
        self._admission = admission
        self._pools = pools
        self._view = view

    def run_once(self, readings: Sequence[GpuReading]) -> CycleReport:
        self._pools.find_out(self._view)
        report = self._admission.run_once(readings)
        self._pools.take(report)
        return report


def without_applied(pools: Sequence[PoolState]) -> Sequence[PoolState]:
    """Return the pools as those see them who do not know what is in force on their boards: they advise."""
    return [_advising(pool) for pool in pools]


def _advising(pool: PoolState) -> PoolState:
    if pool.settings.power_limits is not PowerLimits.APPLY:
        return pool
    return replace(pool, settings=replace(pool.settings, power_limits=PowerLimits.ADVISE))


def _limit_w(limit: LimitInForce | None) -> float | None:
    return None if limit is None else limit.limit_w


def _in_words(limit: LimitInForce | None, before: LimitInForce | None) -> str:
    if limit is not None:
        least_w, most_w = min(limit.before_w), max(limit.before_w)
        own = f"{most_w:g}" if least_w == most_w else f"{least_w:g} to {most_w:g}"
        return f"held to {limit.limit_w:g} W a board, of {own} W"
    return f"no longer held to {_limit_w(before):g} W a board"
