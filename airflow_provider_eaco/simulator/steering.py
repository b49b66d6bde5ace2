"""What a policy tells nodes and GPUs beside placements, carried out on the simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_eaco.core.model.instruction import SetPowerLimit, SleepNode, Steer
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.snapshot import PoolState
from airflow_provider_eaco.simulator.cluster import VirtualCluster


class Steering:
    """Carries instructions out, and tells the next cycle what is in force.

    :param obeys_sleep: whether nodes sleep and wake as the policy says; if not, they follow their own rule
        and such instructions are passed over.
    """

    def __init__(self, cluster: VirtualCluster, index_of: Mapping[str, int], *, obeys_sleep: bool) -> None:
        self._cluster = cluster
        self._index_of = index_of
        self._obeys_sleep = obeys_sleep
        self._placements: dict[tuple[str, tuple[int, ...]], Placement] = {}

    def carry_out(self, steers: Iterable[Steer], now_s: float) -> list[Placement]:
        """Tell nodes and GPUs; return the placements whose power was limited.

        :raises SteeringError: if one of them cannot be told that.
        """
        limited = []
        for steer in steers:
            if isinstance(steer, SetPowerLimit):
                placement = steer.placement
                gpus = self._gpus_of(placement)
                self._cluster.limit_power(placement.node, gpus, steer.limit_w, now_s)
                self._placements[placement.node, gpus] = placement
                limited.append(placement)
            elif self._obeys_sleep and isinstance(steer, SleepNode):
                self._cluster.sleep(steer.node, now_s)
            elif self._obeys_sleep:
                self._cluster.wake(steer.node, now_s)
        return limited

    def is_limited(self, placement: Placement) -> bool:
        """Return whether a power limit is in force there."""
        return (placement.node, self._gpus_of(placement)) in self._cluster.power_limits()

    def seen(self, pool: PoolState) -> PoolState:
        """Return the pool with the nodes' power states and the limits that are in force."""
        limits = self._cluster.power_limits()
        return replace(
            pool,
            node_power=self._cluster.power_states(),
            power_limits_w={self._placements[place]: limit_w for place, limit_w in limits.items()},
        )

    def _gpus_of(self, placement: Placement) -> tuple[int, ...]:
        return tuple(sorted(self._index_of[uuid] for uuid in placement.gpu_uuids))
