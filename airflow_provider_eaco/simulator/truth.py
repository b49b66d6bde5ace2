"""What the simulated cluster really does: progress, power, and what does not fit. Never what is believed.

``PaperTruth`` (benchmark ``eaco-nodes``) holds the measured sets of the EaCO paper and its rule; the table is
the one of the simulated node. ``GavelTruth`` (``gavel-gpus``) holds measured pairs on one V100.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from airflow_provider_eaco.core.energy.configuration import SetPerformance
from airflow_provider_eaco.core.energy.power_model import BOARD_IDLE_W, V100, V100_NODE_GPUS, V100_NODE_IDLE_W
from airflow_provider_eaco.core.model.profile import FamilySet, PowerScope
from airflow_provider_eaco.data import built_in_book, exclusive_rows
from airflow_provider_eaco.simulator.power_levels import PowerCurve
from airflow_provider_eaco.simulator.trace import TraceError
from airflow_provider_eaco.telemetry.truth import TruthTable

# Assumption of the benchmarks: what is left on for waking a sleeping node.
ASLEEP_W = 15.0

# Measured for the ResNets, assumed for the others (W of one V100 board).
GAVEL_SOLO_W: Mapping[str, float] = {
    "ResNet-18": 190.0,
    "ResNet-50": 222.0,
    "Transformer": 200.0,
    "LM": 180.0,
    "CycleGAN": 220.0,
    "A3C": 90.0,
    "Recommendation": 60.0,
}
BOARD_LIMIT_W = 250.0
# 392 W of an idle node with 8 V100, less eight idle boards, on eight GPUs.
HOST_W_PER_GPU = V100_NODE_IDLE_W / V100_NODE_GPUS - BOARD_IDLE_W[V100]


class Truth(Protocol):
    """The cluster's physics for one benchmark.

    A node draws ``base_w`` while it is on, each free GPU ``free_gpu_w`` more, and each set what
    :meth:`performance` says. ``limits_w`` are the power limits that its boards can be held to, highest first;
    none where nothing is known of them.
    """

    families: tuple[str, ...]
    gpu_model: str
    scope: PowerScope
    base_w: float
    free_gpu_w: float
    asleep_w: float
    limits_w: tuple[float, ...]

    def performance(
        self, families: FamilySet, gpus: int, limit_w: float | None = None
    ) -> SetPerformance | None:
        """Return how these families run together on that many GPUs, ``None`` if they run out of memory.

        :param limit_w: one of ``limits_w``; ``None``: the boards' own.
        """

    def utilisation_pct(self, families: FamilySet) -> float:
        """Return the mean GPU utilisation that a meter would show, in percent."""


class PaperTruth:
    """The EaCO paper's node of eight V100; the power of a set holds its share of the host.

    :param families: the families of the run, by default the measured ones.
    :param curve: what power limits do; without it there are none.
    """

    gpu_model = V100
    scope = PowerScope.NODE
    base_w = 0.0
    free_gpu_w = V100_NODE_IDLE_W / V100_NODE_GPUS
    asleep_w = ASLEEP_W

    def __init__(self, families: Sequence[str] | None = None, curve: PowerCurve | None = None) -> None:
        measured = tuple(row["family"] for row in exclusive_rows())
        self.families = measured if families is None else tuple(families)
        self.limits_w = () if curve is None else curve.limits_w
        self._curve = curve
        self._table = TruthTable(built_in_book())

    def performance(
        self, families: FamilySet, gpus: int, limit_w: float | None = None
    ) -> SetPerformance | None:
        truth = self._table.of(families, V100, gpus)
        full = SetPerformance(truth.power_w, tuple(member.rate for member in truth.members))
        if limit_w is None:
            return full
        if self._curve is None:
            raise ValueError(f"limit_w: is {limit_w}; these nodes have no power levels")
        busy_pct = math.fsum(member.utilisation_pct for member in truth.members)
        return self._curve.limited(full, busy_pct, gpus * self.free_gpu_w, limit_w)

    def utilisation_pct(self, families: FamilySet) -> float:
        return self._table.of(families, V100, V100_NODE_GPUS).utilisation_pct


@dataclass(frozen=True, slots=True)
class GavelPair:
    """What two families keep of their speed on one V100, in canonical order of the families."""

    norm: tuple[float, float]


class GavelTruth:
    """One V100 for one or two jobs, as Gavel measured (OSDI 2020); jobs on several GPUs run alone.

    :param pairs: the pairs that ran; every other pair runs out of memory.
    :param power_scale: factor on the dynamic part of every solo power, for sensitivity.
    """

    gpu_model = V100
    scope = PowerScope.BOARD
    free_gpu_w = BOARD_IDLE_W[V100]
    asleep_w = ASLEEP_W
    limits_w: tuple[float, ...] = ()

    def __init__(
        self,
        families: Sequence[str],
        pairs: Mapping[FamilySet, GavelPair],
        gpus_per_node: int,
        power_scale: float = 1.0,
    ) -> None:
        self.families = tuple(families)
        self.base_w = HOST_W_PER_GPU * gpus_per_node
        self._pairs = pairs
        self._power_scale = power_scale

    def performance(
        self, families: FamilySet, gpus: int, limit_w: float | None = None
    ) -> SetPerformance | None:
        if limit_w is not None:
            raise ValueError(f"limit_w: is {limit_w}; Gavel measured no power limits")
        if len(families) == 1:
            return SetPerformance(gpus * self._solo_w(families[0]), (1.0,))
        pair = self._pairs.get(families) if len(families) == 2 and gpus == 1 else None
        if pair is None:
            return None
        dynamic_w = math.fsum(
            (self._solo_w(family) - self.free_gpu_w) * norm
            for family, norm in zip(families, pair.norm, strict=True)
        )
        return SetPerformance(min(BOARD_LIMIT_W, self.free_gpu_w + dynamic_w), pair.norm)

    def utilisation_pct(self, families: FamilySet) -> float:
        """Return the share of the board's dynamic power; an assumption, Gavel measured no utilisation."""
        performance = self.performance(families, 1)
        power_w = BOARD_LIMIT_W if performance is None else performance.power_w
        return 100.0 * (power_w - self.free_gpu_w) / (BOARD_LIMIT_W - self.free_gpu_w)

    def _solo_w(self, family: str) -> float:
        solo_w = GAVEL_SOLO_W[family.partition(":")[0]]
        return min(BOARD_LIMIT_W, self.free_gpu_w + (solo_w - self.free_gpu_w) * self._power_scale)


