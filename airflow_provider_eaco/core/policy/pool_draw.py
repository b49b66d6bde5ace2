"""What a pool draws now, and would draw with one job more: by meters, and by what is predicted.

A set counts with the larger of the two: who has just begun does not draw yet what it will, and who draws more
than was thought is measured. Predicted is the most that any part of the set draws: when a member ends, the
others may draw more than all together. An idle GPU counts as measured, else with its model's idle draw.
All is in the scope of the pool's profiles and meters: boards, or boards with their share of the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_eaco.core.energy.power_model import BOARD_IDLE_W, BOARD_LIMIT_W, HOST_W_PER_GPU
from airflow_provider_eaco.core.model.gpu import Gpu
from airflow_provider_eaco.core.model.job import Job
from airflow_provider_eaco.core.model.node_power import NodePower
from airflow_provider_eaco.core.model.placement import Placement
from airflow_provider_eaco.core.model.profile import FamilySet, PowerScope, family_set
from airflow_provider_eaco.core.model.snapshot import ClusterSnapshot, GpuSet, NodeState
from airflow_provider_eaco.core.policy.facts import CycleFacts


@dataclass(frozen=True, slots=True)
class Draw:
    """Watts as far as they are known.

    ``by_meter``: nothing of it had to be predicted. ``unknown_sets`` are left out since neither a meter nor a
    profile nor their board's limit tells of them, ``unknown_idle`` are GPUs that nobody holds or meters.
    """

    power_w: float = 0.0
    by_meter: bool = True
    unknown_sets: int = 0
    unknown_idle: int = 0


def total(draws: Iterable[Draw]) -> Draw:
    """Return the draws together."""
    parts = list(draws)
    return Draw(
        math.fsum(part.power_w for part in parts),
        all(part.by_meter for part in parts),
        sum(part.unknown_sets for part in parts),
        sum(part.unknown_idle for part in parts),
    )


class PoolDraw:
    """The draw of a pool's nodes in the course of one cycle; a node that did not change is not added anew.

    :param facts: what is predicted, and the meters' readings.
    :param asleep_w: the draw of a sleeping node; ``None``: it counts as an idle one.
    """

    def __init__(self, facts: CycleFacts, asleep_w: float | None) -> None:
        self._facts = facts
        self._asleep_w = asleep_w
        self._known: dict[str, tuple[NodeState, Draw]] = {}
        self._last: tuple[ClusterSnapshot, dict[str, Draw], Draw] | None = None
        self._nobody: Draw | None = None
        self._most: dict[tuple[FamilySet, str, int], float | None] = {}
        solos = facts.book.solo.values()
        self._with_host = frozenset(solo.gpu_model for solo in solos if solo.scope is PowerScope.NODE)

    def of(self, snapshot: ClusterSnapshot) -> Draw:
        """Return the draw of all nodes of the snapshot."""
        if self._last is None or self._last[0] is not snapshot:
            draws = {name: self._node(name, state, snapshot) for name, state in snapshot.nodes.items()}
            self._last = snapshot, draws, total(draws.values())
        return self._last[2]

    def with_launch(self, job: Job, placement: Placement, snapshot: ClusterSnapshot) -> Draw:
        """Return the draw of all nodes once the job is placed there."""
        self.of(snapshot)
        draws = dict(self._last[1]) if self._last is not None else {}
        placed = snapshot.with_launch(job, placement)
        draws[placement.node] = self._node(placement.node, placed.nodes[placement.node], placed)
        return total(draws.values())

    def of_nobody(self, snapshot: ClusterSnapshot) -> Draw:
        """Return what the pool draws if nobody holds GPUs and who slept at the first asking sleeps on."""
        if self._nobody is None:
            self._nobody = total(
                self._asleep(name, state, snapshot) or self._idle(state.node.gpus, metered=False)
                for name, state in snapshot.nodes.items()
            )
        return self._nobody

    def added_alone_w(self, family: str, placement: Placement, snapshot: ClusterSnapshot) -> float | None:
        """Return what a job adds to idle GPUs, ``None`` if nobody can tell."""
        gpus = [gpu for gpu in snapshot.nodes[placement.node].node.gpus if gpu.uuid in placement.gpu_uuids]
        power_w = self._predicted((family,), gpus)
        return None if power_w is None else power_w - self._idle(gpus, metered=False).power_w

    def _node(self, name: str, state: NodeState, snapshot: ClusterSnapshot) -> Draw:
        asleep = self._asleep(name, state, snapshot)
        if asleep is not None:
            return asleep
        known = self._known.get(name)
        if known is None or known[0] is not state:
            sets = [self.of_set(held) for held in state.sets]
            known = self._known[name] = state, total([*sets, self._idle(state.free, metered=True)])
        return known[1]

    def _asleep(self, name: str, state: NodeState, snapshot: ClusterSnapshot) -> Draw | None:
        power = snapshot.pool.node_power.get(name)
        if state.sets or power is None or power.power is not NodePower.ASLEEP or self._asleep_w is None:
            return None
        return Draw(self._asleep_w, by_meter=False)

    def of_set(self, held: GpuSet) -> Draw:
        """Return the draw of one set."""
        measured_w = self._measured(held.gpus)
        predicted_w = self._predicted(held.families, held.gpus)
        known = [power_w for power_w in (measured_w, predicted_w) if power_w is not None]
        if not known:
            return Draw(by_meter=False, unknown_sets=1)
        return Draw(max(known), by_meter=measured_w is not None)

    def _idle(self, gpus: Iterable[Gpu], *, metered: bool) -> Draw:
        """Return the draw of GPUs that nobody holds, as measured where a meter is asked and knows."""
        counts: Counter[str] = Counter()
        parts_w: list[float] = []
        for gpu in gpus:
            measured_w = self._measured((gpu,)) if metered and self._facts.readings else None
            if measured_w is None:
                counts[gpu.model] += 1
            else:
                parts_w.append(measured_w)
        unknown = 0
        for model, count in counts.items():
            idle_w = self._of_board(model, BOARD_IDLE_W)
            if idle_w is None:
                unknown += count
            else:
                parts_w.append(idle_w * count)
        return Draw(math.fsum(parts_w), not counts, unknown_idle=unknown)

    def _measured(self, gpus: Iterable[Gpu]) -> float | None:
        readings = [self._facts.readings.get(gpu.uuid) for gpu in gpus]
        known = [None if reading is None else reading.power_w for reading in readings]
        return None if None in known else math.fsum(power_w for power_w in known if power_w is not None)

    def _predicted(self, families: Iterable[str], gpus: Iterable[Gpu]) -> float | None:
        """Return the careful prediction, else what the boards can draw at most."""
        models = [gpu.model for gpu in gpus]
        most_w = self._most_w(family_set(tuple(families)), models[0], len(models))
        if most_w is not None:
            return most_w
        limits_w = [self._of_board(model, BOARD_LIMIT_W) for model in models]
        return None if None in limits_w else math.fsum(limit_w for limit_w in limits_w if limit_w is not None)

    def _most_w(self, families: FamilySet, model: str, gpus: int) -> float | None:
        """Return the most that the set or any part of it draws, ``None`` if that of the set is not known."""
        key = families, model, gpus
        if key not in self._most:
            seen = self._facts.predict(families, model, gpus)
            power_w = None if seen is None else seen.power_w
            if power_w is None and len(families) == 1:
                # A profile without a pace or a utilisation predicts no sets, and has a draw all the same.
                solo = self._facts.book.solo_of(families[0], model, gpus)
                power_w = None if solo is None else solo.power_w
            if power_w is not None and len(families) > 1:
                rests = {family_set((*families[:n], *families[n + 1 :])) for n in range(len(families))}
                parts = (self._most_w(rest, model, gpus) for rest in rests)
                power_w = max(power_w, *(part_w for part_w in parts if part_w is not None), 0.0)
            self._most[key] = power_w
        return self._most[key]

    def _of_board(self, model: str, table: Mapping[str, float]) -> float | None:
        board_w = table.get(model)
        return None if board_w is None else board_w + HOST_W_PER_GPU * (model in self._with_host)
