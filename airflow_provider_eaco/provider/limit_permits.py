"""Which pools apply power limits now, and why the others that should only advise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.pool import PoolMode, PoolSettings, PowerLimits
from airflow_provider_eaco.core.policy.base import Lever, levers_of
from airflow_provider_eaco.core.policy.registry import make_policy
from airflow_provider_eaco.core.ports import LedgerView
from airflow_provider_eaco.engine.snapshots import may_use

log = logging.getLogger(__name__)

# How long a pool advises after a refusal, before it is found out again whether limits can be set.
ADVISE_S = 600.0
_NOT_KNOWN = "it is not known yet whether they can be set"

CausesOf = Callable[[Node], Mapping[str, str | None] | None]


class LimitPermits:
    """What is known of the pools with ``power_limits = apply``.

    Such a pool applies limits while each GPU of its nodes is known to take one: a plan weighs all of a pool's
    sets alike, so one GPU that takes none would be counted wrongly.
    """

    def __init__(
        self, pools: Sequence[PoolSettings], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        wanting = [pool for pool in pools if pool.power_limits is PowerLimits.APPLY]
        never = {pool.name: _never(pool) for pool in wanting}
        self._pools = tuple(pool for pool in wanting if never[pool.name] is None)
        self._why_not: dict[str, str | None] = {name: why or _NOT_KNOWN for name, why in never.items()}
        self._causes: dict[str, str | None] = {}
        self._refused: dict[str, str] = {}
        self._forget_s = float("inf")
        self._logged: dict[str, str] = {}
        self._log()

    @property
    def is_needed(self) -> bool:
        """Whether any pool could ever apply limits."""
        return bool(self._pools)

    @property
    def is_undecided(self) -> bool:
        """Whether of any pool that could apply limits it is not known yet whether they can be set."""
        return any(self._why_not[pool.name] == _NOT_KNOWN for pool in self._pools)

    def wants(self, pool: str) -> bool:
        """Tell whether the pool's setting is ``apply``."""
        return pool in self._why_not

    def applies(self, pool: str) -> bool:
        """Tell whether limits are planned for the pool now."""
        return self.wants(pool) and self._why_not[pool] is None

    def may_keep(self, pool: str) -> bool:
        """Tell whether limits that are in force for the pool may stay: also while nothing is known yet."""
        return self.wants(pool) and self._why_not[pool] in {None, _NOT_KNOWN}

    def why_not(self, pool: str) -> str | None:
        """Return why the pool only advises though it is to apply limits, as far as that is known."""
        why = self._why_not.get(pool)
        return None if why == _NOT_KNOWN else why

    def judge(self, view: LedgerView, elsewhere: CausesOf = lambda node: None) -> tuple[str, ...]:
        """Find out who applies limits; return the GPUs of which it has to be asked whether they take one.

        :param elsewhere: returns of a node with a worker what it has told of its GPUs: why each takes no
            limit, ``None`` of one that does; such GPUs are not to be asked from here.
        """
        if self._monotonic() >= self._forget_s:
            self._refused.clear()
            self._causes = {uuid: cause for uuid, cause in self._causes.items() if cause is None}
            self._forget_s = float("inf")
        unknown: dict[str, None] = {}
        for pool in self._pools:
            uuids, causes = [], {}
            for node in view.nodes:
                if not may_use(pool, node.name):
                    continue
                told, own = elsewhere(node), [gpu.uuid for gpu in node.gpus]
                known = self._causes if told is None else told
                uuids += own
                causes.update({uuid: known[uuid] for uuid in own if uuid in known})
                if told is None:
                    unknown.update(dict.fromkeys(uuid for uuid in own if uuid not in known))
            refused = (f"{uuid}: {cause}" for uuid, cause in causes.items() if cause is not None)
            why = self._refused.get(pool.name) or next(refused, None)
            is_unknown = not uuids or len(causes) < len(uuids)
            self._why_not[pool.name] = why or (_NOT_KNOWN if is_unknown else None)
        self._log()
        return tuple(unknown)

    def learn(self, asked: Sequence[str], unable: Mapping[str, str]) -> None:
        """Note of the GPUs that were asked about which take no limit, and why."""
        self._causes.update({uuid: unable.get(uuid) for uuid in asked})
        if any(uuid in unable for uuid in asked):
            self._forget_later()

    def refuse(self, pool: str, cause: str) -> None:
        """Let the pool advise for a while."""
        self._refused[pool] = cause
        self._forget_later()

    def _forget_later(self) -> None:
        self._forget_s = self._monotonic() + ADVISE_S

    def _log(self) -> None:
        """Say of each pool once why it only advises."""
        for name, why in self._why_not.items():
            if why not in {None, _NOT_KNOWN, self._logged.get(name)}:
                self._logged[name] = str(why)
                log.warning("Power limits are only advised: pool=%s cause=%s", name, why)


def _never(pool: PoolSettings) -> str | None:
    """Return why the pool cannot apply limits, however it is set up otherwise."""
    if pool.mode not in {PoolMode.SHARE, PoolMode.EXCLUSIVE}:
        return f"its mode is {pool.mode.value}"
    try:
        levers = levers_of(make_policy(pool))
    except Exception as error:  # noqa: BLE001 - a user's policy may raise anything; planning tells of it
        return f"its policy cannot be made: {error}"
    if Lever.POWER_LIMITS not in levers:
        chosen = "exclusive" if pool.mode is PoolMode.EXCLUSIVE else pool.policy
        return f"policy {chosen} chooses no power limits"
    return None
