"""A node's own power meter against the counters of its GPUs: what the rest of the machine takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_eaco.core.energy.accounting import DeviceLook, energy_between

# A node cannot take less than its GPUs; this much may be the error of two meters.
TOLERANCE = 0.05


@dataclass(slots=True)
class NodeEnergy:
    """Joules of a node and of all its GPUs over the same ``seconds``, those that the node's meter covered."""

    node_j: float = 0.0
    gpus_j: float = 0.0
    seconds: float = 0.0
    _last: DeviceLook | None = None
    _last_gpus_j: float = 0.0

    def look(self, node: DeviceLook | None, gpus_j: float) -> None:
        """Account for the time since the node's meter was read last.

        :param node: its last reading, the same one again as long as there is no newer, ``None`` without any.
        :param gpus_j: what all GPUs have taken since some instant in the past, up to now.
        """
        before = self._last
        if node is None or (before is not None and node.at_s <= before.at_s):
            return
        measured = None if before is None else energy_between(before, node)
        if before is not None and measured is not None and measured.energy_j is not None:
            self.node_j += measured.energy_j
            self.gpus_j += gpus_j - self._last_gpus_j
            self.seconds += node.at_s - before.at_s
        self._last, self._last_gpus_j = node, gpus_j

    @property
    def host_j(self) -> float | None:
        """What the node took beside its GPUs, ``None`` before anything was measured; below 0 the two meters
        contradict each other.
        """
        return self.node_j - self.gpus_j if self.seconds else None

    @property
    def is_plausible(self) -> bool:
        """Whether the GPUs took no more than the node, within the error of two meters."""
        return self.gpus_j <= self.node_j * (1 + TOLERANCE)
