"""Power limits on nodes with a worker, as a scheduler sees them: what is wanted, and what boards have."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from airflow_provider_eaco.core.model.board_limits import LimitInForce, NodeLimits
from airflow_provider_eaco.core.model.errors import StoreUnavailableError
from airflow_provider_eaco.core.model.gpu import Node
from airflow_provider_eaco.core.model.instruction import SetPowerLimit
from airflow_provider_eaco.core.model.placement import Placement

log = logging.getLogger(__name__)


class LimitStore(Protocol):
    """Where schedulers and nodes with a worker tell each other of limits."""

    def read(self) -> tuple[Mapping[str, NodeLimits | None], Mapping[Placement, float]]: ...

    def want(self, limits_w: Mapping[Placement, float]) -> None: ...

    def drop(self, placements: Collection[Placement]) -> None: ...

    def sweep(self) -> None: ...


class NoLimitStore:
    """There are no nodes with a worker."""

    def read(self) -> tuple[Mapping[str, NodeLimits | None], Mapping[Placement, float]]:
        return {}, {}

    def want(self, limits_w: Mapping[Placement, float]) -> None:
        """Nobody would be told."""

    def drop(self, placements: Collection[Placement]) -> None:
        """Nothing is wanted."""

    def sweep(self) -> None:
        """Nothing is wanted."""


class LimitsElsewhere:
    """The limits of all nodes with a worker, as of the last :meth:`look`."""

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._told: Mapping[str, NodeLimits | None] = {}
        self._wanted: Mapping[Placement, float] = {}
        #: Whether it was ever looked; before that nothing is known.
        self.has_looked = False

    @property
    def is_idle(self) -> bool:
        """Whether no limit is wanted or in force anywhere, as far as that was looked at."""
        return self.has_looked and not self.touched

    @property
    def touched(self) -> set[Placement]:
        """The placements on whose boards a limit is, or may be soon."""
        noted = {placement for told in self._known for placement in told.noted}
        return {*noted, *self._wanted}

    @property
    def in_force(self) -> Mapping[Placement, LimitInForce]:
        """The limits that boards are known to have."""
        return {place: limit for told in self._known for place, limit in told.in_force.items()}

    @property
    def refused(self) -> Mapping[Placement, str]:
        """Why limits that are wanted were not set."""
        found = {place: cause for told in self._known for place, cause in told.refused.items()}
        return {place: cause for place, cause in found.items() if place in self._wanted}

    @property
    def _known(self) -> list[NodeLimits]:
        return [told for told in self._told.values() if told is not None]

    def has(self, node: str) -> bool:
        """Tell whether the node is one with a worker."""
        return node in self._told

    def causes_of(self, node: Node) -> Mapping[str, str | None] | None:
        """Return why each GPU of the node takes no limit, ``None`` of one that does; one of which that is not
        known yet is left out. ``None`` for a node without a worker.
        """
        if node.name not in self._told:
            return None
        told = self._told[node.name]
        if told is None:
            why = f"the worker of node {node.name} knows no power limits; bring it up to date"
            return dict.fromkeys([gpu.uuid for gpu in node.gpus], why)
        return told.permits

    def look(self) -> None:
        """See what is wanted now and what nodes have told since.

        :raises StoreUnavailableError: if that cannot be read.
        """
        self._told, self._wanted = self._store.read()
        self.has_looked = True

    def want(self, changes: Sequence[SetPowerLimit]) -> None:
        """Have limits of these nodes changed. What cannot be written now, the next plan wants again."""
        limits_w = {change.placement: change.limit_w for change in changes if change.limit_w is not None}
        lifted = [change.placement for change in changes if change.limit_w is None]
        news = {place: watts for place, watts in limits_w.items() if self._wanted.get(place) != watts}
        try:
            if news:
                self._store.want(news)
            if lifted:
                self._store.drop(lifted)
        except StoreUnavailableError as error:
            log.warning("Power limits of other nodes are changed later: error=%s", error)
            return
        self._wanted = {**self._wanted, **news}
        self._wanted = {place: watts for place, watts in self._wanted.items() if place not in lifted}

    def keep(self, held: Mapping[Placement, bool]) -> None:
        """Have limits lifted that may not stay.

        :param held: whether a limit may stay on each placement that somebody holds.
        :raises StoreUnavailableError: if that cannot be written.
        """
        barred = [placement for placement in self._wanted if not held.get(placement, True)]
        if barred:
            self._store.drop(barred)
        if any(placement not in held for placement in self._wanted):
            # Whoever was granted these boards since the ledger was looked at keeps what was planned for it.
            self._store.sweep()