def read_gavel_truth(path: Path, gpus_per_node: int, power_scale: float = 1.0) -> GavelTruth:
    """Return the truth of the table ``motivation`` on V100.

    :param path: ``pairs.csv`` of the data set ``gavel_throughputs``.
    :raises TraceError: if the file cannot be read or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [
                row for row in csv.DictReader(lines) if row["table"] == "motivation" and row["gpu"] == "v100"
            ]
        named = {
            _family(row, side): (row[f"model_{side}"], row[f"batch_{side}"]) for row in rows for side in "ab"
        }
        pairs = dict(_pair(row) for row in rows if row["not_runnable"] == "0")
    except (OSError, KeyError, ValueError) as error:
        raise TraceError(str(path), f"is not Gavel's table of pairs: {error!r}") from error
    if not pairs:
        raise TraceError(
            str(path), "is not Gavel's table of pairs: it has no pair of table motivation, gpu v100"
        )
    families = sorted(named, key=lambda name: (named[name][0], int(named[name][1] or 0)))
    return GavelTruth(families, pairs, gpus_per_node, power_scale)


def _family(row: Mapping[str, str], side: str) -> str:
    return f"{row[f'model_{side}']}:{row[f'batch_{side}']}"


def _pair(row: Mapping[str, str]) -> tuple[FamilySet, GavelPair]:
    (first, norm_a), (second, norm_b) = sorted(
        [(_family(row, "a"), float(row["norm_a"])), (_family(row, "b"), float(row["norm_b"]))]
    )
    if first == second:
        norm_a = norm_b = (norm_a + norm_b) / 2
    return FamilySet((first, second)), GavelPair((norm_a, norm_b))
