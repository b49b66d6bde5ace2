"""What a power limit does to a V100: the curve of ResNet-50, scaled to how busy the set keeps the GPUs.

Rows of Zeus (NSDI 2023, ``summary_power_v100.csv``), resnet50 with batch 256: for a limit L, ``t(L)`` is the
rise of an epoch's time and ``e(L)`` of its energy against the board's own 250 W. A set that keeps the GPUs
busy for a share ``g = min(1, sum U / 100)`` of the time runs ``1 + g t(L)`` times as long and draws
``idle + (P - idle) * (1 + e(L)) / (1 + g t(L))``. Assumed: energy above idle changes, per unit of work, as
measured for ResNet-50.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_eaco.core.energy.configuration import SetPerformance
from airflow_provider_eaco.simulator.readers.table import rows_of, text_of
from airflow_provider_eaco.simulator.trace import TraceError

# Below 125 W a V100 obeys its limit badly: the benchmark leaves the rows of 100 W out.
LOWEST_LIMIT_W = 125.0

_NETWORK, _BATCH = "resnet50", 256
_COLUMNS = ("dataset", "network", "batch_size", "power_limit", "time_per_epoch", "average_power")


@dataclass(frozen=True, slots=True)
class Effect:
    """What a limit costs a GPU that is always busy, against the board's own limit: 0.05 is 5 % more."""

    time_rise: float
    energy_rise: float


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """The limits that can be set, highest first, each with its effect."""

    effects: Mapping[float, Effect]

    @property
    def limits_w(self) -> tuple[float, ...]:
        return tuple(self.effects)

    def limited(
        self, full: SetPerformance, utilisation_pct: float, idle_w: float, limit_w: float
    ) -> SetPerformance:
        """Return how a set runs under the limit that runs as ``full`` without it.

        :param utilisation_pct: sum of the members' mean GPU utilisation alone.
        :param idle_w: what its GPUs draw when nobody runs there.
        :raises KeyError: for a limit that is not among :attr:`limits_w`.
        """
        effect = self.effects[limit_w]
        slowdown = 1 + min(1.0, utilisation_pct / 100) * effect.time_rise
        power_w = idle_w + (full.power_w - idle_w) * (1 + effect.energy_rise) / slowdown
        return SetPerformance(power_w, tuple(rate / slowdown for rate in full.rates))


def read_power_curve(path: Path) -> PowerCurve:
    """Return the curve in ``summary_power_v100.csv`` of the data set ``zeus_power``.

    :raises TraceError: if the file cannot be read or has no such rows.
    """
    measured: dict[float, tuple[float, float]] = {}
    for row in rows_of(str(path), text_of(path), _COLUMNS):
        if row.text("network") == _NETWORK and row.whole("batch_size", 1) == _BATCH:
            time_s = row.number("time_per_epoch", 0, "seconds", above=True)
            power_w = row.number("average_power", 0, "W", above=True)
            measured[row.number("power_limit", 0, "W", above=True)] = time_s, time_s * power_w
    limits_w = sorted((limit_w for limit_w in measured if limit_w >= LOWEST_LIMIT_W), reverse=True)
    if len(limits_w) < 2:
        raise TraceError(
            str(path), f"has no power limits for {_NETWORK}, batch {_BATCH}; expected two or more"
        )
    full_s, full_j = measured[limits_w[0]]
    return PowerCurve(
        {
            limit_w: Effect(measured[limit_w][0] / full_s - 1, measured[limit_w][1] / full_j - 1)
            for limit_w in limits_w[1:]
        }
    )
