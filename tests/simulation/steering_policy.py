"""A policy that steers at every opportunity, whether it helps or not."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from airflow_provider_eaco.core.model.instruction import SetPowerLimit, SleepNode, Steer, WakeNode
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.pool import PowerLimits
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, NodeState
from airflow_provider_eaco.core.policy.base import Lever, Steering
from airflow_provider_eaco.core.policy.eaco import EacoPolicy

LIMITS_W = (None, 125.0, 150.0, 175.0, 200.0, 225.0)


class Restless(EacoPolicy):
    """EaCO's placements; what it tells nodes and GPUs is a lot drawn from the instant and their names."""

    levers = frozenset(Lever)

    def steer(self, snapshot: ClusterSnapshot) -> Steering:
        steers = tuple(
            steer for name, state in snapshot.nodes.items() for steer in self._tell(name, state, snapshot)
        )
        return Steering(steers, snapshot.now_s + 500.0 if snapshot.waiting or steers else None)

    def _tell(self, name: str, state: NodeState, snapshot: ClusterSnapshot) -> Iterator[Steer]:
        lot = crc32(f"{name} {snapshot.now_s:.3f}".encode())
        power = snapshot.pool.node_power[name].power
        if not state.sets and power is NodePower.IDLE and lot % 2:
            yield SleepNode(name)
        elif power is NodePower.ASLEEP and lot % 3 == 0:
            yield WakeNode(name)
        if snapshot.pool.settings.power_limits is PowerLimits.APPLY:
            for number, held in enumerate(state.sets):
                yield SetPowerLimit(held.placement, LIMITS_W[(lot + number) % len(LIMITS_W)])
