"""What rules have to know of leases that have ended, kept up to date by short reads; live and simulated.

The ledger is the truth. What is kept here saves reading the same rows in every cycle: sums of what ended more
than a minute ago, which nobody changes any more. A new process reads them once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_eaco.core.model.errors import InvalidSettingError
from airflow_provider_eaco.core.model.pool import PoolSettings
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.core.policy.registry import make_rules
from airflow_provider_eaco.core.policy.rules_fair_share import charged_s, team_named
from airflow_provider_eaco.core.ports import Ledger, LedgerView, PastLease
from airflow_provider_eaco.engine.snapshots import may_use

# A release that was judged at one instant may be committed a little later, by another process.
SETTLE_S = 60.0
# Ten half-lives ago a GPU second counted a thousand times as much as it does now.
_HALF_LIVES = 10.0


@dataclass(slots=True)
class _Past:
    """One pool's past up to ``at_s``: GPU seconds by team as they counted then, and the newest start."""

    settings: PoolSettings
    at_s: float
    gpu_s: dict[str, float] = field(default_factory=dict)
    newest_queued_s: float | None = None

    def moved_to(self, now_s: float, ended: Sequence[PastLease]) -> _Past:
        """Return the past at a later instant, with the leases that have ended since."""
        fair = self.settings.fair_share
        fading = 0.5 ** (max(0.0, now_s - self.at_s) / fair.half_life_s)
        gpu_s = {team: used * fading for team, used in self.gpu_s.items()}
        newest_s = self.newest_queued_s
        for lease in ended:
            if not may_use(self.settings, lease.node):
                continue
            team = team_named(fair.by, lease.pool, lease.bundle, lease.dag_id)
            own_s = charged_s(lease.granted_s, lease.released_s, lease.charged_s, now_s, fair.half_life_s)
            gpu_s[team] = gpu_s.get(team, 0.0) + lease.gpus * own_s
            newest_s = lease.queued_s if newest_s is None else max(newest_s, lease.queued_s)
        return _Past(self.settings, now_s, gpu_s, newest_s)


class PastUse:
    """Fills in what pools have been used for. Pools whose rules do not ask cost nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._settled: Mapping[str, _Past] = {}

    def told(self, pools: Sequence[PoolState], view: LedgerView) -> tuple[PoolState, ...]:
        """Return the pools with what their rules need of the past, as it counts at the view's instant.

        :raises StoreUnavailableError: if the ledger cannot be read.
        """
        asking = {pool.settings.name: pool.settings for pool in pools if _needs_past(pool.settings)}
        if not asking:
            return tuple(pools)
        now_s = view.now_s
        if {name: past.settings for name, past in self._settled.items()} != asking:
            begin_s = min(_begin_s(settings, view) for settings in asking.values())
            self._settled = {name: _Past(settings, begin_s) for name, settings in asking.items()}
        settled_s = next(iter(self._settled.values())).at_s
        if now_s - settled_s > 2 * SETTLE_S:
            ended = _sorted(self._ledger.past_leases(settled_s, now_s - SETTLE_S))
            settled_s = now_s - SETTLE_S
            self._settled = {name: past.moved_to(settled_s, ended) for name, past in self._settled.items()}
        recent = _sorted(self._ledger.past_leases(settled_s, now_s))
        present = {name: past.moved_to(now_s, recent) for name, past in self._settled.items()}
        return tuple(_with_past(pool, present.get(pool.settings.name)) for pool in pools)


def _with_past(pool: PoolState, past: _Past | None) -> PoolState:
    if past is None:
        return pool
    return replace(pool, past_gpu_s=past.gpu_s, newest_started_queued_s=past.newest_queued_s)


def _needs_past(settings: PoolSettings) -> bool:
    try:
        return any(rule.needs_past for rule in make_rules(settings))
    except InvalidSettingError:  # told to the jobs of the pool when it is planned
        return False


def _begin_s(settings: PoolSettings, view: LedgerView) -> float:
    """Return the instant from which ended leases matter: to use that has not faded, and to who waits.

    A job is passed over by what was granted after it was queued, which ends after that.
    """
    faded_s = view.now_s - _HALF_LIVES * settings.fair_share.half_life_s
    return max(0.0, min([faded_s, *(record.job.queued_s for record in view.jobs)]))


def _sorted(ended: Sequence[PastLease]) -> list[PastLease]:
    """Return them in one order, so that equal pasts are equal to the last bit."""
    return sorted(ended, key=lambda lease: (lease.released_s, lease.token))
