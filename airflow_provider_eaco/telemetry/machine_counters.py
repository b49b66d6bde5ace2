"""The counters of one machine as this meter has them, ready to be stored. Not for several threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TypeVar

from airflow_provider_eaco.core.energy.accounting import DeviceTotals
from airflow_provider_eaco.core.energy.node_energy import NodeEnergy
from airflow_provider_eaco.core.energy.records import MachineEnergy, NodeTotals

_Totals = TypeVar("_Totals", DeviceTotals, NodeTotals)


class MachineCounters:
    """Counts from the first look on, or from the last refusal on: then another meter stores this machine.

    :param node: the machine's name.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._began_s: float | None = None
        self._until_s = 0.0
        self._devices: dict[str, DeviceTotals] = {}
        self._totals = NodeTotals()
        self._devices_before: dict[str, DeviceTotals] = {}
        self._totals_before = NodeTotals()

    def look(self, at_s: float, devices: Mapping[str, DeviceTotals], node: NodeEnergy) -> None:
        """Note the counters of an instant, in seconds since the epoch."""
        self._began_s = at_s if self._began_s is None else self._began_s
        self._until_s = at_s
        self._devices = {uuid: replace(totals) for uuid, totals in devices.items()}
        self._totals = NodeTotals(node.node_j, node.gpus_j, node.seconds)

    def present(self) -> MachineEnergy | None:
        """Return what was counted, ``None`` before anything was seen."""
        if self._began_s is None:
            return None
        return MachineEnergy(
            self._node,
            f"{self._node}:{os.getpid()}:{self._began_s!r}",
            self._began_s,
            self._until_s,
            {
                uuid: _less(totals, self._devices_before.get(uuid, DeviceTotals()))
                for uuid, totals in self._devices.items()
            },
            _less(self._totals, self._totals_before),
        )

    def begin_anew(self) -> None:
        """Count from the last look on, since what was counted so far is another meter's to store."""
        self._began_s = self._until_s
        self._devices_before, self._totals_before = self._devices, self._totals


def _less(after: _Totals, before: _Totals) -> _Totals:
    return replace(
        after, **{each.name: getattr(after, each.name) - getattr(before, each.name) for each in fields(after)}
    )
